//! The node machine: one process's part in the protocol.
//!
//! It composes small machines, one file each:
//!
//! | file | decides |
//! |---|---|
//! | `boot` | the start: cluster, keyspaces, the node's name, its session |
//! | `effect` | which settings would have no effect, and are rejected |
//! | `holder` | renewals of the node's own session |
//! | `native` | the same where the store keeps the time of sessions itself, and what its leases prove about others |
//! | `peers` | whose sessions have ended, and who takes part in assignment |
//! | `stays` | each shard's stay at this node: claim, load, serve, close, give up (`stays::decide`: what to do next) |
//! | `share` | which shards the node should have |
//! | `acquire` | how often to look at assigned shards that are held elsewhere |
//! | `rejoin` | as what a node takes part again, and whether the whole cluster began anew |
//! | `restore` | records that are missing |
//! | `ops` | store requests under way and how their outcomes are settled |
//! | `leader`, `planning`, `wishes` | who plans, what it writes, and what operators ask of it |
//! | `load` | what shards cost, and to whom that is told |
//! | `tick` | the slow look at everything, and sweeping |
//! | `stop` | the way out |
//!
//! Everything is level-triggered: whatever is heard goes into the [`View`], and decisions are derived from the view, never
//! from the message. Losing, repeating or reordering messages can delay a decision, not falsify it.

mod assignment;
mod claim_retry;
mod election;
mod ineffective_settings;
mod load_report;
mod membership;
mod model_support;
mod move_pause;
mod operator_requests;
mod plan_writer;
mod readiness;
mod record_recovery;
mod rejoin;
mod renewal;
mod sets;
mod shards;
mod shutdown;
mod startup;
mod store_lease;
mod store_requests;
mod sync;
#[cfg(test)]
mod tests;
mod timers;
mod unserved;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{KeyspaceName, NodeName, Nonce, Revision, SessionId, ShardId};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, ActivationId, Event, Found, Refusal, Step};
use crate::members::{self, UnservedReason};
use crate::plan::Policy;
use crate::reason::Reason;
use crate::record::{
    AssignedBy, ClusterRecord, HeldByRouter, KeyspaceKind, NodeMode, Ownership, PlanningSettings,
    Record, RejoinMode, Role, ShardRecord,
};
use crate::rules::Rules;
use crate::settings::Timing;
use crate::telemetry::{NodeEvent, ShardEvent, ShardStep};
use crate::time::Time;
use crate::view::{Versioned, View};

use assignment::Assignments;
use claim_retry::Acquire;
use election::Lead;
use membership::Peers;
use record_recovery::Drawn;
use rejoin::StartupPeers;
use renewal::Holder;
use shards::ShardSlot;
use startup::Boot;
use timers::{Timer, Timers};

pub use ineffective_settings::{Said, plan_without_effect, weight_without_effect, without_effect};
pub(crate) use load_report::load_in_records;
pub use model_support::{Counters, Listing};

/// What a node expects of a keyspace; created so if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyspaceConfig {
    /// Which shards it has.
    pub kind: KeyspaceKind,
    /// Who assigns them.
    pub mode: AssignedBy,
    /// How a leader plans for it.
    pub plan: PlanningSettings,
    /// Its application can load a shard while another node still serves it, and then catch up.
    #[serde(default)]
    pub catches_up: bool,
}

/// A policy of the user's own, by a name that tells it from others.
#[derive(Clone)]
pub struct OwnPolicy {
    name: String,
    policy: Arc<dyn Policy + Send + Sync>,
}

impl OwnPolicy {
    /// Gives a policy a name.
    pub fn new(name: impl Into<String>, policy: Arc<dyn Policy + Send + Sync>) -> Self {
        let name = name.into();
        Self { name, policy }
    }

    fn as_policy(&self) -> &dyn Policy {
        &*self.policy
    }
}

impl std::fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OwnPolicy").field(&self.name).finish()
    }
}

impl PartialEq for OwnPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OwnPolicy {}

impl std::hash::Hash for OwnPolicy {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Who keeps the time of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Timekeeper {
    /// The nodes, by watching each other's records.
    #[default]
    Nodes,
    /// The store, by leases of its own.
    Store,
}

/// Who a node is and what it is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Its stable name.
    pub name: NodeName,
    /// What it is there for.
    pub role: Role,
    /// Where it can be reached, by kind of address.
    pub addresses: BTreeMap<String, String>,
    /// Its failure domain.
    pub zone: Option<String>,
    /// Its part of the shards in relation to other nodes; 100 is usual.
    pub weight: u32,
    /// What it says of itself.
    pub labels: BTreeMap<String, String>,
    /// The most shards that it can have.
    pub capacity: Option<u32>,
    /// The version of the program.
    pub version: String,
    /// The keyspaces that it takes part in.
    pub keyspaces: BTreeMap<KeyspaceName, KeyspaceConfig>,
    /// How it plans when it leads; nothing: by the policy that each keyspace's record names.
    #[serde(skip)]
    pub policy: Option<OwnPolicy>,
    /// Its times and limits.
    pub timing: Timing,
    /// The rules it follows.
    #[serde(skip)]
    pub rules: Rules,
    /// Who keeps the time of sessions.
    pub timekeeper: Timekeeper,
    /// The boot id of the machine, where all participants of the store share one machine and one clock.
    pub boot_id: Option<String>,
    /// 128 random bits: the ids of this process's sessions count up from here.
    #[serde(with = "crate::trace_format::hex")]
    pub entropy: u128,
    /// The session that this node's data directory remembers. Set only if the directory's lock proves its holder dead.
    pub last_session: Option<SessionId>,
    /// How it comes back if its session ran out while others lived.
    #[serde(default)]
    pub rejoin: RejoinMode,
    /// Its first start only joins: it takes no shards until an operator activates it.
    #[serde(default)]
    pub join: bool,
    /// Its name is its process's alone: what is recorded of it need not outlive that for long.
    #[serde(default)]
    pub ephemeral: bool,
}

/// Shards without the owner that they should have: how many, and the longest wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Shards that nobody owns.
    pub unclaimed: usize,
    /// For how long the longest of them has been so.
    pub unclaimed_for: std::time::Duration,
    /// Shards that this node should have and another live node has.
    pub held_elsewhere: usize,
    /// For how long the longest of them has been so.
    pub held_elsewhere_for: std::time::Duration,
    /// Shards of any keyspace that have had no owner that serves them for longer than three ttl, by the reason.
    pub unserved: BTreeMap<UnservedReason, usize>,
}

/// Where a node is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Life {
    Booting(Boot),
    Running,
    Stopping,
    Over,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    config: Arc<NodeConfig>,
    now: Time,
    life: Life,
    view: View,
    holder: Option<Holder>,
    peers: Peers,
    assignments: Assignments,
    shards: BTreeMap<ShardId, ShardSlot>,
    runs: BTreeMap<ActivationId, ShardId>,
    /// Shards of this node's own on their way to other nodes.
    leaving: BTreeSet<ShardId>,
    acquire: Acquire,
    pending: sets::Ops,
    timers: Timers,
    /// Keys whose known value changed and that have not been looked at since.
    dirty: sets::Keys,
    look_at_all: bool,
    /// What is left of a look at every shard.
    looking: VecDeque<ShardId>,
    /// Keys that seem to be missing and have not been asked about yet.
    absent: BTreeSet<Key>,
    absent_not_before: Time,
    /// The event being handled came from the watch.
    from_watch: bool,
    /// What must come to rest before the node counts as started; `None` once it has.
    initial: Option<readiness::Initial>,
    started: bool,
    /// When the present session was registered.
    registered: Time,
    /// The end of the node's own session is not written again before this.
    resign_not_before: Time,
    /// The last sign of life of the application's runtime.
    progress: Time,
    /// It was told that renewals have stopped for want of one.
    wedged: bool,
    /// A store revision that the watch had not reached at the last tick.
    behind: Option<Revision>,
    /// The furthest that the store itself said it has come.
    asked_at: Revision,
    /// The next tick reads everything.
    relist: bool,
    /// When everything was read last, and how far the store had come.
    listed_at: Time,
    listed: Revision,
    /// Writes of this node's own since then: they are no news.
    written: u64,
    last_writes: Vec<u64>,
    /// Somebody else has written since then.
    others_wrote: bool,
    /// Generations that this node has drawn and not used yet.
    drawn: BTreeMap<KeyspaceName, Drawn>,
    /// The cluster's record as it was seen last.
    cluster: Option<Arc<ClusterRecord>>,
    /// Pause of planned moves with a duration.
    timed_pause: Option<move_pause::TimedPause>,
    /// The node's mode as it was seen last.
    mode: NodeMode,
    cordoned: bool,
    /// The session of this node's own that the store said has run out of time.
    ran_out: Option<SessionId>,
    /// The others that were there when this node started; nothing before it has looked.
    company: Option<StartupPeers>,
    /// The highest generation that was seen of each keyspace.
    generations: BTreeMap<KeyspaceName, u32>,
    /// Generations that must be exceeded before anything is owned again: the store was exchanged or went back.
    store_replaced: Option<BTreeMap<KeyspaceName, u32>>,
    /// Shards of which a write may still land, and the rev that it would replace: read at every tick until it has moved.
    doubtful: BTreeMap<ShardId, u64>,
    /// Leading, and what is known of it.
    lead: Lead,
    /// When the node began to stop.
    stopping_since: Time,
    /// Router: moves for which requests are held. Node: moves to it that have loaded and wait for others.
    held: HeldByRouter,
    /// Shards that move to this node and freeze together.
    together: shards::Together,
    /// The application has said what a shard costs.
    measured: bool,
    /// Time of the last write of the session's record that reported load or changed its list of unserved shards.
    load_told: Time,
    /// The longest ttl of any session that was ever heard of.
    longest: std::time::Duration,
    ops: u64,
    run_count: u64,
    nonces: u64,
    sessions: u64,
    out: Vec<Action>,
}

impl Node {
    /// A node that has not begun; the first [`Event::Tick`] starts it.
    pub fn new(config: Arc<NodeConfig>) -> Self {
        let view = View::new(config.rules);
        Self {
            config,
            now: Time::ZERO,
            life: Life::Booting(Boot::default()),
            view,
            holder: None,
            peers: Peers::default(),
            assignments: Assignments::default(),
            shards: BTreeMap::new(),
            runs: BTreeMap::new(),
            leaving: BTreeSet::new(),
            acquire: Acquire::default(),
            pending: sets::Ops::default(),
            timers: Timers::default(),
            dirty: sets::Keys::default(),
            look_at_all: false,
            looking: VecDeque::new(),
            absent: BTreeSet::new(),
            absent_not_before: Time::ZERO,
            from_watch: false,
            initial: None,
            started: false,
            registered: Time::ZERO,
            resign_not_before: Time::ZERO,
            progress: Time::ZERO,
            wedged: false,
            behind: None,
            asked_at: Revision(0),
            relist: false,
            listed_at: Time::ZERO,
            listed: Revision(0),
            written: 0,
            last_writes: Vec::new(),
            others_wrote: false,
            drawn: BTreeMap::new(),
            cluster: None,
            timed_pause: None,
            mode: NodeMode::default(),
            cordoned: false,
            ran_out: None,
            company: None,
            generations: BTreeMap::new(),
            store_replaced: None,
            doubtful: BTreeMap::new(),
            lead: Lead::default(),
            stopping_since: Time::ZERO,
            held: HeldByRouter::new(),
            together: shards::Together::default(),
            measured: false,
            load_told: Time::ZERO,
            longest: std::time::Duration::ZERO,
            ops: 0,
            run_count: 0,
            nonces: 0,
            sessions: 0,
            out: Vec::new(),
        }
    }

    /// Takes an event at a time and says what to do.
    pub fn step(&mut self, now: Time, event: Event) -> Step {
        if matches!(self.life, Life::Over) {
            return self.step_after_the_end(event);
        }
        if self.now == Time::ZERO {
            self.progress = now;
        }
        self.note_sleep(now);
        self.now = self.now.max(now);
        self.tick_lease();
        self.from_watch = false;
        self.handle(event);
        while !matches!(self.life, Life::Over) {
            self.settle_changes();
            let Some(timer) = self.timers.due(self.now) else {
                break;
            };
            self.from_watch = false;
            self.wake(timer);
        }
        if matches!(self.life, Life::Over) {
            return Step {
                actions: std::mem::take(&mut self.out),
                wake: None,
            };
        }
        self.ask_about_absent();
        Step {
            actions: std::mem::take(&mut self.out),
            wake: self.timers.next(),
        }
    }

    /// Takes back the list of actions of a step, once they are carried out: the next step need not make a new one.
    pub fn give_back(&mut self, mut actions: Vec<Action>) {
        actions.clear();
        if self.out.is_empty() {
            self.out = actions;
        }
    }

    /// The node's current session.
    pub fn session(&self) -> Option<SessionId> {
        self.holder.as_ref().map(|h| h.id)
    }

    /// How the node stands with its session; nothing while it has none.
    pub fn lease_phase(&self) -> Option<LeasePhase> {
        self.holder
            .as_ref()
            .and_then(|h| h.lease.as_ref())
            .map(|lease| lease.phase())
    }

    /// What the node knows of the records.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Shards without the owner that they should have.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        let mut blocked: Option<(&KeyspaceName, Option<UnservedReason>)> = None;
        for (_, since) in self.acquire.waiting() {
            waiting.held_elsewhere += 1;
            waiting.held_elsewhere_for = waiting.held_elsewhere_for.max(self.now.since(since));
        }
        for (id, seen) in self.view.shards.iter() {
            let free = matches!(seen.record.ownership, Ownership::Free { .. });
            if free && self.config.keyspaces.contains_key(&id.keyspace) {
                waiting.unclaimed += 1;
                waiting.unclaimed_for = waiting.unclaimed_for.max(self.now.since(seen.since));
            }
            let reason = || {
                if blocked
                    .as_ref()
                    .is_none_or(|(known, _)| *known != &id.keyspace)
                {
                    let reason = members::blocked(&self.view, &id.keyspace);
                    blocked = Some((&id.keyspace, reason));
                }
                blocked.and_then(|(_, reason)| reason)
            };
            if let Some(reason) = self.unserved_for_long(id, seen, reason) {
                *waiting.unserved.entry(reason).or_default() += 1;
            }
        }
        waiting
    }

    /// Returns why a shard has had no owner that serves it for longer than three ttl; `None` if it has one, or had lately.
    pub(super) fn unserved_for_long(
        &self,
        id: &ShardId,
        seen: &Versioned<ShardRecord>,
        blocked: impl FnOnce() -> Option<UnservedReason>,
    ) -> Option<UnservedReason> {
        let owner = seen.record.owner().map(|owner| owner.session);
        let over = owner.filter(|session| self.ended(*session));
        let over = over.and_then(|session| self.view.sessions.seen(&session));
        let since = over.map_or(seen.since, |session| seen.since.max(session.since));
        let keyspace = self.view.keyspaces.get(&id.keyspace)?;
        if keyspace.deleted || self.now < since + self.config.timing.ttl * 3 {
            return None;
        }
        members::unserved(&seen.record, |session| self.ended(session), blocked)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => {
                if let Life::Booting(boot) = &self.life
                    && boot.is_fresh()
                {
                    self.advance_boot();
                }
            }
            Event::Reply { op, reply } => self.on_reply(op, reply),
            Event::Changed { changes, upto } => {
                self.from_watch = true;
                for (key, found) in changes {
                    match found {
                        Some(found) => self.learn(&key, found),
                        None => {
                            self.absent.insert(key);
                        }
                    }
                }
                self.view.revision = self.view.revision.max(upto);
            }
            Event::WatchGap => self.on_watch_gap(),
            Event::Loaded(activation) => self.on_loaded(activation),
            Event::CaughtUp(activation) => self.on_caught_up(activation),
            Event::Frozen {
                activation,
                move_id,
            } => self.on_frozen(activation, move_id),
            Event::Sealed { activation, seal } => self.on_sealed(activation, seal),
            Event::SealFailed { activation, error } => self.on_seal_failed(activation, error),
            Event::LoadFailed { activation, error } => self.on_load_failed(activation, error),
            Event::LoopEnded { activation, error } => self.on_run_ended(activation, error),
            Event::Trouble {
                activation,
                trouble,
            } => self.on_trouble(activation, trouble),
            Event::Cost { activation, cost } => self.on_load_told(activation, cost),
            Event::Drained(activation) => self.on_drained(activation),
            Event::Hold(held) => self.hold(held),
            Event::Progress(at) => self.progress = self.progress.max(at),
            Event::Stop => self.begin_stop(),
        }
    }

    fn wake(&mut self, timer: Timer) {
        match timer {
            Timer::Boot => self.resume_boot(),
            Timer::Renew => self.renew(),
            Timer::Lease => {}
            Timer::SessionExpiry(session) => self.judge(session),
            Timer::Stay(shard) => self.look_at(&shard),
            Timer::Tick => self.on_tick(),
            Timer::Rebalance => {
                self.assignments.all_stale();
                self.look_at_all = true;
            }
            Timer::Acquire => self.retry_acquire(),
            Timer::Absent => {}
            Timer::Look => self.look_on(),
            Timer::Restore => self.restore_lost(),
            Timer::OwnRecord => {
                self.resolve_unsure();
                self.apply_own_record();
            }
            Timer::Lead => self.try_become_leader(),
            Timer::PauseEnd => self.end_pause(),
            Timer::Plan => self.plan(),
            Timer::Stop => self.finish_stop(true),
        }
    }

    /// Takes what a list, a watch or a write of our own says of a key into the view.
    fn learn(&mut self, key: &Key, found: Found) {
        let found = Found {
            record: found.record.and_then(Record::stored),
            ..found
        };
        // A damaged value has no rev: a late copy of one that was repaired looks like news. Only a read is believed.
        if found.record.is_err()
            && let Some(known) = self.view.version(key)
        {
            if known != found.version {
                self.absent.insert(key.clone());
            }
            return;
        }
        self.tell_damage(key, &found);
        let contradicts = self.view.contradicts(key, &found);
        if self.view.apply(self.now, key, found) {
            self.learned(key);
        } else if contradicts {
            // One of the two is of a history that is gone: only the store knows which.
            self.absent.insert(key.clone());
        } else if self.view.is_missing(key) && !self.is_being_read(key) {
            // Late news of a key that is gone, most likely; but a write that was under way may have brought it back.
            self.read(key.clone());
        }
    }

    /// Takes what a read of the key itself, begun at `mark`, found into the view.
    fn learn_read(&mut self, key: &Key, found: Found, mark: u64) {
        if self.view.mark(key) != mark {
            return self.learn(key, found);
        }
        self.tell_damage(key, &found);
        if self.view.apply_read(self.now, key, found, mark) {
            self.learned(key);
        }
    }

    fn learned(&mut self, key: &Key) {
        if !self.absent.is_empty() {
            self.absent.remove(key);
        }
        self.dirty.insert(key.clone());
    }

    fn tell_damage(&mut self, key: &Key, found: &Found) {
        if let Err(damage) = &found.record
            && !damage.is_placeholder()
            && self.view.version(key).as_ref() != Some(&found.version)
        {
            self.note(NodeEvent::RecordUnreadable {
                key: key.clone(),
                damage: damage.clone(),
            });
        }
    }

    /// Draws the conclusions from everything that changed in the view.
    fn settle_changes(&mut self) {
        loop {
            while let Some(key) = self.dirty.pop_first() {
                self.on_changed(&key);
            }
            // A look that is under way comes to its end first, portion by portion.
            if !self.looking.is_empty() || !std::mem::take(&mut self.look_at_all) {
                break;
            }
            self.look_at_every_shard();
        }
        if matches!(self.life, Life::Booting(_)) {
            self.advance_boot();
        }
        self.check_started();
        self.finish_stop(false);
    }

    fn on_changed(&mut self, key: &Key) {
        match key {
            Key::Cluster => {
                if let Some(seen) = self.view.cluster.seen(&()) {
                    self.longest = self.longest.max(seen.record.longest_ttl);
                    let record = Arc::clone(&seen.record);
                    self.apply_cluster(&record);
                }
                self.plan_soon();
            }
            Key::Leader => self.look_at_leader(),
            Key::Session(id) => {
                self.note_peer_alive(*id);
                self.on_session_changed(*id);
                let session = self.view.sessions.get(id);
                if session.is_some_and(|s| s.role == Role::Node && !s.held.is_empty()) {
                    // Moves that have loaded leave room for others.
                    self.plan_soon();
                }
            }
            Key::Node(name) => {
                if *name == self.config.name
                    && let Some(record) = self.view.nodes.get(name)
                {
                    let other = self.mode != record.mode;
                    self.mode = record.mode.clone();
                    self.cordoned = record.cordoned;
                    self.timers.set_sooner(Timer::OwnRecord, self.now);
                    if other && matches!(self.life, Life::Running) {
                        let mode = self.mode.clone();
                        self.note(NodeEvent::ModeChanged { mode });
                    }
                }
                self.refresh_members();
                // A cordon changes no member, and a plan nevertheless.
                self.plan_soon();
            }
            Key::Keyspace(name) => {
                if let Some(record) = self.view.keyspaces.get(name) {
                    let known = self.generations.entry(name.clone()).or_default();
                    *known = (*known).max(record.generation);
                }
                self.assignments.stale(name);
                self.look_at_all = true;
                self.look_at_leader();
                self.plan_soon();
            }
            Key::Shard(id) => {
                self.restore_later(id);
                self.tell_owner(id);
                self.plan_soon();
                if self.mode == NodeMode::Draining {
                    let soon = self.now + self.config.timing.renew_retry_interval;
                    self.timers.set_sooner(Timer::OwnRecord, soon);
                }
                if self.assignments.depends_on_shards(&id.keyspace) {
                    self.assignments.stale(&id.keyspace);
                    self.look_at_all = true;
                }
                self.look_at(id);
            }
        }
    }

    fn tell_owner(&mut self, id: &ShardId) {
        let Some(record) = self.view.shards.get(id) else {
            return;
        };
        let generation = record.epoch.generation();
        match self.generations.get_mut(&id.keyspace) {
            Some(known) => *known = (*known).max(generation),
            None => {
                self.generations.insert(id.keyspace.clone(), generation);
            }
        }
        self.lead.highest = self.lead.highest.max(record.plan);
        match self.shards.get_mut(id) {
            Some(stay) => stay.highest = stay.highest.max(record.epoch),
            None => {
                let stay = self.shards.entry(id.clone()).or_default();
                stay.highest = record.epoch;
            }
        }
        let serving = matches!(
            record.ownership,
            Ownership::Owned { serving: true, .. }
                | Ownership::Warming { .. }
                | Ownership::Freezing { .. }
        );
        let owner = record.owner().cloned();
        self.out.push(Action::Seen {
            shard: id.clone(),
            owner,
            epoch: record.epoch,
            serving,
            moving: record.ownership.moving().map(|(mv, phase)| (mv.id, phase)),
            rev: record.head.rev,
        });
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.resign_session();
        self.life = Life::Over;
        self.out.push(Action::Refused(refusal));
    }

    fn note(&mut self, note: NodeEvent) {
        self.out.push(Action::Report(note));
    }

    fn tell(
        &mut self,
        shard: &ShardId,
        step: ShardStep,
        epoch: crate::ids::Epoch,
        reason: Reason,
        to: Option<NodeName>,
    ) {
        let from = self
            .view
            .shards
            .get(shard)
            .and_then(|r| r.history.last())
            .and_then(|p| p.from.clone());
        let session = self.session().unwrap_or(SessionId(self.config.entropy));
        let transition = ShardEvent {
            time: self.now,
            shard: shard.clone(),
            step,
            from,
            to,
            epoch,
            session,
            reason,
        };
        self.note(NodeEvent::Shard(transition));
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        Nonce {
            writer: SessionId(self.config.entropy),
            n: self.nonces,
        }
    }

    fn timing(&self) -> Timing {
        self.config.timing.clone()
    }

    /// A time after `wait` from now, stretched by up to a quarter so that nodes do not act in step.
    fn later(&self, wait: std::time::Duration) -> Time {
        let jitter = crate::hash::mix(self.config.entropy as u64 ^ self.ops) % 256;
        self.now + wait + wait * u32::try_from(jitter).unwrap_or(0) / 1024
    }
}
