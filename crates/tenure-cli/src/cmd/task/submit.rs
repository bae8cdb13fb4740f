//! `tenure task submit`: one task from arguments or a file, or many as JSON lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_queue::{NewTask, Payload, Queue, QueueError, QueueSettings, StoreTime, SubmittedTask};

use super::print_result;
use super::task_json::{self, TaskJson};
use crate::cmd::queue::{metadata, open, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Number of lines submitted together.
const BATCH: usize = 500;

/// Submit a task, or many with --batch
#[derive(Debug, Args)]
#[command(
    after_help = "Prints the id of each task. If a task with the same idempotency key exists, that task is returned instead.\n\n\
    Each line of the --batch file is a JSON object; all fields are optional: payload (any JSON), text, base64 or ref; key,\n\
    priority, delay_ms or at, attempt_timeout_ms, claim_timeout_ms, max_attempts, retry_delay_ms, retry_delay_max_ms,\n\
    meta.\n\
    With --wait-timeout, prints the result; the exit code is 1 if the task ended without one, or not in time.\n\n\
    Examples:\n  \
    tenure task submit mails 'to: bob' --idempotency-key welcome-bob --delay 5m\n  \
    tenure task submit sums '[1,2,3]' --payload-json --wait-timeout 30s\n  \
    seq -f '{\"payload\": %g}' 1000 | tenure task submit sums --batch -"
)]
pub(super) struct SubmitCommand {
    /// Queue name
    queue: String,
    /// Payload, as text
    #[arg(conflicts_with_all = ["payload_file", "batch", "payload_ref"])]
    payload: Option<String>,
    /// Wait up to this long for the result; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "0s", conflicts_with = "batch", value_parser = duration::parse)]
    wait_timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read the payload from a file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["batch", "payload_ref"], help_heading = "Payload")]
    payload_file: Option<PathBuf>,
    /// Submit a reference to the payload, such as a URL, that the worker's command resolves
    #[arg(
        long,
        value_name = "REF",
        conflicts_with = "batch",
        help_heading = "Payload"
    )]
    payload_ref: Option<String>,
    /// Parse the payload as JSON and store it as JSON
    #[arg(long, conflicts_with_all = ["batch", "payload_ref"], help_heading = "Payload")]
    payload_json: bool,
    /// Submit many tasks, one JSON object per line of a file; - is standard input
    #[arg(long, value_name = "FILE", help_heading = "Payload")]
    batch: Option<PathBuf>,
    #[command(flatten)]
    options: TaskOptions,
}

/// Options of a single task.
#[derive(Debug, Args)]
#[command(next_help_heading = "Task options")]
struct TaskOptions {
    /// Submit nothing if a task with this key exists
    #[arg(long, value_name = "KEY", conflicts_with = "batch")]
    idempotency_key: Option<String>,
    /// Priority from 0 to 9; due tasks with a higher priority are claimed first [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    priority: Option<u8>,
    /// Execute the task no earlier than this time from now
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["batch", "at"])]
    delay: Option<Duration>,
    /// Execute the task no earlier than this time, such as 2026-11-16T09:30:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "batch")]
    at: Option<StoreTime>,
    /// Maximum duration of one attempt [default: setting of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "batch")]
    attempt_timeout: Option<Duration>,
    /// Time after which the task is claimed again if its worker has died [default: setting of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "batch")]
    claim_timeout: Option<Duration>,
    /// Number of attempts before the task becomes a dead letter [default: setting of the queue]
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    max_attempts: Option<u32>,
    /// Delay after the first failed attempt, doubled after each further one [default: setting of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "batch")]
    retry_delay: Option<Duration>,
    /// Maximum delay after a failed attempt [default: setting of the queue]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "batch")]
    retry_delay_max: Option<Duration>,
    /// Metadata stored with the task, to find it by; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = metadata, conflicts_with = "batch")]
    metadata: Vec<(String, String)>,
}

impl TaskOptions {
    fn apply(&self, mut submit: NewTask, queue: &QueueSettings) -> NewTask {
        if let Some(key) = &self.idempotency_key {
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
        if let Some(timeout) = self.attempt_timeout {
            submit = submit.timeout(timeout);
        }
        if let Some(timeout) = self.claim_timeout {
            submit = submit.lease(timeout);
        }
        if self.retry_delay.is_some() || self.retry_delay_max.is_some() {
            submit = submit.retry(task_json::retry(
                queue.retry,
                self.retry_delay,
                self.retry_delay_max,
            ));
        }
        if let Some(attempts) = self.max_attempts {
            submit = submit.attempts(attempts);
        }
        for (name, value) in &self.metadata {
            submit = submit.meta(name, value);
        }
        submit
    }
}

impl SubmitCommand {
    pub(super) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        if let Some(file) = &self.batch {
            let queue = open(config, &self.queue).await?;
            return self.batch(&queue, file).await;
        }
        let submit = NewTask::new(self.payload()?);
        let queue = open(config, &self.queue).await?;
        let submit = self.options.apply(submit, &queue.settings());
        let submitted = queue.submit(submit).await?;
        if self.wait_timeout.is_zero() {
            self.print(&submitted);
            return Ok(ExitCode::SUCCESS);
        }
        self.wait(&queue, &submitted).await
    }

    fn payload(&self) -> Result<Payload, Exit> {
        let bytes = match (&self.payload, &self.payload_file, &self.payload_ref) {
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
                    "no payload; give PAYLOAD, --payload-file, --payload-ref or --batch",
                ));
            }
        };
        match self.payload_json {
            false => Ok(Payload::bytes(bytes)),
            true => {
                let value = serde_json::from_slice(&bytes);
                let value = value.map_err(|e| Exit::usage(format!("payload is not JSON: {e}")))?;
                Ok(Payload::Json(value))
            }
        }
    }

    fn print(&self, submitted: &SubmittedTask) {
        if submitted.differs {
            eprintln!(
                "warning: task {} exists with a different payload, which is unchanged",
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

    async fn wait(&self, queue: &Queue, submitted: &SubmittedTask) -> Result<ExitCode, Exit> {
        let id = &submitted.id;
        eprintln!("task {id} submitted");
        let work = async { Ok(queue.wait(id, self.wait_timeout).await?) };
        let left = || {
            format!(
                "task {id} continues; `tenure task wait {} {id}` waits for it",
                self.queue
            )
        };
        let task = or_interrupted(work, left).await?;
        if self.json {
            stdout::json(&task);
        }
        print_result(&task, !self.json)
    }

    async fn batch(&self, queue: &Queue, file: &Path) -> Result<ExitCode, Exit> {
        let done = AtomicU64::new(0);
        let work = self.submit_lines(queue, file, &done);
        let left = || {
            let done = done.load(Ordering::Relaxed);
            format!("{done} tasks submitted; those with an idempotency key can be submitted again")
        };
        let failed = or_interrupted(work, left).await?;
        let done = done.load(Ordering::Relaxed);
        eprintln!("queue {}: {done} tasks submitted", queue.name());
        match failed {
            0 => Ok(ExitCode::SUCCESS),
            failed => Err(Exit::failed(format!(
                "{failed} tasks were not submitted; each is listed above with its \
                reason"
            ))),
        }
    }

    /// Returns the number of invalid lines, each of which is reported.
    async fn submit_lines(
        &self,
        queue: &Queue,
        file: &Path,
        done: &AtomicU64,
    ) -> Result<u64, Exit> {
        let mut lines = input(file)?.lines().enumerate();
        let (retry, mut failed) = (queue.settings().retry, 0);
        let mut report = |number: usize, reason: &str| {
            eprintln!("error: {}, line {number}: {reason}", file.display());
            failed += 1;
        };
        loop {
            let (mut numbers, mut batch) = (Vec::new(), Vec::new());
            for (n, line) in lines.by_ref() {
                let line = line.map_err(|e| unreadable(file, &e))?;
                if line.trim().is_empty() {
                    continue;
                }
                match TaskJson::parse(&line).and_then(|spec| spec.submit(retry)) {
                    Ok(submit) => {
                        numbers.push(n + 1);
                        batch.push(submit);
                    }
                    Err(reason) => report(n + 1, &reason),
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
                        self.print(&submitted);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    // The rest would fail in the same way.
                    Err(QueueError::Store(e)) => return Err(e.into()),
                    Err(e) => report(number, &e.to_string()),
                }
            }
        }
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
