//! A child for the tests of `tenure exec`: logs every few milliseconds that it is alive, in the format of the judge.
//!
//! With `--lock` it is the baseline that the tests compare with: it works under a lock with a ttl.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser as _;
use serde::Serialize;
use tenure::{Clock, Time};
use tenure_console::duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use fence::Fence;
use ttl_lock::PlainLock;

mod fence;
mod ttl_lock;

/// Arguments of the program.
#[derive(Debug, clap::Parser)]
struct Beat {
    /// Where the log goes, as PID.jsonl.
    dir: PathBuf,
    /// The time between two lines.
    #[arg(long, default_value = "5ms", value_parser = duration::parse)]
    every: Duration,
    /// Goes on after SIGTERM.
    #[arg(long)]
    ignore_term: bool,
    /// Starts another one, which says that it works on `grand/SHARD`.
    #[arg(long)]
    grandchild: bool,
    /// Leaves the session, as daemons do.
    #[arg(long)]
    own_session: bool,
    /// Works under a lock with a ttl in this file instead of under a grant.
    #[arg(long)]
    lock: Option<PathBuf>,
    /// The ttl of that lock.
    #[arg(long, default_value = "1s", value_parser = duration::parse)]
    lock_ttl: Duration,
    /// Each line is a change that others can see.
    #[arg(long)]
    effects: bool,
    /// Each change is made only if this database has seen no newer epoch.
    #[arg(long)]
    fence: Option<PathBuf>,
}

#[derive(Serialize)]
struct Line<'a> {
    t: u64,
    pid: u32,
    shard: &'a str,
    epoch: u64,
    ev: &'a str,
    node: &'a str,
}

struct Log {
    file: File,
    pid: u32,
    shard: String,
    epoch: u64,
    node: String,
}

impl Log {
    fn write(&mut self, ev: &str, t: u64) -> io::Result<()> {
        let line = Line {
            t,
            pid: self.pid,
            shard: &self.shard,
            epoch: self.epoch,
            ev,
            node: &self.node,
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.file.write_all(&text)
    }

    fn now(&mut self, ev: &str) -> io::Result<()> {
        self.write(ev, boot_now().0)
    }
}

fn main() -> ExitCode {
    let beat = Beat::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(beat.run())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Time of the machine's boot-time clock.
fn boot_now() -> Time {
    Clock::boot().now()
}

impl Beat {
    async fn run(self) -> io::Result<()> {
        let mut term = signal(SignalKind::terminate())?;
        if self.own_session {
            rustix::process::setsid()?;
        }
        let mut lock = match &self.lock {
            Some(path) => Some(PlainLock::open(path, self.lock_ttl)?),
            None => None,
        };
        let epoch = match &mut lock {
            Some(lock) => take(lock).await?,
            None => number("TENURE_EPOCH")?,
        };
        let mut fenced = match &self.fence {
            Some(path) => Some(Fence::open(path).map_err(io::Error::other)?),
            None => None,
        };
        let mut log = self.log(epoch)?;
        match &mut fenced {
            None => log.now("start")?,
            // Fence first: from here on, whatever an earlier owner still has on its way is refused.
            Some(fenced) => match under(fenced, &log)? {
                Some(t) => log.write("start", t)?,
                None => return Ok(()),
            },
        }
        if self.grandchild {
            self.fork()?;
        }
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = boot_now();
        loop {
            tokio::select! {
                _ = term.recv(), if !self.ignore_term => break,
                _ = ticks.tick() => {}
            }
            match &mut fenced {
                None => log.now(if self.effects { "effect" } else { "beat" })?,
                Some(fenced) => match under(fenced, &log)? {
                    Some(t) => log.write("effect", t)?,
                    // Refused: somebody newer is at work, so this process has nothing left to do.
                    None => return Ok(()),
                },
            }
            if let Some(lock) = &mut lock
                && boot_now().since(renewed) >= self.lock_ttl / 3
            {
                if !lock.renew()? {
                    return Ok(());
                }
                renewed = boot_now();
            }
        }
        log.now("end")
    }

    fn log(&self, epoch: u64) -> io::Result<Log> {
        let pid = std::process::id();
        let path = self.dir.join(format!("{pid}-{epoch}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (keyspace, shard) = (text("TENURE_KEYSPACE")?, text("TENURE_SHARD")?);
        Ok(Log {
            file,
            pid,
            shard: format!("{keyspace}/{shard}"),
            epoch,
            node: text("TENURE_NODE")?,
        })
    }

    fn fork(&self) -> io::Result<()> {
        let mut grandchild = Command::new(std::env::current_exe()?);
        grandchild
            .arg(&self.dir)
            .args(["--ignore-term", "--own-session"])
            .env("TENURE_KEYSPACE", "grand")
            .stdin(Stdio::null());
        // Nobody waits for it: that is the point.
        grandchild.spawn().map(drop)
    }
}

/// The time at which the resource took a change, within its transaction; `None` if it has seen a newer epoch.
fn under(fenced: &mut Fence, log: &Log) -> io::Result<Option<u64>> {
    let made = fenced.under(&log.shard, log.epoch, || boot_now().0);
    made.map_err(io::Error::other)
}

async fn take(lock: &mut PlainLock) -> io::Result<u64> {
    loop {
        if let Some(epoch) = lock.try_take()? {
            return Ok(epoch);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn text(name: &str) -> io::Result<String> {
    std::env::var(name)
        .map_err(|e| io::Error::other(format!("environment variable {name} cannot be read: {e}")))
}

fn number(name: &str) -> io::Result<u64> {
    let text = text(name)?;
    text.parse().map_err(|e| {
        io::Error::other(format!(
            "environment variable {name} is {text:?}, which is not a number: {e}"
        ))
    })
}
