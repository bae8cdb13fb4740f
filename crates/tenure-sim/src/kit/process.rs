//! A process of a run: a runtime with a clock of its own, and in it a node and the requests that reach it.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::store::Store;
use tenure::store::fault::{FaultConfig, FaultHandle, FaultStore};
use tenure::{Clock, Node, NodeEvent, StartError};
use tokio::runtime::Runtime;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::ledger::ObservedGate;
use super::{Kit, Scenario};

/// How long every call takes on its way to the store. Some time must pass: what is tried again and again for want of an
/// answer would otherwise be tried for ever within one instant.
const LATENCY: Duration = Duration::from_micros(300);

/// How far a process has come.
enum Stage {
    Starting(JoinHandle<Result<Node, StartError>>),
    Running {
        node: Node,
        clock: Clock,
        notes: broadcast::Receiver<Arc<NodeEvent>>,
    },
    Over,
}

pub(super) struct Process<S: Scenario> {
    runtime: Runtime,
    begun: Instant,
    /// When it was started, in the time of the run.
    born: Duration,
    clock: Clock,
    stage: Stage,
    pub(super) faults: FaultHandle,
    requests: Vec<JoinHandle<()>>,
    /// Gates that were open when it last ran.
    pub(super) open: Vec<ObservedGate>,
    scenario: Arc<S>,
}

impl<S: Scenario> Process<S> {
    pub(super) fn start(
        kit: &Kit,
        scenario: &Arc<S>,
        store: &Arc<dyn Store>,
        node: usize,
        born: Duration,
        entropy: u128,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        let entered = runtime.enter();
        let (begun, clock) = (Instant::now(), Clock::runtime());
        let (behind, faults) = FaultStore::new(Arc::clone(store), FaultConfig::none(0));
        faults.slow(LATENCY);
        let name = format!("n{node}");
        let builder = Node::builder("memory:", "kit")
            .store(Arc::new(behind))
            .name(&name)
            .settings(kit.settings.clone())
            .clock(clock.clone())
            .entropy(entropy)
            .assigned_by(kit.mode)
            .keyspace(&kit.keyspace, kit.kind, scenario.handler(&name));
        let starting = tokio::spawn(builder.start());
        drop(entered);
        Ok(Self {
            runtime,
            begun,
            born,
            clock,
            stage: Stage::Starting(starting),
            faults,
            requests: Vec::new(),
            open: Vec::new(),
            scenario: Arc::clone(scenario),
        })
    }

    /// Lets everything happen in this process that is due up to this time of the run.
    pub(super) fn run_until(&mut self, now: Duration) {
        let until = self.begun + now.saturating_sub(self.born);
        self.runtime
            .block_on(async { tokio::time::sleep_until(until).await });
        if let Stage::Starting(starting) = &mut self.stage
            && starting.is_finished()
        {
            self.stage = match self.runtime.block_on(starting) {
                Ok(Ok(node)) => Stage::Running {
                    notes: node.events(),
                    clock: self.clock.clone(),
                    node,
                },
                _ => Stage::Over,
            };
        }
    }

    /// Time has gone on without this process, up to this time of the run.
    pub(super) fn oversleep(&mut self, now: Duration) {
        let until = self.begun + now.saturating_sub(self.born);
        self.runtime.block_on(async {
            let missed = until.saturating_duration_since(Instant::now());
            tokio::time::advance(missed).await;
        });
    }

    /// A request reaches this process, if it is there for requests.
    pub(super) fn request(&mut self, n: u64) -> bool {
        let Stage::Running { node, .. } = &self.stage else {
            return false;
        };
        let (scenario, node) = (Arc::clone(&self.scenario), node.clone());
        let work = async move { scenario.request(&node, n).await };
        self.requests.push(self.runtime.spawn(work));
        true
    }

    /// Whether a request has panicked; forgets those that are done.
    pub(super) fn panicked(&mut self) -> bool {
        let mut panicked = false;
        let done = |request: &mut JoinHandle<()>| request.is_finished();
        let finished: Vec<_> = self.requests.extract_if(.., done).collect();
        for request in finished {
            panicked |= ready(request).is_none_or(|done| done.is_err());
        }
        panicked
    }

    /// Whether requests are still under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.requests.is_empty()
    }

    /// The store is as good to this process as a store can be.
    pub(super) fn heal(&self) {
        self.faults.heal();
        self.faults.slow(LATENCY);
    }

    /// Whether its start is over and it takes requests.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    /// Asks the node to end in good order.
    pub(super) fn stop(&mut self) {
        if let Stage::Running { node, .. } = &self.stage {
            let node = node.clone();
            self.runtime.spawn(async move {
                let _ = node.stop().await;
            });
        }
    }

    /// Whether it has ended, or never came up.
    pub(super) fn is_over(&mut self) -> bool {
        let over = match &self.stage {
            Stage::Starting(_) => false,
            Stage::Running { node, .. } => ready(node.ended()).is_some(),
            Stage::Over => true,
        };
        if over {
            self.stage = Stage::Over;
        }
        over
    }

    /// Looks which gates are open, and says what the node has to tell.
    pub(super) fn look(&mut self, now: Duration) -> Vec<String> {
        self.open.clear();
        let Stage::Running { node, clock, notes } = &mut self.stage else {
            return Vec::new();
        };
        let _entered = self.runtime.enter();
        for shard in node.owned() {
            if let Ok(entered) = node.enter_shard::<S::Handler>(&shard) {
                let grant = entered.grant();
                self.open.push(ObservedGate {
                    epoch: grant.epoch(),
                    session: grant.session(),
                    until: now + grant.closes_at().since(clock.now()),
                    shard,
                });
            }
        }
        let mut told = Vec::new();
        while let Ok(note) = notes.try_recv() {
            if let NodeEvent::Shard(t) = &*note {
                told.push(format!(
                    "{} {} epoch {} ({})",
                    t.step, t.shard, t.epoch, t.reason
                ));
            }
        }
        told
    }

    /// The process is gone, with all that it ran.
    pub(super) fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// What a future comes to, if it is ready.
fn ready<F: Future>(future: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
