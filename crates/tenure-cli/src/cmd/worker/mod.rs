//! `tenure queue work`: a program per task.

mod probes;
mod process;
mod run_program;
mod status_line;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure_queue::{Queue, TaskHandler, Worker, WorkerBuilder, WorkerSettings};
use tokio_util::sync::CancellationToken;

use super::open;
use crate::cmd::exec::{Signals, Waited, find_command, unreleased};
use crate::config::flags::WorkerFlags;
use crate::config::{Config, duration};
use crate::exit::Exit;
pub(in crate::cmd) use probes::Probes;
use process::Spawner;
use run_program::{Program, Who};
use status_line::ProgressLine;

/// Run a program for each task
#[derive(Debug, Args)]
#[command(
    after_help = "The payload is the program's standard input, its standard output becomes the result, what it says on standard\n\
    error is passed on. TENURE_TASK_ID, _ATTEMPT, _CLAIM, _META, _DEADLINE and _DEADLINE_MS are in its environment.\n\n\
    Its exit code decides: 0 the task is done · 65 it is a dead letter at once · 75 it is tried again later, which is\n\
    no failure · anything else, or a signal: the attempt failed, and is followed by others as the task's retries say.\n\
    A line `tenure-progress 45% half way` on standard error says how far it is.\n\n\
    SIGTERM or Ctrl-C: nothing more is claimed, what runs may finish within --stop-timeout; the rest gets SIGTERM,\n\
    then SIGKILL, and goes back. A second one: at once. No program outlives the worker, even if that is killed.\n\n\
    Examples:\n  \
    tenure --store sqlite:shop.db --cluster shop queue work mails --concurrency 8 --exec ./send-mail --fast\n  \
    tenure --store sqlite:shop.db --cluster shop queue work mails --node w1 --data /var/lib/w1 --exec ./send-mail\n  \
    tenure --store sqlite:shop.db --cluster shop queue work sums --exec sh -c 'jq add'"
)]
pub(in crate::cmd) struct Work {
    /// The queue
    queue: String,
    /// How many tasks it works on at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    concurrency: usize,
    /// How long what is running may go on when the worker is to stop
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    stop_timeout: Duration,
    /// When a task is tried again whose program exits with code 75
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    later: Duration,
    #[command(flatten)]
    poll: Poll,
    #[command(flatten)]
    pub(in crate::cmd) flags: WorkerFlags,
    /// The program and its arguments; everything that follows belongs to it
    #[arg(long, value_name = "CMD", required = true, num_args = 1.., allow_hyphen_values = true)]
    exec: Vec<OsString>,
}

/// How often a worker looks for tasks.
#[derive(Clone, Debug, Args)]
pub(in crate::cmd) struct Poll {
    /// How soon a shard is looked into again in which something was due; default: as fits the store
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_first: Option<Duration>,
    /// How late a shard is looked into again in which nothing has been due for long; default: as fits the store
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_latest: Option<Duration>,
}

/// A worker that is set up as the command line says.
pub(in crate::cmd) fn builder(
    queue: &Queue,
    config: &Config,
    poll: &Poll,
    concurrency: usize,
    stop_limit: Duration,
) -> WorkerBuilder {
    let usual = WorkerSettings::for_store(queue.store().info().kind);
    let settings = WorkerSettings {
        concurrency,
        stop_limit,
        poll_first: poll.poll_first.unwrap_or(usual.poll_first),
        poll_latest: poll.poll_latest.unwrap_or(usual.poll_latest),
        ..usual
    };
    let mut builder = Worker::builder(queue)
        .settings(settings)
        .leasing(config.leasing());
    if let Some(url) = config.text("store") {
        builder = builder.url(url);
    }
    if let Some(name) = config.text("node") {
        builder = builder.name(name);
    }
    if let Some(path) = config.text("data") {
        builder = builder.data_dir(path);
    }
    builder
}

impl Work {
    pub(in crate::cmd) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        let command = find_command::find(self.exec)?;
        let queue = open(config, &self.queue).await?;
        let line = Arc::new(ProgressLine::new());
        let hurry = CancellationToken::new();
        let program = Program {
            command,
            who: Who::of(&queue),
            spawner: Spawner::begin()?,
            later: self.later,
            result_max: queue.settings().result_max,
            hurry: hurry.clone(),
            line: line.clone(),
        };
        let builder = builder(
            &queue,
            config,
            &self.poll,
            self.concurrency,
            self.stop_timeout,
        );
        let probes = Probes::begin(config, &queue).await;
        let probes = probes.map_err(|e| Exit::usage(e.to_string()))?;
        live(builder, program, &probes, &mut signals, hurry, &line).await
    }
}

/// Works until it is asked to stop.
async fn live<H: TaskHandler>(
    builder: WorkerBuilder,
    handler: H,
    probes: &Probes,
    signals: &mut Signals,
    hurry: CancellationToken,
    line: &ProgressLine,
) -> Result<ExitCode, Exit> {
    let worker = match signals.or(builder.start(handler)).await {
        Waited::Signal => return Ok(ExitCode::SUCCESS),
        Waited::Done(worker) => worker?,
    };
    probes.begun(&worker);
    line.say(&format!(
        "worker {} works on queue {}",
        worker.name(),
        worker.queue().name()
    ));
    let ended = async {
        tokio::select! {
            error = worker.ended() => error,
            never = line.keep(&worker) => match never {},
        }
    };
    match signals.or(ended).await {
        Waited::Done(error) => Err(error.into()),
        Waited::Signal => {
            let metrics = worker.metrics().clone();
            line.say(&format!(
                "stopping; {} tasks are being worked on",
                worker.running()
            ));
            stop(worker, signals, &hurry).await?;
            line.say(&status_line::summary(&metrics));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Stops in good order: at the first signal with all the time that was given, at the second without, at the third without
/// waiting for anything.
async fn stop(
    worker: Worker,
    signals: &mut Signals,
    hurry: &CancellationToken,
) -> Result<(), Exit> {
    let mut stopping = Box::pin(worker.stop());
    for _ in 0..2 {
        match signals.again_or(&mut stopping).await {
            Waited::Done(stopped) => return Ok(stopped?),
            Waited::Signal => hurry.cancel(),
        }
    }
    Err(unreleased())
}
