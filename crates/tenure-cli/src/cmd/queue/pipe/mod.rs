//! `tenure queue pipe`: lines of JSON on standard input and output, for clients of other languages.
//!
//! One process serves one client for as long as that lives. Requests are answered as they get ready, not in order. A worker
//! that the client asks for runs in here; the client gets tasks and says what became of them. When standard input ends, so
//! does this process, and what the client had not finished goes back at once.

mod execute_request;
mod handler;
mod messages;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::{Arc, mpsc as threads};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use tenure_queue::{Queue, Worker};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::open;
use crate::cmd::exec::{Signals, Waited};
use crate::cmd::worker::{PollIntervalArgs, ProbeServer, builder};
use crate::config::Config;
use crate::config::flags::WorkerFlags;
use crate::exit::Exit;
use handler::ClientTasks;
use messages::{ClientRequest, Operation, WireError};

/// The version of the protocol; it is raised when an old client would misunderstand a new pipe.
const PROTOCOL: u32 = 1;
/// Time that requests under way have to be answered after standard input has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How many requests wait to be looked at before the client has to.
const BACKLOG: usize = 1000;

/// Serve a client library over standard input and output (JSON lines)
#[derive(Debug, Args)]
#[command(
    after_help = "For client libraries, such as clients/python; docs/queue-pipe.md specifies the protocol. Exits when standard input\n\
    ends, and releases unfinished tasks.\n\n\
    Examples:\n  echo '{\"id\": 1, \"op\": \"stats\"}' | tenure queue pipe mails"
)]
pub(in crate::cmd) struct PipeCommand {
    /// Queue name
    queue: String,
    #[command(flatten)]
    poll: PollIntervalArgs,
    #[command(flatten)]
    pub(in crate::cmd) flags: WorkerFlags,
}

impl PipeCommand {
    pub(in crate::cmd) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        // Ctrl-C at a terminal reaches the client too: it decides what to do.
        let mut signals = Signals::without_interrupt()?;
        let queue = open(config, &self.queue).await?;
        let out = Out::begin();
        let mut lines = read_lines();
        out.send(&json!({
            "event": "hello", "protocol": PROTOCOL, "version": env!("CARGO_PKG_VERSION"),
            "queue": queue.name(), "cluster": queue.cluster(),
        }));
        let session = Arc::new(Session {
            desk: ClientTasks::new(out.clone()),
            worker: Mutex::new(None),
            config: config.clone(),
            poll: self.poll,
            queue,
            out,
        });
        // Requests under way, without those that wait for a task.
        let mut requests = JoinSet::new();
        while let Waited::Done(Some(line)) = signals.or(lines.recv()).await {
            let session = session.clone();
            while requests.try_join_next().is_some() {}
            // What concerns a task under way is done in the order of the lines; the rest may take its time.
            match serde_json::from_str::<ClientRequest>(&line) {
                Ok(request) if request.order.is_of_task() => session.desk.take(request.order),
                Ok(request) if matches!(request.order, Operation::Wait { .. }) => {
                    drop(tokio::spawn(async move { session.serve(request).await }));
                }
                Ok(request) => drop(requests.spawn(async move { session.serve(request).await })),
                Err(e) => session.refuse(&line, &e.to_string()),
            }
        }
        session.desk.hurry();
        // A client that only closed its end still reads the answers.
        let answered = async { while requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
        session.stop().await?;
        session.out.flush().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// What one client has.
struct Session {
    queue: Queue,
    config: Config,
    poll: PollIntervalArgs,
    desk: ClientTasks,
    worker: Mutex<Option<(Worker, ProbeServer)>>,
    out: Out,
}

impl Session {
    async fn serve(&self, request: ClientRequest) {
        let answer = match request.order {
            Operation::Work(work) => self.work(work).await,
            Operation::Stop {} => self.stop().await.map(|stopped| json!(stopped)),
            order => execute_request::answer(&self.queue, order).await,
        };
        match answer {
            Ok(value) => self.out.send(&json!({ "id": request.id, "ok": value })),
            Err(e) => self.out.send(&json!({ "id": request.id, "error": e })),
        }
    }

    /// A line that cannot be read is answered with its number, if it has one.
    fn refuse(&self, line: &str, reason: &str) {
        let id = serde_json::from_str::<serde_json::Value>(line).ok();
        let id = id.and_then(|value| value.get("id").cloned());
        let e = WireError::new("invalid", format!("invalid request: {reason}"));
        self.out.send(&json!({ "id": id, "error": e }));
    }

    async fn work(&self, work: messages::WorkOperation) -> Result<serde_json::Value, WireError> {
        let mut worker = self.worker.lock().await;
        if worker.is_some() {
            let reason = "this pipe already has a worker; a pipe has at most one";
            return Err(WireError::new("invalid", reason.to_owned()));
        }
        let limit = Duration::from_millis(work.stop_timeout_ms.unwrap_or(30_000));
        let concurrency = work.concurrency.unwrap_or(4);
        let set_up = builder(&self.queue, &self.config, &self.poll, concurrency, limit);
        let probes = ProbeServer::begin(&self.config, &self.queue).await;
        let probes = probes.map_err(|e| WireError::new("invalid", e.to_string()))?;
        let started = set_up.start(self.desk.clone()).await?;
        probes.begun(&started);
        let name = started.name().to_string();
        *worker = Some((started, probes));
        Ok(json!({ "worker": name }))
    }

    /// Stops the worker, if there is one; whether there was.
    async fn stop(&self) -> Result<bool, WireError> {
        match self.worker.lock().await.take() {
            Some((worker, _probes)) => {
                worker.stop().await?;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

/// Standard output, written by a thread of its own: a client that does not read holds up nothing but itself.
#[derive(Clone)]
struct Out(threads::Sender<Written>);

enum Written {
    Line(String),
    Flush(tokio::sync::oneshot::Sender<()>),
}

impl Out {
    fn begin() -> Self {
        let (sender, lines) = threads::channel();
        std::thread::spawn(move || {
            let mut out = io::stdout().lock();
            for written in lines {
                match written {
                    Written::Line(line) => {
                        let done = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                        if done.is_err() {
                            // Nobody reads any more: the end of standard input follows.
                            return;
                        }
                    }
                    Written::Flush(done) => drop(done.send(())),
                }
            }
        });
        Self(sender)
    }

    fn send(&self, value: &impl Serialize) {
        let line = serde_json::to_string(value).unwrap_or_default() + "\n";
        let _ = self.0.send(Written::Line(line));
    }

    /// Waits until all that was said is written.
    async fn flush(&self) {
        let (sender, done) = tokio::sync::oneshot::channel();
        let _ = self.0.send(Written::Flush(sender));
        let _ = done.await;
    }
}

/// The lines of standard input, read by a thread of their own.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(BACKLOG);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            match line {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => {
                    if sender.blocking_send(line).is_err() {
                        return;
                    }
                }
                Err(e) => {
                    eprintln!("error: standard input cannot be read: {e}");
                    return;
                }
            }
        }
    });
    lines
}
