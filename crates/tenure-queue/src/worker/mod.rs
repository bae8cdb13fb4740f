//! A worker: finds tasks that are due, claims them, and sees each attempt through.
//!
//! | file | what |
//! |---|---|
//! | `context.rs` | what all parts share |
//! | `shard_owner.rs` | owning shards through a node of Tenure's |
//! | `poll.rs` | the loop that looks for tasks, and how often |
//! | `claim.rs` | claiming what was found |
//! | `attempt.rs` | one attempt: its handler, its claim, its time; `outcome.rs` how it ends |
//! | `health.rs` | how it stands, for probes and metrics |
//! | `maintenance.rs` | what an owner does beside: claims that ran out, tasks that no index leads to, old ones, schedules |
//! | `index_writer.rs` | writes entries of indexes behind the attempts' backs |

mod attempt;
mod claim;
mod context;
mod health;
mod index_writer;
mod maintenance;
mod outcome;
mod poll;
mod shard_owner;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure::{AssignedBy, Builder, Hashed, Node};
use tokio::task::JoinHandle;

use crate::error::QueueError;
use crate::handler::TaskHandler;
use crate::ids::WorkerName;
use crate::metrics::Metrics;
use crate::ownership::OwnershipSettings;
use crate::queue::{KEYSPACE, Queue};
use context::WorkerContext;
pub use context::WorkerSettings;
pub use health::WorkerHealth;
use shard_owner::WorkerShardHandler;

/// A worker that is being set up.
#[must_use = "a builder does nothing before `start`"]
pub struct WorkerBuilder {
    queue: Queue,
    name: Option<String>,
    settings: WorkerSettings,
    leasing: OwnershipSettings,
    url: Option<String>,
    data_dir: Option<PathBuf>,
    node: Option<SetUp>,
}

type SetUp = Box<dyn FnOnce(Builder) -> Builder + Send>;

/// A running worker.
///
/// [`Worker::stop`] ends it in good order. If it is dropped without that it ends abruptly: its attempts are dropped, and
/// others take its tasks when their claims have run out, as after a crash.
pub struct Worker {
    engine: Arc<WorkerContext>,
    node: Option<Node>,
    /// The loop that claims.
    claims: JoinHandle<()>,
    loops: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Sets up a worker on a queue.
    pub fn builder(queue: &Queue) -> WorkerBuilder {
        WorkerBuilder {
            queue: queue.clone(),
            name: None,
            settings: WorkerSettings::for_store(queue.store().info().kind),
            leasing: OwnershipSettings::default(),
            url: None,
            data_dir: None,
            node: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &WorkerName {
        &self.engine.name
    }

    /// The queue that it works on.
    pub fn queue(&self) -> &Queue {
        &self.engine.queue
    }

    /// The node that owns shards for it; none if leasing is off.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The shards that it looks into alone, by number. Empty if leasing is off.
    pub fn shards(&self) -> Vec<u32> {
        self.engine.owned_shards()
    }

    /// How many tasks it works on now.
    pub fn running(&self) -> usize {
        self.engine.active()
    }

    /// What this process has done for the queue, with all of its workers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.engine.shelf.metrics
    }

    /// How it stands and what it has done, for a [`tenure::MetricsServer`].
    pub fn health(&self) -> WorkerHealth {
        WorkerHealth {
            engine: self.engine.clone(),
            node: self.node.as_ref().map(|node| node.metrics().clone()),
        }
    }

    /// Ends the worker: claims nothing more, gives its shards to others at once, lets what is running go on for as long as
    /// `stop_limit` says, and gives back what has not finished then.
    pub async fn stop(mut self) -> Result<(), QueueError> {
        self.engine.stop.cancel();
        let released = match self.node.take() {
            Some(node) => node.stop().await.map_err(|e| e.to_string()),
            None => Ok(()),
        };
        // A claim under way is seen through: if it is won, its attempt is among those that are waited for.
        let _ = tokio::time::timeout(context::ABORT_LIMIT, &mut self.claims).await;
        if !self
            .engine
            .idle_within(self.engine.settings.stop_limit)
            .await
        {
            self.engine.abort.cancel();
            self.engine.idle_within(context::ABORT_LIMIT).await;
        }
        self.engine.clerk.flushed().await;
        for running in self.loops.drain(..) {
            running.abort();
        }
        released.map_err(QueueError::Node)
    }

    /// Waits until the worker cannot go on although nobody stopped it: the queue was deleted, or the worker's node has
    /// ended. Stop it then.
    pub async fn ended(&self) -> QueueError {
        let node = async {
            match &self.node {
                Some(node) => {
                    let reason = node.ended().await.err();
                    let reason =
                        reason.map_or("the node was stopped".to_owned(), |e| e.to_string());
                    QueueError::Node(reason)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = node => error,
            () = self.queue().deleted() => QueueError::Deleted(self.queue().name().to_string()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.engine.stop.cancel();
        self.engine.vanish.cancel();
        self.claims.abort();
        for running in self.loops.drain(..) {
            running.abort();
        }
    }
}

impl WorkerBuilder {
    /// Its name, which no other worker of the queue may have at the same time. Default: host and random bits.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many tasks it works on at once. Default: 4.
    pub fn concurrency(mut self, tasks: usize) -> Self {
        self.settings.concurrency = tasks;
        self
    }

    /// For how long [`Worker::stop`] waits for what is running. Default: 30 s.
    pub fn stop_limit(mut self, limit: Duration) -> Self {
        self.settings.stop_limit = limit;
        self
    }

    /// All of its times and limits.
    pub fn settings(mut self, settings: WorkerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// How it comes by shards. Default: it owns a fair share of them.
    pub fn leasing(mut self, leasing: OwnershipSettings) -> Self {
        self.leasing = leasing;
        self
    }

    /// The URL of the queue's store, by which the node opens connections of its own, on its own thread: handlers that keep
    /// this runtime busy then cannot keep the node from renewing its lease. Default: the node shares the queue's store.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// A directory of the worker, created if it does not exist. A worker that is restarted under the same name after a crash
    /// takes its shards back at once; without a directory it waits until the ttl has proved its predecessor dead. The
    /// default name is then made of the host and the directory's name. Needs shard leasing.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Sets up the node that owns its shards: addresses, clock.
    pub fn node(mut self, set_up: impl FnOnce(Builder) -> Builder + Send + 'static) -> Self {
        self.node = Some(Box::new(set_up));
        self
    }

    /// Starts the worker. Returns when it owns what it can have at once, or, without leasing, right away.
    pub async fn start<H: TaskHandler>(self, handler: H) -> Result<Worker, QueueError> {
        let info = self.queue.store().info().clone();
        let leasing = self.leasing.check(info.default_ttl, info.min_ttl)?;
        self.settings.check()?;
        if self.data_dir.is_some() && !leasing.enabled {
            let problem = "a data directory has no effect without shard ownership; leave it out, or enable ownership";
            return Err(QueueError::Invalid(vec![problem.to_owned()]));
        }
        let shelf = self.queue.shelf().clone();
        let name = match self.name {
            Some(name) => WorkerName::new(name)?,
            None => {
                let host = tenure_store::machine_identity::MachineIdentity::this().name;
                let dir = self.data_dir.as_deref().and_then(Path::file_name);
                WorkerName::new(match dir {
                    Some(dir) => format!("{host}-{}", dir.to_string_lossy()),
                    None => format!("{host}-{:08x}", shelf.chance.draw() as u32),
                })?
            }
        };
        shelf.write_together();
        let engine = WorkerContext::new(&self.queue, name.clone(), self.settings, leasing.clone());
        let handler = Arc::new(handler);
        let mut worker = Worker {
            engine: engine.clone(),
            node: None,
            claims: tokio::spawn(poll::run(engine.clone(), handler)),
            loops: vec![
                tokio::spawn(maintenance::run(engine.clone())),
                tokio::spawn(poll::listen(engine.clone())),
            ],
        };
        if leasing.enabled {
            let keyspace = format!("{KEYSPACE}{}", self.queue.name());
            let builder = match self.url {
                Some(url) => Node::builder(url, self.queue.cluster()),
                None => {
                    Node::builder(info.url, self.queue.cluster()).store(self.queue.store().clone())
                }
            };
            let builder = builder
                .name(name.as_str())
                .settings(leasing.settings(info.default_ttl))
                .assigned_by(AssignedBy::FairShare)
                .keyspace(
                    keyspace.clone(),
                    Hashed(self.queue.layout().shards()),
                    WorkerShardHandler(engine),
                );
            let builder = match self.data_dir {
                Some(path) => builder.data_dir(path),
                None => builder,
            };
            let builder = match self.node {
                Some(set_up) => set_up(builder),
                None => builder,
            };
            let node = builder.start().await;
            let node = node.map_err(|e| QueueError::Node(e.to_string()))?;
            worker.engine.follows(&node, &keyspace).await;
            worker.node = Some(node);
        }
        Ok(worker)
    }
}
