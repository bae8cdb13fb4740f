//! `tenure worker`: executes the tasks of a queue, one process per attempt.

mod probes;
mod run_program;
mod status_line;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure_exec::ProgramSpawner;
use tenure_queue::{Queue, QueueError, TaskHandler, Worker, WorkerBuilder, WorkerSettings};
use tokio_util::sync::CancellationToken;

use super::queue::open;
use crate::cli::Global;
use crate::cmd::exec::{Signals, Waited, find_command, unreleased};
use crate::config::flags::WorkerFlags;
use crate::config::settings_table::SettingDefinition;
use crate::config::{Config, duration};
use crate::exit::Exit;
pub(in crate::cmd) use probes::ProbeServer;
use run_program::{TaskOrigin, TaskProgram};
use status_line::StatusLine;

/// Execute the tasks of a queue, running a command for each attempt
#[derive(Debug, Args)]
#[command(
    after_help = "The command reads the payload from standard input; its standard output becomes the result, and its standard error is\n\
    forwarded. TENURE_TASK_ID, _ATTEMPT, _CLAIM, _META, _DEADLINE and _DEADLINE_MS are in its environment.\n\n\
    Exit codes of the command: 0 task done · 65 dead letter, no retry · 75 retry after --reschedule-delay, not counted\n\
    as a failure · any other code or a signal: failed attempt, retried according to the settings of the task.\n\
    A line `tenure-progress 45% half way` on standard error reports progress.\n\n\
    On SIGTERM or Ctrl-C the worker claims no more tasks and waits up to --stop-timeout for running commands. The rest get\n\
    SIGTERM, then SIGKILL, and their tasks are released. A second signal skips the wait. No command outlives the worker.\n\n\
    Examples:\n  \
    tenure worker mails --concurrency 8 -- ./send-mail --fast\n  \
    tenure worker mails --node w1 --data-dir /var/lib/w1 -- ./send-mail\n  \
    tenure worker sums -- sh -c 'jq add'"
)]
pub(crate) struct WorkerCommand {
    /// Queue name
    queue: String,
    /// Maximum number of tasks executed at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    concurrency: usize,
    /// Time for running commands to finish when the worker stops
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    stop_timeout: Duration,
    /// Delay before the retry of a task whose command exited with code 75
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    reschedule_delay: Duration,
    #[command(flatten)]
    poll: PollIntervalArgs,
    #[command(flatten)]
    flags: WorkerFlags,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Poll intervals of a worker.
#[derive(Clone, Debug, Args)]
pub(in crate::cmd) struct PollIntervalArgs {
    /// Shortest interval between two polls of a shard, used after tasks were found [default: depends on the store]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_min: Option<Duration>,
    /// Longest interval between two polls of a shard, used while there are no tasks [default: depends on the store]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_max: Option<Duration>,
}

/// Sets up a worker from the command line and the configuration.
pub(in crate::cmd) fn builder(
    queue: &Queue,
    config: &Config,
    poll: &PollIntervalArgs,
    concurrency: usize,
    stop_limit: Duration,
) -> WorkerBuilder {
    let usual = WorkerSettings::for_store(queue.store().info().kind);
    let settings = WorkerSettings {
        concurrency,
        stop_limit,
        poll_first: poll.poll_min.unwrap_or(usual.poll_first),
        poll_latest: poll.poll_max.unwrap_or(usual.poll_latest),
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
    if let Some(path) = config.text("data_dir") {
        builder = builder.data_dir(path);
    }
    builder
}

impl WorkerCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone(), SettingDefinition::is_workers)
    }

    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        let command = find_command(self.command)?;
        let queue = open(config, &self.queue).await?;
        let line = Arc::new(StatusLine::new());
        let hurry = CancellationToken::new();
        let program = TaskProgram {
            command,
            who: TaskOrigin::of(&queue),
            spawner: ProgramSpawner::begin()
                .map_err(|e| Exit::failed(format!("no thread can be started: {e}")))?,
            reschedule_delay: self.reschedule_delay,
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
        let probes = ProbeServer::begin(config, &queue).await;
        let probes = probes.map_err(|e| Exit::usage(e.to_string()))?;
        live(builder, program, &probes, &mut signals, hurry, &line).await
    }
}

/// Runs until a signal, the deletion of the queue, or a failure of the worker's node.
async fn live<H: TaskHandler>(
    builder: WorkerBuilder,
    handler: H,
    probes: &ProbeServer,
    signals: &mut Signals,
    hurry: CancellationToken,
    line: &StatusLine,
) -> Result<ExitCode, Exit> {
    let worker = match signals.or(builder.start(handler)).await {
        Waited::Signal => return Ok(ExitCode::SUCCESS),
        Waited::Done(worker) => worker?,
    };
    probes.begun(&worker);
    line.say(&format!(
        "worker {} started on queue {}",
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
        Waited::Done(error @ QueueError::Deleted(_)) => {
            line.say(&format!(
                "queue deleted; stopping, {} tasks running",
                worker.running()
            ));
            stop(worker, signals, &hurry).await?;
            Err(error.into())
        }
        Waited::Done(error) => Err(error.into()),
        Waited::Signal => {
            let metrics = worker.metrics().clone();
            line.say(&format!("stopping; {} tasks running", worker.running()));
            stop(worker, signals, &hurry).await?;
            line.say(&status_line::summary(&metrics));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Stops the worker: waits for running commands after the first signal, ends them after the second, and exits without
/// waiting for anything after the third.
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
