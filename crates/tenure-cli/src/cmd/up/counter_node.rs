//! `tenure __up-node`: a node whose shards count things.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tenure::{
    Grant, Handler, Hashed, Node, NodeEvent, PlanningSettings, Result, Seal, Shard, ShardId,
    ShardStep, SharedState,
};
use tokio::sync::oneshot;

use super::fenced_counters::{ChangeResult, CounterChange, FencedCounters};
use super::node_report::NodeReport;
use crate::config::duration;
use crate::exit::Exit;

/// The keyspace of the demonstration.
pub(super) const KEYSPACE: &str = "counters";
/// How often each shard changes a counter, how many it has, and how long changes gather before they are written.
const PACE: Duration = Duration::from_millis(50);
const KEYS: u64 = 10;
const GATHER: Duration = Duration::from_millis(25);

/// What `__up-node` is called with. It ends in good order when its standard input ends.
#[derive(Debug, clap::Args)]
pub(crate) struct UpNodeArgs {
    // Not called like the options that every command takes.
    #[arg(long = "at")]
    url: String,
    #[arg(long = "of")]
    of: String,
    #[arg(long)]
    node: String,
    #[arg(long)]
    shards: u32,
    #[arg(long)]
    data_dir: PathBuf,
    #[arg(long)]
    work: PathBuf,
    #[arg(long, value_parser = duration::parse)]
    ttl: Option<Duration>,
    #[arg(long)]
    trace: Option<PathBuf>,
}

/// A leader that does not keep people waiting: what comes back has its share again within moments.
fn lively() -> PlanningSettings {
    PlanningSettings {
        settle_time: Some(Duration::from_millis(250)),
        rejoin_after: Some(Duration::from_millis(500)),
        cool_down: Some(Duration::from_millis(500)),
        ..PlanningSettings::default()
    }
}

impl UpNodeArgs {
    pub(crate) async fn run(self) -> Result<ExitCode, Exit> {
        let mut ended = stdin_ended();
        let writer = Writer::begin(&self.work)?;
        let counters = Counters {
            writer: writer.clone(),
            node: self.node.clone(),
        };
        let mut builder = Node::builder(&self.url, &self.of)
            .name(&self.node)
            .data_dir(&self.data_dir)
            .plan(lively())
            .keyspace(KEYSPACE, Hashed(self.shards), counters);
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        if let Some(path) = self.trace {
            builder = builder.trace(path);
        }
        let started = tokio::select! {
            started = builder.start() => started,
            _ = &mut ended => return Ok(ExitCode::SUCCESS),
        };
        let node = started.map_err(|e| Exit::failed(e.to_string()))?;
        let mut notes = node.events();
        owned(&node).iter().for_each(tell);
        let telling = tokio::spawn(async move {
            loop {
                match notes.recv().await {
                    Ok(note) => news_of(&note).iter().for_each(tell),
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        tokio::select! {
            _ = ended => {}
            ended = node.ended() => ended.map_err(|e| Exit::failed(e.to_string()))?,
        }
        node.stop().await.map_err(|e| Exit::failed(e.to_string()))?;
        drop(node);
        let _ = telling.await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Resolves when nobody is left who wants this process to run.
fn stdin_ended() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = sender.send(());
    });
    receiver
}

/// Counts, once every so often per shard.
struct Counters {
    writer: Writer,
    node: String,
}

impl Handler for Counters {
    type State = u64;

    async fn load(&self, shard: &Shard) -> Result<u64> {
        // Fence first: whatever an earlier owner still has on its way is refused from here on.
        let (name, epoch) = (shard.name().to_string(), shard.epoch().0);
        match self
            .writer
            .ask(|done| Task::Fence(name, epoch, done))
            .await?
        {
            true => Ok(epoch.wrapping_mul(KEYS)),
            false => Err(format!(
                "the database has seen a newer epoch than {epoch}, so another node owns the shard"
            )
            .into()),
        }
    }

    async fn run(&self, grant: Grant, turn: SharedState<u64>) -> Result<()> {
        // Not all shards in one breath.
        let number = grant
            .shard()
            .shard
            .as_str()
            .parse::<u32>()
            .unwrap_or_default();
        let mut wait = PACE * (number % 16) / 16;
        loop {
            tokio::select! {
                () = grant.cancelled() => return Ok(()),
                () = tokio::time::sleep(wait) => wait = PACE,
            }
            let mut turn = turn.lock().await?;
            *turn = turn.wrapping_add(1);
            let shard = grant.shard().shard.to_string();
            grant.check()?;
            // Admitted; written a little later. A pause in between is what the epoch is for.
            self.writer.send(Task::Change(CounterChange {
                key: format!("{shard}.{}", *turn % KEYS),
                shard,
                epoch: grant.epoch().0,
                node: self.node.clone(),
            }));
        }
    }

    async fn seal(&self, _shard: &Shard, _turn: &mut u64) -> Result<Seal> {
        // P3: what was admitted is written before anybody else begins.
        self.writer.ask(Task::Flush).await?;
        Ok(Seal::default())
    }
}

enum Task {
    Change(CounterChange),
    Fence(String, u64, oneshot::Sender<bool>),
    Flush(oneshot::Sender<()>),
}

/// The way to the one thread that writes.
#[derive(Clone)]
struct Writer(Arc<Mutex<mpsc::Sender<Task>>>);

impl Writer {
    fn begin(work: &std::path::Path) -> Result<Self, Exit> {
        let trouble = |e: rusqlite::Error| {
            Exit::failed(format!(
                "database {} of the workload cannot be used: {e}",
                work.display()
            ))
        };
        let mut fenced = FencedCounters::open(work).map_err(trouble)?;
        let (sender, tasks) = mpsc::channel();
        thread::spawn(move || {
            while let Ok(first) = tasks.recv() {
                thread::sleep(GATHER);
                let batch = std::iter::once(first).chain(tasks.try_iter()).collect();
                if let Err(error) = write(&mut fenced, batch) {
                    tell(&NodeReport::Trouble(format!(
                        "counter changes are lost, because writing them to the database failed: {error}"
                    )));
                }
            }
        });
        Ok(Self(Arc::new(Mutex::new(sender))))
    }

    fn send(&self, task: Task) {
        let sender = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // The thread lives as long as this value.
        let _ = sender.send(task);
    }

    async fn ask<T>(&self, task: impl FnOnce(oneshot::Sender<T>) -> Task) -> Result<T> {
        let (sender, answer) = oneshot::channel();
        self.send(task(sender));
        Ok(answer.await?)
    }
}

fn write(fenced: &mut FencedCounters, batch: Vec<Task>) -> rusqlite::Result<()> {
    let mut changes = Vec::new();
    let mut waiting = Vec::new();
    for task in batch {
        match task {
            Task::Change(change) => changes.push(change),
            Task::Flush(done) => waiting.push(done),
            Task::Fence(shard, epoch, done) => {
                // What was admitted before goes before.
                report(fenced.apply(std::mem::take(&mut changes))?);
                let _ = done.send(fenced.fence(&shard, epoch)?);
            }
        }
    }
    report(fenced.apply(changes)?);
    for done in waiting {
        let _ = done.send(());
    }
    Ok(())
}

fn report(applied: ChangeResult) {
    if applied.made > 0 {
        tell(&NodeReport::Made(applied.made));
    }
    for (change, seen) in applied.refused {
        tell(&NodeReport::Refused {
            shard: change.shard,
            epoch: change.epoch,
            seen,
        });
    }
}

/// What the node has from its start, before anybody could listen.
fn owned(node: &Node) -> Vec<NodeReport> {
    let first = |shard: &ShardId| {
        let (epoch, _) = node.owner(shard)?;
        Some(NodeReport::Step {
            shard: shard.shard.as_str().parse().ok()?,
            step: ShardStep::Claimed.to_string(),
            epoch: epoch.0,
            from: None,
            reason: "start".to_owned(),
        })
    };
    node.owned().iter().filter_map(first).collect()
}

fn news_of(note: &NodeEvent) -> Option<NodeReport> {
    match note {
        NodeEvent::Shard(step) if step.step != ShardStep::Loading => Some(NodeReport::Step {
            shard: step.shard.shard.as_str().parse().ok()?,
            step: step.step.to_string(),
            epoch: step.epoch.0,
            from: step.from.as_ref().map(ToString::to_string),
            reason: step.reason.to_string(),
        }),
        NodeEvent::Lease { from, to } => Some(NodeReport::Lease(
            format!("lease {from:?} -> {to:?}").to_lowercase(),
        )),
        NodeEvent::SessionLost { reason, .. } => {
            Some(NodeReport::Lease(format!("session ended ({reason})")))
        }
        NodeEvent::ClockJump { gap } => Some(NodeReport::Lease(format!(
            "the process did not run for {gap:.1?}"
        ))),
        _ => None,
    }
}

fn tell(news: &NodeReport) {
    let line = serde_json::to_string(news).unwrap_or_default() + "\n";
    // Nobody listens any more: then this process is about to be told to end.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
