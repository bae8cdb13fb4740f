//! Two nodes, a router, and a client for every shard.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::router::{HoldLimits, Router, SendResult};
use tenure::{AssignedBy, Epoch, Hashed, Node, Settings};
use tenure_core::ids::{ClusterName, ShardId, ShardName};
use tenure_core::keys::{Key, prefix};
use tenure_core::record::{MovePhase, Record};
use tenure_store::{Change, Store};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::super::prompt;
use super::Loads;
use crate::exit::Exit;
use crate::store_access::random_id;
use crate::worker::KEYSPACE;

/// Wait between two requests of a client with up to [`FEW`] shards; it grows in proportion with more.
const PAUSE: Duration = Duration::from_millis(2);
const FEW: u32 = 16;
/// So long nothing moves when a round is over.
const CALM: Duration = Duration::from_millis(400);
/// Beyond the loads: whoever needs longer is broken.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long a shard gave no answer, and where that went.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) whole: Duration,
    /// From freezing to sealed: the router's word, and the owner's seal.
    pub(crate) sealing: Duration,
    /// From sealed to taken.
    pub(crate) taking: Duration,
    /// From taken to the answer.
    pub(crate) answering: Duration,
}

/// What is known of one shard.
#[derive(Default)]
struct Track {
    /// When it was seen to freeze, until its new owner has answered.
    frozen: Option<Instant>,
    sealed: Option<Instant>,
    taken: Option<Instant>,
    moving: bool,
    owner: Option<String>,
    /// Told when it freezes.
    ask: Arc<Notify>,
}

impl Track {
    fn pause(&self, since: Instant, until: Instant) -> Pause {
        // The answer may come before the watch brings what led to it.
        let taken = self.taken.unwrap_or(until).min(until);
        let sealed = self.sealed.unwrap_or(taken).min(taken);
        Pause {
            whole: until - since,
            sealing: sealed.saturating_duration_since(since),
            taking: taken - sealed,
            answering: until - taken,
        }
    }
}

#[derive(Default)]
struct Board {
    tracks: BTreeMap<ShardId, Track>,
    pauses: Vec<Pause>,
    changed: Option<Instant>,
}

/// What all have in common.
struct Common {
    board: Mutex<Board>,
    nodes: Mutex<BTreeMap<String, Node>>,
    over: AtomicBool,
    requests: AtomicU64,
    failed: AtomicU64,
}

impl Common {
    fn board<T>(&self, look: impl FnOnce(&mut Board) -> T) -> T {
        look(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn nodes<T>(&self, look: impl FnOnce(&mut BTreeMap<String, Node>) -> T) -> T {
        look(&mut self.nodes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Setup of the nodes of a scenario; each opens the store for itself.
pub(crate) struct ScenarioSetup {
    pub(crate) url: String,
    pub(crate) cluster: ClusterName,
    pub(crate) settings: Settings,
    pub(crate) load: Duration,
    pub(crate) shards: u32,
    /// Mode of the keyspace.
    pub(crate) assigned_by: AssignedBy,
    /// Where every step is written down.
    pub(crate) traces: Option<PathBuf>,
}

impl ScenarioSetup {
    /// A new file for the steps of a node or a router.
    fn trace(&self, name: &str) -> Option<PathBuf> {
        let file = format!("{}-{name}-{:08x}.trace", self.cluster, random_id() as u32);
        Some(self.traces.as_ref()?.join(file))
    }

    async fn node(&self, name: &str) -> Result<Node, Exit> {
        let mut node = Node::builder(&self.url, self.cluster.as_str())
            .name(name)
            .address("bench", name)
            .settings(self.settings.clone())
            .assigned_by(self.assigned_by)
            .plan(prompt())
            .keyspace(KEYSPACE, Hashed(self.shards), Loads(self.load));
        if let Some(trace) = self.trace(name) {
            node = node.trace(trace);
        }
        node.start().await.map_err(failed)
    }
}

/// Scenario that measures for how long shards do not answer while a node joins and leaves.
pub(crate) struct UnavailabilityScenario {
    store: Arc<dyn Store>,
    cast: ScenarioSetup,
    common: Arc<Common>,
    router: Router,
    tasks: JoinSet<()>,
}

fn failed(error: impl std::fmt::Display) -> Exit {
    Exit::failed(error.to_string())
}

impl UnavailabilityScenario {
    /// Starts the node that stays, the router and the clients.
    pub(crate) async fn begin(store: Arc<dyn Store>, cast: ScenarioSetup) -> Result<Self, Exit> {
        let common = Arc::new(Common {
            board: Mutex::default(),
            nodes: Mutex::default(),
            over: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let node = cast.node("a").await?;
        common.nodes(|nodes| nodes.insert("a".to_owned(), node));
        let settings = cast.settings.clone();
        let hold = HoldLimits {
            age: settings.router_hold_timeout + settings.drain_timeout + settings.take_timeout,
            ..HoldLimits::default()
        };
        let mut router = Router::builder(&cast.url, cast.cluster.as_str())
            .name("router")
            .settings(settings)
            .hold(hold);
        if let Some(trace) = cast.trace("router") {
            router = router.trace(trace);
        }
        let shards = cast.shards;
        let mut play = Self {
            router: router.start().await.map_err(failed)?,
            store,
            cast,
            common,
            tasks: JoinSet::new(),
        };
        play.follow().await?;
        for index in 0..shards {
            let id = ShardId::new(KEYSPACE.parse().map_err(failed)?, ShardName::index(index));
            let (common, router) = (play.common.clone(), play.router.clone());
            let pause = PAUSE * (shards / FEW).max(1);
            play.tasks.spawn(ask_for(common, router, id, pause));
        }
        Ok(play)
    }

    /// Follows the records of shards.
    async fn follow(&mut self) -> Result<(), Exit> {
        let (cluster, common) = (self.cast.cluster.clone(), self.common.clone());
        let listing = self.store.list(&prefix(&cluster)).await?;
        for entry in &listing.entries {
            note(&cluster, &common, &entry.key, &entry.value);
        }
        let all = prefix(&cluster);
        let mut watch = self.store.watch(&all, listing.revision).await?;
        self.tasks.spawn(async move {
            // A watch that ends shows in moves that are not measured.
            while let Ok(batch) = watch.next().await {
                for change in &batch.changes {
                    if let Change::Put(entry) = change {
                        note(&cluster, &common, &entry.key, &entry.value);
                    }
                }
            }
        });
        Ok(())
    }

    /// A node joins and leaves: how long each shard that moved gave no answer.
    pub(crate) async fn round(&mut self) -> Result<Vec<Pause>, Exit> {
        let b = self.cast.node("b").await?;
        self.common
            .nodes(|nodes| nodes.insert("b".to_owned(), b.clone()));
        self.calm("node b owns its share of the shards", |owner| owner == "b")
            .await?;
        b.stop().await.map_err(failed)?;
        self.calm("node a owns every shard", |owner| owner == "a")
            .await?;
        Ok(self.common.board(|b| std::mem::take(&mut b.pauses)))
    }

    /// Waits until nothing moves and `some` shard is as it should be; all of them if they are a's.
    async fn calm(&self, what: &str, is: impl Fn(&str) -> bool) -> Result<(), Exit> {
        let begun = Instant::now();
        let all = what.contains("every shard");
        loop {
            let calm = self.common.board(|board| {
                let still = board.changed.is_none_or(|at| at.elapsed() > CALM);
                let mut owners = board.tracks.values().map(|t| t.owner.as_deref());
                let fits = |o: Option<&str>| o.is_some_and(&is);
                let placed = match all {
                    true => owners.all(fits),
                    false => owners.any(fits),
                };
                still
                    && placed
                    && board
                        .tracks
                        .values()
                        .all(|t| !t.moving && t.owner.is_some())
            });
            if calm {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT + self.cast.load * 3 {
                return Err(Exit::failed(format!(
                    "the shards did not reach this state in time: {what}; run the benchmark again, or check the logs"
                )));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends all of it; how many requests there were, and how many failed.
    pub(crate) async fn end(mut self) -> Result<(u64, u64), Exit> {
        self.common.over.store(true, Ordering::Relaxed);
        self.router.stop().await.map_err(failed)?;
        let a = self.common.nodes(|nodes| nodes.remove("a"));
        if let Some(a) = a {
            a.stop().await.map_err(failed)?;
        }
        self.tasks.shutdown().await;
        let counted = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Ok((counted(&self.common.requests), counted(&self.common.failed)))
    }
}

/// Takes note of a shard's record.
fn note(cluster: &ClusterName, common: &Common, key: &str, value: &[u8]) {
    let seen = Instant::now();
    let Some(key @ Key::Shard(_)) = Key::parse(cluster, key) else {
        return;
    };
    let Ok(Record::Shard(record)) = Record::decode(&key, value) else {
        return;
    };
    let Key::Shard(id) = key else { return };
    let phase = record.ownership.moving().map(|(_, phase)| phase);
    common.board(|board| {
        board.changed = Some(seen);
        let track = board.tracks.entry(id).or_default();
        track.moving = phase.is_some();
        track.owner = record.owner().map(|owner| owner.node.to_string());
        if phase == Some(MovePhase::Freezing) && track.frozen.is_none() {
            (track.frozen, track.sealed, track.taken) = (Some(seen), None, None);
            track.ask.notify_one();
        }
        if phase == Some(MovePhase::Sealed) {
            track.sealed = track.sealed.or(Some(seen));
        } else if phase.is_none() && track.sealed.is_some() {
            track.taken = track.taken.or(Some(seen));
        }
    });
}

/// A client: asks for one shard until all is over, at once when it freezes.
async fn ask_for(common: Arc<Common>, router: Router, id: ShardId, pause: Duration) {
    let ask = common.board(|b| b.tracks.entry(id.clone()).or_default().ask.clone());
    let mut known = Epoch(0);
    while !common.over.load(Ordering::Relaxed) {
        let answer = router.send_to(&id, 100, async |route| {
            let to = route.owner.address("bench").map(ToString::to_string);
            let node = to.and_then(|to| common.nodes(|nodes| nodes.get(&to).cloned()));
            let Some(node) = node else {
                return SendResult::Done(None);
            };
            match node.enter_shard_at::<Loads>(&id, route.epoch) {
                Ok(entered) => {
                    let ran = entered.run(async |_: &mut (), grant| grant.epoch()).await;
                    SendResult::Done(ran.ok())
                }
                Err(refused) => refused.into(),
            }
        });
        let (answer, at) = (answer.await, Instant::now());
        common.requests.fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok(Some(epoch)) => {
                if epoch > known && known != Epoch(0) {
                    common.board(|board| {
                        let track = board.tracks.entry(id.clone()).or_default();
                        let pause = track.frozen.take().map(|since| track.pause(since, at));
                        board.pauses.extend(pause);
                    });
                }
                known = epoch;
            }
            _ if common.over.load(Ordering::Relaxed) => return,
            _ => {
                common.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        // One that freezes is asked for again soon: the last answer may have come from its old owner.
        let frozen = |board: &mut Board| board.tracks.get(&id).is_some_and(|t| t.frozen.is_some());
        let pause = match common.board(frozen) {
            true => PAUSE.min(pause),
            false => pause,
        };
        // Whichever comes first.
        let _ = tokio::time::timeout(pause, ask.notified()).await;
    }
}
