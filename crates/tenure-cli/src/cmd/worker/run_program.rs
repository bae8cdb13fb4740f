//! Task handler of `tenure worker`: payload to standard input, standard output to result, exit code to outcome.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tenure_exec::{ProgramSpawner, RunningProgram};
use tenure_queue::{Job, Outcome, Payload, Queue, RetryAt, TaskFailure, TaskHandler};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::status_line::StatusLine;

/// Exit code of a command for a permanent failure: `EX_DATAERR`.
pub(super) const GIVE_UP: i32 = 65;
/// Exit code of a command that asks to be rescheduled: `EX_TEMPFAIL`.
pub(super) const LATER: i32 = 75;
/// How long a program has between SIGTERM and SIGKILL. Less than the worker gives its handlers, so that it is dead before
/// the task is anybody else's.
const GRACE: Duration = Duration::from_millis(700);
/// The most of one line on standard error that is looked at as such.
const LONGEST: u64 = 16 << 10;
/// How much of the last line becomes part of the reason of a failure.
const TOLD: usize = 400;
/// What a line begins with that says how far a program is.
const PROGRESS: &str = "tenure-progress ";

/// On whose behalf programs work.
pub(super) struct TaskOrigin {
    cluster: String,
    queue: String,
}

impl TaskOrigin {
    pub(super) fn of(queue: &Queue) -> Self {
        Self {
            cluster: queue.cluster().to_owned(),
            queue: queue.name().to_string(),
        }
    }
}

/// A program that is run for each task.
pub(super) struct TaskProgram {
    pub(super) command: Vec<OsString>,
    pub(super) who: TaskOrigin,
    pub(super) spawner: ProgramSpawner,
    pub(super) reschedule_delay: Duration,
    pub(super) result_max: usize,
    /// Everything is to end at once.
    pub(super) hurry: CancellationToken,
    pub(super) line: Arc<StatusLine>,
}

impl TaskHandler for TaskProgram {
    async fn handle(&self, job: Job) -> Result<Outcome, TaskFailure> {
        let started = self.spawner.start(&self.command, self.env(&job)).await;
        let mut running =
            started.map_err(|e| TaskFailure::new(format!("command cannot be started: {e}")))?;
        let (stdin, stdout, stderr) = match running.child() {
            Some(child) => (child.stdin.take(), child.stdout.take(), child.stderr.take()),
            None => (None, None, None),
        };
        let feeding = feed(stdin, job.payload().to_bytes());
        let output = collect(stdout, self.result_max);
        let words = listen(stderr, job.clone(), self.line.clone());
        let ended = self.see_through(running, &job);
        let ((), output, words, ended) = tokio::join!(feeding, output, words, ended);
        match ended {
            Ended::Hurried => Ok(Outcome::GiveBack),
            Ended::Killed => Err(TaskFailure::new(
                "command did not stop on SIGTERM and was killed",
            )),
            Ended::Exited(code) => self.outcome(code, output, &words),
            Ended::Unknown(reason) => Err(TaskFailure::new(reason)),
        }
    }
}

/// How a program ended.
enum Ended {
    /// By itself, or because it was asked to, with this code.
    Exited(i32),
    /// It did not stop when it was asked to.
    Killed,
    /// The worker has no more time.
    Hurried,
    /// Nobody knows.
    Unknown(String),
}

/// What a program wrote, or how much if that was too much.
enum Output {
    Whole(Vec<u8>),
    TooMuch(usize),
}

impl TaskProgram {
    fn env(&self, job: &Job) -> Vec<(&'static str, String)> {
        let meta = serde_json::to_string(job.metadata()).unwrap_or_default();
        let mut env = vec![
            ("TENURE_CLUSTER", self.who.cluster.clone()),
            ("TENURE_QUEUE", self.who.queue.clone()),
            ("TENURE_TASK_ID", job.id().to_string()),
            ("TENURE_TASK_ATTEMPT", job.attempt().to_string()),
            ("TENURE_TASK_CLAIM", job.claim().to_string()),
            ("TENURE_TASK_META", meta),
        ];
        let running = job.task().running();
        if let Some(deadline) = running.and_then(|running| running.deadline) {
            env.push(("TENURE_TASK_DEADLINE", deadline.to_string()));
        }
        if let Some(left) = job.time_left() {
            env.push(("TENURE_TASK_DEADLINE_MS", left.as_millis().to_string()));
        }
        env
    }

    /// Waits for the program's end, and sees to it when the attempt is to stop.
    async fn see_through(&self, mut running: RunningProgram, job: &Job) -> Ended {
        let hurried = tokio::select! {
            ended = running.ended() => return Ended::of(ended),
            () = job.cancelled() => false,
            () = self.hurry.cancelled() => true,
        };
        running.terminate();
        tokio::select! {
            ended = running.ended() => match Ended::of(ended) {
                // What it finished after all is finished.
                Ended::Exited(0) => Ended::Exited(0),
                _ if hurried => Ended::Hurried,
                ended => ended,
            },
            () = sleep(GRACE) => {
                running.kill().await;
                if hurried { Ended::Hurried } else { Ended::Killed }
            }
        }
    }

    fn outcome(&self, code: i32, output: Output, words: &str) -> Result<Outcome, TaskFailure> {
        let reason = || {
            let how = match code {
                126 | 127 => format!("command cannot be run (code {code})"),
                code if code > 128 => format!("command was killed by signal {}", code - 128),
                code => format!("command exited with code {code}"),
            };
            match words.is_empty() {
                true => how,
                false => format!("{how}: {words}"),
            }
        };
        match (code, output) {
            (0, Output::Whole(bytes)) => Ok(Outcome::Done(Payload::bytes(bytes))),
            (0, Output::TooMuch(size)) => Err(TaskFailure::for_good(format!(
                "result has {size} bytes, but the queue's limit is {}; store it elsewhere and print a reference",
                self.result_max
            ))),
            (LATER, _) => Ok(Outcome::Reschedule {
                at: RetryAt::In(self.reschedule_delay),
                note: Some(reason()),
            }),
            (GIVE_UP, _) => Err(TaskFailure::for_good(reason())),
            _ => Err(TaskFailure::new(reason())),
        }
    }
}

impl Ended {
    fn of(ended: std::io::Result<i32>) -> Self {
        match ended {
            Ok(code) => Self::Exited(code),
            Err(e) => Self::Unknown(format!("exit status of the command is unknown: {e}")),
        }
    }
}

/// Gives the program its input. One that does not read it is none the worse.
async fn feed(stdin: Option<ChildStdin>, bytes: Vec<u8>) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&bytes).await;
    }
}

/// Reads all that the program prints, and keeps as much as a result may take.
async fn collect(stdout: Option<impl AsyncRead + Unpin>, most: usize) -> Output {
    let Some(mut stdout) = stdout else {
        return Output::Whole(Vec::new());
    };
    let (mut kept, mut size, mut part) = (Vec::new(), 0, vec![0; 8 << 10]);
    while let Ok(n) = stdout.read(&mut part).await {
        if n == 0 {
            break;
        }
        size += n;
        if size <= most {
            kept.extend_from_slice(&part[..n]);
        }
    }
    match size <= most {
        true => Output::Whole(kept),
        false => Output::TooMuch(size),
    }
}

/// Passes on what the program says, notes how far it says that it is, and gives its last words.
async fn listen(stderr: Option<ChildStderr>, job: Job, line: Arc<StatusLine>) -> String {
    let Some(stderr) = stderr else {
        return String::new();
    };
    let (mut stderr, mut last) = (BufReader::new(stderr), String::new());
    loop {
        let mut bytes = Vec::new();
        match (&mut stderr)
            .take(LONGEST)
            .read_until(b'\n', &mut bytes)
            .await
        {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        if let Some((permille, note)) = text.strip_prefix(PROGRESS).and_then(progress) {
            job.report(permille, note);
            continue;
        }
        if !text.is_empty() {
            last = text.chars().take(TOLD).collect();
        }
        line.pass(&bytes);
    }
}

/// Reads `45% half way`, `45.5%`, or only words.
fn progress(text: &str) -> Option<(Option<u16>, String)> {
    let text = text.trim();
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    match first.strip_suffix('%').map(str::parse::<f64>) {
        Some(Ok(percent)) if (0.0..=100.0).contains(&percent) => Some((
            Some((percent * 10.0).round() as u16),
            rest.trim().to_owned(),
        )),
        Some(_) => None,
        None => (!text.is_empty()).then(|| (None, text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_percentage_with_words_or_only_words() {
        for (text, wanted) in [
            ("45% half way", Some((Some(450), "half way"))),
            ("45.5%", Some((Some(455), ""))),
            ("100% ", Some((Some(1000), ""))),
            ("nearly there", Some((None, "nearly there"))),
            ("145% more", None),
            ("x% more", None),
            ("", None),
        ] {
            let wanted = wanted.map(|(permille, note)| (permille, note.to_owned()));
            assert_eq!(progress(text), wanted, "{text}");
        }
    }
}
