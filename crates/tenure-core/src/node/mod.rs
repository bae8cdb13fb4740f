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
mod config;
mod context;
mod election;
mod ineffective_settings;
mod load_report;
mod membership;
mod model_support;
mod move_pause;
mod operator_requests;
mod plan_writer;
mod queries;
mod readiness;
mod record_recovery;
mod rejoin;
mod renewal;
mod session_end;
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

use std::sync::Arc;

use crate::ids::{KeyspaceName, SessionId, ShardId};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, Event, Refusal, Step};
use crate::members::{self, UnservedReason};
use crate::record::{NodeMode, Ownership, Role};
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::View;

use assignment::Assignment;
use context::Ctx;
use election::Leader;
use membership::Membership;
use record_recovery::Recovery;
use renewal::Session;
use shards::Shards;
use startup::{Boot, Startup};
use timers::Timer;

pub use config::{KeyspaceConfig, NodeConfig, OwnPolicy, Timekeeper, Waiting};
pub use ineffective_settings::{Said, plan_without_effect, weight_without_effect, without_effect};
pub(crate) use load_report::load_in_records;
pub use model_support::{Counters, Listing};

/// Phase of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    /// The node registers a session.
    Booting,
    Running,
    Stopping,
    Over,
}

/// State machine of one process in the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    ctx: Ctx,
    startup: Startup,
    session: Session,
    membership: Membership,
    assignment: Assignment,
    shards: Shards,
    leader: Leader,
    recovery: Recovery,
}

impl Node {
    /// A node that has not begun; the first [`Event::Tick`] starts it.
    pub fn new(config: Arc<NodeConfig>) -> Self {
        Self {
            ctx: Ctx::new(config),
            startup: Startup::default(),
            session: Session::default(),
            membership: Membership::default(),
            assignment: Assignment::default(),
            shards: Shards::default(),
            leader: Leader::default(),
            recovery: Recovery::default(),
        }
    }

    /// Takes an event at a time and says what to do.
    pub fn step(&mut self, now: Time, event: Event) -> Step {
        if matches!(self.ctx.life, Life::Over) {
            return self.step_after_the_end(event);
        }
        if self.ctx.now == Time::ZERO {
            self.session.progress = now;
        }
        self.note_sleep(now);
        self.ctx.now = self.ctx.now.max(now);
        self.tick_lease();
        self.ctx.from_watch = false;
        self.handle(event);
        while !matches!(self.ctx.life, Life::Over) {
            self.settle_changes();
            let Some(timer) = self.ctx.timers.due(self.ctx.now) else {
                break;
            };
            self.ctx.from_watch = false;
            self.wake(timer);
        }
        if matches!(self.ctx.life, Life::Over) {
            return Step {
                actions: std::mem::take(&mut self.ctx.out),
                wake: None,
            };
        }
        self.ctx.ask_about_absent();
        Step {
            actions: std::mem::take(&mut self.ctx.out),
            wake: self.ctx.timers.next(),
        }
    }

    /// Takes back the list of actions of a step, once they are carried out: the next step need not make a new one.
    pub fn give_back(&mut self, mut actions: Vec<Action>) {
        actions.clear();
        if self.ctx.out.is_empty() {
            self.ctx.out = actions;
        }
    }

    /// The node's current session.
    pub fn session(&self) -> Option<SessionId> {
        self.ctx.session()
    }

    /// How the node stands with its session; nothing while it has none.
    pub fn lease_phase(&self) -> Option<LeasePhase> {
        self.ctx.lease_phase()
    }

    /// What the node knows of the records.
    pub fn view(&self) -> &View {
        &self.ctx.view
    }

    /// Shards without the owner that they should have.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        let mut blocked: Option<(&KeyspaceName, Option<UnservedReason>)> = None;
        for (_, since) in self.shards.retries.waiting() {
            waiting.held_elsewhere += 1;
            waiting.held_elsewhere_for = waiting.held_elsewhere_for.max(self.ctx.now.since(since));
        }
        for (id, seen) in self.ctx.view.shards.iter() {
            let free = matches!(seen.record.ownership, Ownership::Free { .. });
            if free && self.ctx.config.keyspaces.contains_key(&id.keyspace) {
                waiting.unclaimed += 1;
                waiting.unclaimed_for = waiting.unclaimed_for.max(self.ctx.now.since(seen.since));
            }
            let reason = || {
                if blocked
                    .as_ref()
                    .is_none_or(|(known, _)| *known != &id.keyspace)
                {
                    let reason = members::blocked(&self.ctx.view, &id.keyspace);
                    blocked = Some((&id.keyspace, reason));
                }
                blocked.and_then(|(_, reason)| reason)
            };
            if let Some(reason) = self.ctx.unserved_for_long(id, seen, reason) {
                *waiting.unserved.entry(reason).or_default() += 1;
            }
        }
        waiting
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => {
                if matches!(self.ctx.life, Life::Booting) && self.startup.boot.is_fresh() {
                    self.advance_boot();
                }
            }
            Event::Reply { op, reply } => self.on_reply(op, reply),
            Event::Changed { changes, upto } => {
                self.ctx.from_watch = true;
                for (key, found) in changes {
                    match found {
                        Some(found) => self.ctx.learn(&key, found),
                        None => {
                            self.ctx.absent.insert(key);
                        }
                    }
                }
                self.ctx.view.revision = self.ctx.view.revision.max(upto);
            }
            Event::WatchGap => self.on_watch_gap(),
            Event::Loaded(activation) => self.shards.on_loaded(
                &mut self.ctx,
                &self.membership,
                &mut self.assignment,
                activation,
            ),
            Event::CaughtUp(activation) => self.shards.on_caught_up(
                &mut self.ctx,
                &self.membership,
                &mut self.assignment,
                activation,
            ),
            Event::Frozen {
                activation,
                move_id,
            } => self.shards.on_frozen(
                &mut self.ctx,
                &self.membership,
                &mut self.assignment,
                activation,
                move_id,
            ),
            Event::Sealed { activation, seal } => {
                self.shards.on_sealed(&mut self.ctx, activation, seal)
            }
            Event::SealFailed { activation, error } => {
                self.shards.on_seal_failed(&mut self.ctx, activation, error)
            }
            Event::LoadFailed { activation, error } => {
                self.shards
                    .on_load_failed(&mut self.ctx, &self.membership, activation, error)
            }
            Event::LoopEnded { activation, error } => {
                self.shards.on_run_ended(&mut self.ctx, activation, error)
            }
            Event::Trouble {
                activation,
                trouble,
            } => self.shards.on_trouble(
                &mut self.ctx,
                &self.membership,
                &mut self.assignment,
                activation,
                trouble,
            ),
            Event::Cost { activation, cost } => {
                self.shards.on_load_told(&mut self.ctx, activation, cost)
            }
            Event::Drained(activation) => {
                self.shards
                    .on_drained(&mut self.ctx, &self.membership, activation)
            }
            Event::Hold(held) => self.ctx.hold(held),
            Event::Progress(at) => self.session.progress = self.session.progress.max(at),
            Event::Stop => self.begin_stop(),
        }
    }

    fn wake(&mut self, timer: Timer) {
        match timer {
            Timer::Boot => self.resume_boot(),
            Timer::Renew => self.renew(),
            Timer::Lease => {}
            Timer::SessionExpiry(session) => self.judge(session),
            Timer::Stay(shard) => self.shards.look_at(
                &mut self.ctx,
                &self.membership,
                &mut self.assignment,
                &shard,
            ),
            Timer::Tick => self.on_tick(),
            Timer::Rebalance => {
                self.assignment.all_stale();
                self.ctx.scan_all = true;
            }
            Timer::Acquire => self.shards.retries.retry_acquire(&mut self.ctx),
            Timer::Absent => {}
            Timer::Look => {
                self.shards
                    .look_on(&mut self.ctx, &self.membership, &mut self.assignment)
            }
            Timer::Restore => self.recovery.restore_lost(&mut self.ctx),
            Timer::OwnRecord => {
                self.resolve_unsure();
                self.apply_own_record();
            }
            Timer::Lead => self.leader.try_become_leader(&mut self.ctx),
            Timer::PauseEnd => {
                if move_pause::end_pause(&mut self.ctx) {
                    self.leader.plan_soon(&mut self.ctx);
                }
            }
            Timer::Plan => self.leader.plan(&mut self.ctx, &self.membership),
            Timer::Stop => self.finish_stop(true),
        }
    }

    /// Draws the conclusions from everything that changed in the view.
    fn settle_changes(&mut self) {
        loop {
            while let Some(key) = self.ctx.changed.pop_first() {
                self.on_changed(&key);
            }
            // A look that is under way comes to its end first, portion by portion.
            if !self.shards.to_scan.is_empty() || !std::mem::take(&mut self.ctx.scan_all) {
                break;
            }
            self.shards
                .look_at_every_shard(&mut self.ctx, &self.membership, &mut self.assignment);
        }
        if matches!(self.ctx.life, Life::Booting) {
            self.advance_boot();
        }
        self.check_started();
        self.finish_stop(false);
    }

    fn on_changed(&mut self, key: &Key) {
        match key {
            Key::Cluster => {
                if let Some(seen) = self.ctx.view.cluster.seen(&()) {
                    self.ctx.longest = self.ctx.longest.max(seen.record.longest_ttl);
                    let record = Arc::clone(&seen.record);
                    move_pause::apply_cluster(&mut self.ctx, &record);
                }
                self.leader.plan_soon(&mut self.ctx);
            }
            Key::Leader => self.leader.look_at_leader(&mut self.ctx, &self.membership),
            Key::Session(id) => {
                self.note_peer_alive(*id);
                self.on_session_changed(*id);
                let session = self.ctx.view.sessions.get(id);
                if session.is_some_and(|s| s.role == Role::Node && !s.held.is_empty()) {
                    // Moves that have loaded leave room for others.
                    self.leader.plan_soon(&mut self.ctx);
                }
            }
            Key::Node(name) => {
                if *name == self.ctx.config.name
                    && let Some(record) = self.ctx.view.nodes.get(name)
                {
                    let other = self.ctx.own_node.mode != record.mode;
                    self.ctx.own_node.mode = record.mode.clone();
                    self.ctx.own_node.cordoned = record.cordoned;
                    self.ctx.timers.set_sooner(Timer::OwnRecord, self.ctx.now);
                    if other && matches!(self.ctx.life, Life::Running) {
                        let mode = self.ctx.own_node.mode.clone();
                        self.ctx.note(NodeEvent::ModeChanged { mode });
                    }
                }
                self.refresh_members();
                // A cordon changes no member, and a plan nevertheless.
                self.leader.plan_soon(&mut self.ctx);
            }
            Key::Keyspace(name) => {
                if let Some(record) = self.ctx.view.keyspaces.get(name) {
                    let known = self.recovery.generations.entry(name.clone()).or_default();
                    *known = (*known).max(record.generation);
                }
                self.assignment.stale(name);
                self.ctx.scan_all = true;
                self.leader.look_at_leader(&mut self.ctx, &self.membership);
                self.leader.plan_soon(&mut self.ctx);
            }
            Key::Shard(id) => {
                self.ctx.restore_later(id);
                self.tell_owner(id);
                self.leader.plan_soon(&mut self.ctx);
                if self.ctx.own_node.mode == NodeMode::Draining {
                    let soon = self.ctx.now + self.ctx.config.timing.renew_retry_interval;
                    self.ctx.timers.set_sooner(Timer::OwnRecord, soon);
                }
                if self.assignment.depends_on_shards(&id.keyspace) {
                    self.assignment.stale(&id.keyspace);
                    self.ctx.scan_all = true;
                }
                self.shards
                    .look_at(&mut self.ctx, &self.membership, &mut self.assignment, id);
            }
        }
    }

    fn tell_owner(&mut self, id: &ShardId) {
        let Some(record) = self.ctx.view.shards.get(id) else {
            return;
        };
        let generation = record.epoch.generation();
        match self.recovery.generations.get_mut(&id.keyspace) {
            Some(known) => *known = (*known).max(generation),
            None => {
                self.recovery
                    .generations
                    .insert(id.keyspace.clone(), generation);
            }
        }
        self.leader.highest = self.leader.highest.max(record.plan);
        match self.shards.slots.get_mut(id) {
            Some(stay) => stay.highest = stay.highest.max(record.epoch),
            None => {
                let stay = self.shards.slots.entry(id.clone()).or_default();
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
        self.ctx.out.push(Action::Seen {
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
        self.ctx.life = Life::Over;
        self.startup.boot = Boot::default();
        self.ctx.out.push(Action::Refused(refusal));
    }
}
