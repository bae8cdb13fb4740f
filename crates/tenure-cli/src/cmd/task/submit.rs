//! `tenure queue submit`: tasks from arguments, a file, or many lines of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_queue::{Payload, Queue, QueueError, State, StoreTime, Submit, Submitted, Task};

use super::task_json::{self, TaskSpec};
use super::{meta, open, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// How many lines are submitted together.
const BATCH: usize = 500;

/// Submit a task, or many
#[derive(Debug, Args)]
#[command(
    after_help = "Prints the id of each task. What is submitted with a key that is taken already is the task that is there.\n\n\
    Each line of --from is an object; all of it may be left out: payload (any JSON) or text, base64 or ref; key,\n\
    priority, delay_ms or at, timeout_ms, lease_ms, attempts, retry_first_ms, retry_longest_ms, meta.\n\
    With --wait the result goes to standard output; exit code 1 if the task ended without one, or not in time.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop queue submit mails 'to: bob' --key welcome-bob --delay 5m\n  \
    tenure --store sqlite:shop.db --cluster shop queue submit sums '[1,2,3]' --as-json --wait 30s\n  \
    seq -f '{\"payload\": %g}' 1000 | tenure --store sqlite:shop.db --cluster shop queue submit sums --from -"
)]
pub(super) struct SubmitCommand {
    /// The queue
    queue: String,
    /// What the task carries, as text
    #[arg(conflicts_with_all = ["file", "from", "reference"])]
    payload: Option<String>,
    /// A file with what the task carries; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "reference"])]
    file: Option<PathBuf>,
    /// Where what the task carries stands: a URL or a key that only its handler understands
    #[arg(
        long = "ref",
        value_name = "PLACE",
        conflicts_with = "from",
        id = "reference"
    )]
    reference: Option<String>,
    /// Many tasks: a file with one on each line, as JSON; - is standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// What the task carries is JSON, and is kept as such
    #[arg(long, conflicts_with_all = ["from", "reference"])]
    as_json: bool,
    #[command(flatten)]
    how: How,
    /// Wait for the result, for so long at most
    #[arg(long, value_name = "DURATION", conflicts_with = "from", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How a single task is to be handled.
#[derive(Debug, Args)]
struct How {
    /// The idempotency key: as long as a task with it is kept, it is not submitted again
    #[arg(long, value_name = "TEXT", conflicts_with = "from")]
    key: Option<String>,
    /// From 0 to 9; of the tasks that are due, those with the greatest come first; default: 5
    #[arg(long, value_name = "N", conflicts_with = "from")]
    priority: Option<u8>,
    /// Not before so long from now
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["from", "at"])]
    delay: Option<Duration>,
    /// Not before this time, such as 2026-11-16T09:30:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "from")]
    at: Option<StoreTime>,
    /// How long one attempt may take
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    timeout: Option<Duration>,
    /// How long a claim is good without being extended
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    lease: Option<Duration>,
    /// How often it is tried
    #[arg(long, value_name = "N", conflicts_with = "from")]
    attempts: Option<u32>,
    /// The wait after the first failure; it doubles with each
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    retry_first: Option<Duration>,
    /// The longest wait after a failure
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    retry_longest: Option<Duration>,
    /// Something to find it by; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = meta, conflicts_with = "from")]
    meta: Vec<(String, String)>,
}

impl How {
    fn apply(&self, mut submit: Submit) -> Submit {
        if let Some(key) = &self.key {
            submit = submit.key(key);
        }
        if let Some(priority) = self.priority {
            submit = submit.priority(priority);
        }
        if let Some(delay) = self.delay {
            submit = submit.delay(delay);
        }
        if let Some(at) = self.at {
            submit = submit.at(at);
        }
        if let Some(timeout) = self.timeout {
            submit = submit.timeout(timeout);
        }
        if let Some(lease) = self.lease {
            submit = submit.lease(lease);
        }
        if self.retry_first.is_some() || self.retry_longest.is_some() {
            submit = submit.retry(task_json::retry(self.retry_first, self.retry_longest));
        }
        if let Some(attempts) = self.attempts {
            submit = submit.attempts(attempts);
        }
        for (name, value) in &self.meta {
            submit = submit.meta(name, value);
        }
        submit
    }
}

impl SubmitCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        if let Some(from) = &self.from {
            let queue = open(config, &self.queue).await?;
            return self.many(&queue, from).await;
        }
        let submit = self.how.apply(Submit::new(self.payload()?));
        let queue = open(config, &self.queue).await?;
        let submitted = queue.submit(submit).await?;
        match self.wait {
            None => {
                self.told(&submitted);
                Ok(ExitCode::SUCCESS)
            }
            Some(limit) => self.wait(&queue, &submitted, limit).await,
        }
    }

    fn payload(&self) -> Result<Payload, Exit> {
        let bytes = match (&self.payload, &self.file, &self.reference) {
            (_, _, Some(reference)) => return Ok(Payload::Ref(reference.clone())),
            (Some(text), _, _) => text.clone().into_bytes(),
            (None, Some(path), _) => {
                let mut bytes = Vec::new();
                let read = input(path)?.read_to_end(&mut bytes);
                read.map_err(|e| unreadable(path, &e))?;
                bytes
            }
            (None, None, None) => {
                return Err(Exit::usage(
                    "nothing to submit; give PAYLOAD, --file, --ref or --from",
                ));
            }
        };
        match self.as_json {
            false => Ok(Payload::bytes(bytes)),
            true => {
                let value = serde_json::from_slice(&bytes);
                let value =
                    value.map_err(|e| Exit::usage(format!("the payload is no JSON: {e}")))?;
                Ok(Payload::Json(value))
            }
        }
    }

    fn told(&self, submitted: &Submitted) {
        if submitted.differs {
            eprintln!(
                "warning: task {} was there already and carries something else; it stays as it is",
                submitted.id
            );
        }
        match self.json {
            true => stdout::json_line(&json!({
                "id": submitted.id, "created": submitted.created, "differs": submitted.differs,
            })),
            false => stdout::line(submitted.id.as_str()),
        }
    }

    async fn wait(
        &self,
        queue: &Queue,
        submitted: &Submitted,
        limit: Duration,
    ) -> Result<ExitCode, Exit> {
        let id = &submitted.id;
        eprintln!("task {id} is submitted");
        let work = async { Ok(queue.wait(id, limit).await?) };
        let left = || format!("task {id} goes on; `tenure queue show` tells what became of it");
        let task = or_interrupted(work, left).await?;
        if self.json {
            stdout::json(&task);
        }
        finish(&task, !self.json)
    }

    async fn many(&self, queue: &Queue, from: &Path) -> Result<ExitCode, Exit> {
        let done = AtomicU64::new(0);
        let work = self.submit_lines(queue, from, &done);
        let left = || {
            let done = done.load(Ordering::Relaxed);
            format!("{done} tasks are submitted; those with a key can be submitted again")
        };
        let failed = or_interrupted(work, left).await?;
        let done = done.load(Ordering::Relaxed);
        eprintln!("queue {}: {done} tasks are submitted", queue.name());
        match failed {
            0 => Ok(ExitCode::SUCCESS),
            failed => Err(Exit::failed(format!("{failed} tasks are not submitted"))),
        }
    }

    /// Gives how many lines were no good, each of which was told.
    async fn submit_lines(
        &self,
        queue: &Queue,
        from: &Path,
        done: &AtomicU64,
    ) -> Result<u64, Exit> {
        let mut lines = input(from)?.lines().enumerate();
        let mut failed = 0;
        let mut complain = |number: usize, why: &str| {
            eprintln!("error: {}, line {number}: {why}", from.display());
            failed += 1;
        };
        loop {
            let (mut numbers, mut batch) = (Vec::new(), Vec::new());
            for (n, line) in lines.by_ref() {
                let line = line.map_err(|e| unreadable(from, &e))?;
                if line.trim().is_empty() {
                    continue;
                }
                match TaskSpec::parse(&line).and_then(TaskSpec::submit) {
                    Ok(submit) => {
                        numbers.push(n + 1);
                        batch.push(submit);
                    }
                    Err(why) => complain(n + 1, &why),
                }
                if batch.len() >= BATCH {
                    break;
                }
            }
            if batch.is_empty() {
                return Ok(failed);
            }
            let answers = queue.submit_many(batch).await;
            for (number, answer) in numbers.into_iter().zip(answers) {
                match answer {
                    Ok(submitted) => {
                        self.told(&submitted);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    // Nothing that follows would fare better.
                    Err(QueueError::Store(e)) => return Err(e.into()),
                    Err(e) => complain(number, &e.to_string()),
                }
            }
        }
    }
}

/// The exit code of a task that has ended, and its result if wanted.
pub(super) fn finish(task: &Task, print: bool) -> Result<ExitCode, Exit> {
    match &task.state {
        State::Done { result, .. } => {
            if print {
                let mut bytes = result.to_bytes();
                if !bytes.ends_with(b"\n") {
                    bytes.push(b'\n');
                }
                stdout::bytes(&bytes);
            }
            Ok(ExitCode::SUCCESS)
        }
        State::Dead { why, .. } => Err(Exit::failed(format!(
            "task {} is a dead letter after {} attempts: {why}",
            task.id, task.attempts
        ))),
        state => Err(Exit::failed(format!("task {} is {}", task.id, state.is()))),
    }
}

fn input(path: &Path) -> Result<Box<dyn BufRead>, Exit> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).map_err(|e| unreadable(path, &e))?;
    Ok(Box::new(BufReader::new(file)))
}

fn unreadable(path: &Path, error: &io::Error) -> Exit {
    Exit::usage(format!("{} cannot be read: {error}", path.display()))
}
