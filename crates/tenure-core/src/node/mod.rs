//! The node machine: one process's part in the protocol.
//!
//! [`Node`] consists of a context and seven parts. Every part owns its fields, and its methods take the context:
//!
//! | part | files | owns |
//! |---|---|---|
//! | context | `context`, `queries`, `session_end`, `move_pause`, `store_requests`, `sync`, `timers` | settings, time, known records, own session, timers, store requests, actions of the step |
//! | `Startup` | `startup`, `rejoin`, `readiness` | the start: cluster, keyspaces, name; the mode of a restarted node; when a node counts as started |
//! | `Session` | `renewal`, `store_lease`, `load_report`, `unserved` | renewals of the own session, and what its record reports |
//! | `Membership` | `membership` | expiry of other sessions; nodes that take part in each keyspace |
//! | `Assignment` | `assignment` | shards that this node should own |
//! | `Shards` | `shards/`, `claim_retry` | local shards: claims, loads, moves, releases |
//! | `Leader` | `election`, `plan_writer`, `operator_requests` | leadership and plans |
//! | `Recovery` | `record_recovery` | lost records and new generations |
//!
//! This file has [`Node::step`] and the routing: which part an event, a timer, a changed record or a reply belongs to, and which
//! parts have to know of its result. `shutdown` decides the steps of a stop, `ineffective_settings` rejects settings.
//!
//! Everything is level-triggered: messages go into the [`View`], and decisions are derived from the view, never from the message.
//! Lost, repeated or reordered messages can delay a decision, not falsify it.

mod assignment;
mod changed_keys;
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
mod outstanding_requests;
mod plan_writer;
mod queries;
mod readiness;
mod record_recovery;
mod rejoin;
mod renewal;
mod session_end;
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

use crate::ids::{Revision, SessionId, ShardId};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, Event, OpId, Refusal, Reply, Step};
use crate::reason::Reason;
use crate::record::{NodeMode, Role};
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::View;

use assignment::Assignment;
use context::Ctx;
use election::Leader;
use membership::Membership;
use outstanding_requests::OutstandingRequests;
use record_recovery::Recovery;
use renewal::{Session, SessionChange};
use shards::Shards;
use shutdown::StopState;
use startup::{Boot, Startup, StartupEnd};
use store_lease::{LeaseCheck, on_lease_checked};
use store_requests::{
    Pending, PutResult, SettledWrite, WriteOutcome, WritePurpose, learn_missing, on_put, on_read,
    on_read_back,
};
use timers::Timer;

pub use config::{KeyspaceConfig, NodeConfig, OwnPolicy, ShardWaitStats, Timekeeper};
pub use ineffective_settings::{
    ExplicitNodeSettings, plan_without_effect, weight_without_effect, without_effect,
};
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

    /// Handles an event and returns the actions that follow from it.
    pub fn step(&mut self, now: Time, event: Event) -> Step {
        if matches!(self.ctx.life, Life::Over) {
            // Only the end of work that was in progress is still taken.
            if let Event::Drained(activation) = event {
                self.shards.activations.remove(&activation);
            }
            return Step::default();
        }
        if self.ctx.now == Time::ZERO {
            self.session.progress = now;
        }
        if self.membership.note_late_wakeup(&mut self.ctx, now) {
            // This process did not run, so the silence of the application proves nothing.
            self.session.progress = self.session.progress.max(now);
        }
        self.ctx.now = self.ctx.now.max(now);
        let change = self.session.tick_lease(&mut self.ctx);
        self.on_session_change(change);
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
        let over = matches!(self.ctx.life, Life::Over);
        if !over {
            self.ctx.ask_about_absent();
        }
        Step {
            actions: std::mem::take(&mut self.ctx.out),
            wake: self.ctx.timers.next().filter(|_| !over),
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

    /// Returns the number of shards without the owner that they should have.
    pub fn waiting(&self) -> ShardWaitStats {
        unserved::waiting(&self.ctx, &self.shards.retries)
    }

    /// Returns a node whose counters begin at given numbers, for model checkers. Its behaviour is the same from any beginning, but
    /// for the fraction by which some waits are extended.
    ///
    /// A model checker has to recognize states that differ only in what was counted on the way. With beginnings that are far from
    /// every other number it finds the counters in the hash of the node.
    pub fn counting_from(config: Arc<NodeConfig>, from: Counters) -> Self {
        let mut node = Self::new(config);
        node.ctx.requests = OutstandingRequests::counting_from(from.ops);
        node.ctx.nonces = from.nonces;
        node.shards.activation_count = from.runs;
        node
    }

    /// Returns what the node will learn by asking for the revision of the store. [`Self::essence`] leaves it out.
    pub fn listing(&self) -> Listing<'_> {
        Listing::of(&self.ctx.progress)
    }

    /// Returns the node without the state that can no longer influence a decision, and without its [`Listing`]: two nodes with
    /// the same essence do the same from now on, in `rendezvous` keyspaces on a store that keeps no leases and is never restored.
    ///
    /// Only to be compared, not to continue from.
    pub fn essence(&self) -> Self {
        model_support::essence(self)
    }

    fn handle(&mut self, event: Event) {
        let (cx, members, assignment) = (&mut self.ctx, &self.membership, &mut self.assignment);
        let shards = &mut self.shards;
        match event {
            Event::Tick => {
                if matches!(cx.life, Life::Booting) && self.startup.boot.is_fresh() {
                    self.advance_startup();
                }
            }
            Event::Reply { op, reply } => self.on_reply(op, reply),
            Event::Changed { changes, upto } => cx.apply_changes(changes, upto),
            Event::WatchGap => sync::on_watch_gap(cx),
            Event::Loaded(id) => shards.on_loaded(cx, members, assignment, id),
            Event::CaughtUp(id) => shards.on_caught_up(cx, members, assignment, id),
            Event::Frozen {
                activation,
                move_id,
            } => shards.on_frozen(cx, members, assignment, activation, move_id),
            Event::Sealed { activation, seal } => shards.on_sealed(cx, activation, seal),
            Event::SealFailed { activation, error } => {
                shards.on_seal_failed(cx, activation, error);
            }
            Event::LoadFailed { activation, error } => {
                shards.on_load_failed(cx, members, activation, error);
            }
            Event::LoopEnded { activation, error } => shards.on_loop_ended(cx, activation, error),
            Event::Trouble {
                activation,
                trouble,
            } => shards.on_trouble(cx, members, assignment, activation, trouble),
            Event::Cost { activation, cost } => shards.on_cost(cx, activation, cost),
            Event::Drained(id) => shards.on_drained(cx, members, id),
            Event::Hold(held) => cx.hold(held),
            Event::Progress(at) => self.session.progress = self.session.progress.max(at),
            Event::Stop => shutdown::begin(&mut self.ctx, &mut self.startup, &mut self.leader),
        }
    }

    fn wake(&mut self, timer: Timer) {
        let (cx, members, assignment) = (&mut self.ctx, &self.membership, &mut self.assignment);
        match timer {
            Timer::Boot => {
                self.startup.resume(cx);
                self.advance_startup();
            }
            Timer::Renew => self.session.renew(cx, &self.shards),
            Timer::Lease | Timer::Absent => {}
            Timer::SessionExpiry(id) => {
                let current = !cx.view.is_dated_back(id);
                self.check_expiry(id, current);
            }
            Timer::Shard(id) => self.shards.evaluate(cx, members, assignment, &id),
            Timer::Tick => self.on_tick(),
            Timer::Rebalance => {
                assignment.all_stale();
                cx.scan_all = true;
            }
            Timer::ClaimRetry => self.shards.retries.retry_acquire(cx),
            Timer::Scan => self.shards.continue_scan(cx, members, assignment),
            Timer::Restore => self.recovery.restore_lost(cx),
            Timer::OwnRecord => {
                self.startup.resolve_unsure(cx);
                if rejoin::apply_own_record(cx, &self.shards) {
                    shutdown::begin(&mut self.ctx, &mut self.startup, &mut self.leader);
                }
            }
            Timer::Election => self.leader.try_become_leader(cx),
            Timer::PauseEnd => {
                if move_pause::end_pause(cx) {
                    self.leader.plan_soon(cx);
                }
            }
            Timer::Plan => self.leader.plan(cx, members),
            Timer::Stop => {
                if matches!(cx.life, Life::Stopping) {
                    // The limit of the stop: the node ends although some work or records are not in order.
                    self.shards.cut_all(cx, Reason::NodeStopping);
                    shutdown::stopped(cx);
                }
            }
        }
    }

    /// Evaluates everything that changed in the view.
    fn settle_changes(&mut self) {
        loop {
            while let Some(key) = self.ctx.changed.pop_first() {
                self.on_changed(&key);
            }
            // A scan in progress ends first, portion by portion.
            if !self.shards.to_scan.is_empty() || !std::mem::take(&mut self.ctx.scan_all) {
                break;
            }
            self.scan_shards();
        }
        if matches!(self.ctx.life, Life::Booting) {
            self.advance_startup();
        }
        self.startup.check_started(&mut self.ctx, &self.shards);
        if matches!(self.ctx.life, Life::Stopping) {
            match shutdown::stop_state(&self.ctx, &self.shards, &self.session) {
                StopState::Waiting => {}
                StopState::Finished => shutdown::stopped(&mut self.ctx),
                StopState::Resign => shutdown::resign_session(&mut self.ctx),
            }
        }
    }

    fn scan_shards(&mut self) {
        let (cx, members, assignment) = (&mut self.ctx, &self.membership, &mut self.assignment);
        self.shards.scan_all_shards(cx, members, assignment);
    }

    fn on_changed(&mut self, key: &Key) {
        let (cx, members, leader) = (&mut self.ctx, &self.membership, &mut self.leader);
        match key {
            Key::Cluster => {
                if let Some(seen) = cx.view.cluster.seen(&()) {
                    cx.longest = cx.longest.max(seen.record.longest_ttl);
                    let record = Arc::clone(&seen.record);
                    move_pause::apply_cluster(cx, &record);
                }
                leader.plan_soon(cx);
            }
            Key::Leader => leader.check_leadership(cx, members),
            Key::Session(id) => self.on_session_record(*id),
            Key::Node(name) => {
                if *name == cx.config.name {
                    cx.note_own_node();
                }
                self.refresh_members();
                // A cordon changes no member, but it changes plans.
                self.leader.plan_soon(&mut self.ctx);
            }
            Key::Keyspace(name) => {
                self.recovery.note_keyspace(cx, name);
                self.assignment.stale(name);
                cx.scan_all = true;
                leader.check_leadership(cx, members);
                leader.plan_soon(cx);
            }
            Key::Shard(id) => self.on_shard_record(id),
        }
    }

    fn on_shard_record(&mut self, id: &ShardId) {
        let (cx, members, assignment) = (&mut self.ctx, &self.membership, &mut self.assignment);
        record_recovery::restore_later(cx, id);
        if let Some(record) = cx.view.shards.seen(id).map(|seen| Arc::clone(&seen.record)) {
            self.recovery.note_epoch(id, record.epoch);
            self.leader.note_plan(record.plan);
            self.shards.note_epoch(id, record.epoch);
            cx.publish_shard(id, &record);
        }
        self.leader.plan_soon(cx);
        if cx.own_node.mode == NodeMode::Draining {
            let soon = cx.now + cx.config.timing.renew_retry_interval;
            cx.timers.set_sooner(Timer::OwnRecord, soon);
        }
        if assignment.depends_on_shards(&id.keyspace) {
            assignment.stale(&id.keyspace);
            cx.scan_all = true;
        }
        self.shards.evaluate(cx, members, assignment, id);
    }

    fn on_session_record(&mut self, id: SessionId) {
        let cx = &mut self.ctx;
        self.startup.note_peer_alive(cx, id);
        let record = cx.view.sessions.get(&id);
        let gone = record.is_none_or(|record| record.ended.is_some());
        if let Some(record) = record {
            cx.longest = cx.longest.max(record.ttl);
            if record.role == Role::Router {
                // Shards that freeze may have waited for this router.
                let leaving = self.shards.leaving.iter();
                leaving.for_each(|shard| cx.changed.insert(Key::Shard(shard.clone())));
            }
        }
        if cx.my_session().is_some_and(|own| own.id == id) {
            let change = self.session.on_own_record(cx);
            self.on_session_change(change);
        } else if matches!(cx.life, Life::Running) {
            self.membership.watch_session(cx, id);
        }
        let cx = &mut self.ctx;
        if gone {
            self.leader.check_leadership(cx, &self.membership);
            // The shards of the ended session are free now, whether or not it was a member.
            self.assignment.all_stale();
            cx.scan_all = true;
        }
        self.refresh_members();
        let session = self.ctx.view.sessions.get(&id);
        if session.is_some_and(|s| s.role == Role::Node && !s.held.is_empty()) {
            // Moves that have loaded leave room for others.
            self.leader.plan_soon(&mut self.ctx);
        }
    }

    /// Applies a change of the session to the other parts.
    fn on_session_change(&mut self, change: Option<SessionChange>) {
        let cx = &mut self.ctx;
        match change {
            None => {}
            Some(SessionChange::Lease(phase)) => {
                self.leader.check_leadership(cx, &self.membership);
                if phase == LeasePhase::Detached {
                    self.shards.cut_all(cx, Reason::LeaseLost);
                }
                if phase == LeasePhase::Attached {
                    // Observations of other processes during the outage prove nothing.
                    self.membership.trust_from(cx.now);
                    self.startup.restart_peers(cx.now);
                    cx.scan_all = true;
                }
            }
            Some(SessionChange::Over(reason)) => {
                let Some(own) = cx.own.take() else { return };
                self.shards.cut_all(cx, reason);
                self.leader.stop_leading(cx);
                cx.timers.clear(&Timer::Renew);
                cx.timers.clear(&Timer::Lease);
                let session = own.id;
                cx.note(NodeEvent::SessionLost { session, reason });
                if matches!(cx.life, Life::Running | Life::Booting) {
                    self.startup.begin(cx, cx.now);
                }
                self.refresh_members();
            }
        }
    }

    fn check_expiry(&mut self, id: SessionId, is_current: bool) {
        if self.membership.check_expiry(&mut self.ctx, id, is_current) {
            self.assignment.all_stale();
        }
    }

    /// Derives the members of each keyspace. If they changed, so do all assignments.
    fn refresh_members(&mut self) {
        let cx = &mut self.ctx;
        let Some(changed) = self.membership.refresh(cx) else {
            return;
        };
        self.leader.plan_soon(cx);
        if changed.is_empty() {
            return;
        }
        for keyspace in changed {
            self.assignment.new_ranking(&keyspace);
            self.assignment.stale(&keyspace);
        }
        cx.scan_all = true;
        let settled = cx.now + cx.config.timing.assignment_settle_time;
        cx.timers.set(Timer::Rebalance, settled);
    }

    fn advance_startup(&mut self) {
        let (cx, recovery) = (&mut self.ctx, &mut self.recovery);
        let session = &mut self.session;
        match self
            .startup
            .advance_boot(cx, session, &self.membership, recovery)
        {
            None => {}
            Some(StartupEnd::Registered) => self.begin_running(),
            Some(StartupEnd::Refused(refusal)) => self.refuse(refusal),
        }
    }

    fn begin_running(&mut self) {
        self.startup.finish(&mut self.ctx);
        self.membership.trust_from(self.ctx.now);
        self.refresh_members();
        self.membership.watch_all_sessions(&mut self.ctx);
        if std::mem::take(&mut self.ctx.progress.relist) {
            self.ctx.list();
        }
        self.scan_shards();
        self.leader
            .check_leadership(&mut self.ctx, &self.membership);
        self.startup.begin_ready(&mut self.ctx);
    }

    fn refuse(&mut self, refusal: Refusal) {
        shutdown::resign_session(&mut self.ctx);
        self.ctx.life = Life::Over;
        self.startup.boot = Boot::default();
        self.ctx.out.push(Action::Refused(refusal));
    }

    /// Checks everything, so that no decision depends on a message that may have been lost.
    fn on_tick(&mut self) {
        let cx = &mut self.ctx;
        let next = cx.now + cx.config.timing.tick_interval;
        cx.timers.set(Timer::Tick, next);
        if !matches!(cx.life, Life::Running | Life::Stopping) {
            return;
        }
        sync::check_progress(cx);
        self.recovery.restore_node_record(cx);
        self.recovery.restore_cluster_record(cx);
        store_lease::check_neighbour_leases(cx);
        self.leader.check_leadership(cx, &self.membership);
        self.leader.plan_soon(cx);
        cx.read(Key::Node(cx.config.name.clone()));
        for name in Arc::clone(&cx.config).keyspaces.keys() {
            cx.read(Key::Keyspace(name.clone()));
        }
        self.shards.read_doubtful(cx);
        self.assignment.all_stale();
        self.shards.retries.renew_retries(cx);
        cx.timers.set_sooner(Timer::Restore, cx.now);
        cx.timers.set_sooner(Timer::OwnRecord, cx.now);
        if self.membership.is_first_member(cx) {
            sync::sweep(cx);
        }
        cx.scan_all = true;
    }

    /// Closes everything, forgets all records, and waits for raised generations: the store was replaced or restored.
    fn on_store_replaced(&mut self, problem: String) {
        let cx = &mut self.ctx;
        if cx.progress.store_replaced.is_some() {
            return;
        }
        cx.note(NodeEvent::StoreReplaced { problem });
        let keyspaces = cx.view.keyspaces.iter();
        let generations = keyspaces.map(|(name, k)| (name.clone(), k.record.generation));
        cx.progress.store_replaced = Some(generations.collect());
        self.shards.cut_all(cx, Reason::StoreReplaced);
        self.leader.stop_leading(cx);
        cx.own = None;
        // Replies of the former store must not get into the new view.
        cx.requests.clear();
        // A generation whose draw is in progress is not confirmed any more. A drawn one may be drawn again in this store.
        self.recovery.drawn.clear();
        self.shards.forget_writes();
        cx.timers.clear(&Timer::Renew);
        cx.timers.clear(&Timer::Lease);
        cx.view = View::new(cx.config.rules);
        cx.progress.asked_at = Revision(0);
        if !matches!(cx.life, Life::Stopping) {
            let at = cx.now + cx.config.timing.renew_interval;
            self.startup.begin(cx, at);
        }
    }

    fn on_reply(&mut self, op: OpId, reply: Reply) {
        let cx = &mut self.ctx;
        let Some(pending) = cx.requests.remove(op) else {
            return;
        };
        cx.progress.count_write(&reply);
        match pending {
            Pending::Put(write) => match on_put(cx, &mut self.leader, write, reply) {
                PutResult::WriteOutcome(settled) => self.settled(settled),
                PutResult::Denied(refusal) => self.refuse(refusal),
            },
            Pending::ReadBack {
                write,
                mark,
                unknown,
            } => {
                let recovery = &mut self.recovery;
                let settled = on_read_back(cx, recovery, write, mark, unknown, reply);
                self.settled(settled);
            }
            Pending::Read { key, mark } => {
                if let Some(id) = on_read(cx, &mut self.recovery, key, mark, reply) {
                    self.check_expiry(id, true);
                }
            }
            Pending::Delete { key, mark } => match reply {
                Reply::Won(_) => {
                    cx.note(NodeEvent::TombstoneRemoved { key: key.clone() });
                    learn_missing(cx, &mut self.recovery, key, mark);
                }
                Reply::Failed(failure) => {
                    let error = failure.text().to_owned();
                    cx.note(NodeEvent::GcFailed { key, error });
                }
                _ => {}
            },
            Pending::List { asked_at, begun } => self.on_list(asked_at, begun, reply),
            Pending::Revision { asked_at } => {
                if let Reply::Revision(revision) = reply
                    && let Some(problem) = cx.progress.on_revision(revision, asked_at)
                {
                    self.on_store_replaced(problem);
                }
            }
            Pending::CreateSession { nonce, sent } => {
                match self.session.on_created(cx, nonce, sent, &reply) {
                    None => {}
                    Some(false) => self.session_not_created(&reply),
                    Some(true) => {
                        let members = &mut self.membership;
                        self.startup
                            .on_boot_settled(cx, members, WriteOutcome::Done);
                    }
                }
            }
            Pending::AskLease { id, purpose } => {
                let waited = self.startup.has_waited_for(cx, id);
                match on_lease_checked(cx, id, &purpose, &reply, waited) {
                    LeaseCheck::WriteOutcome(outcome) => self.settled(Some((purpose, outcome))),
                    LeaseCheck::Writing => {}
                    LeaseCheck::NameInUse => self.refuse(Refusal::NameInUse { session: id }),
                }
            }
            Pending::Renew { id, .. }
            | Pending::ReadSession { id }
            | Pending::Grant { id, .. }
            | Pending::KeepAlive { id, .. }
                if cx.session() != Some(id) => {}
            Pending::Renew {
                nonce,
                sent,
                record,
                ..
            } => {
                let change = self.session.on_renewed(cx, nonce, sent, record, reply);
                self.on_session_change(change);
            }
            Pending::ReadSession { .. } => {
                let change = self.session.on_session_read(cx, reply);
                self.on_session_change(change);
            }
            Pending::Grant { sent, .. } => {
                if !self.session.on_lease_created(cx, sent, &reply) {
                    self.session_not_created(&reply);
                }
            }
            Pending::KeepAlive { sent, .. } => {
                let change = self.session.on_kept_alive(cx, sent, reply);
                self.on_session_change(change);
            }
        }
    }

    fn on_list(&mut self, asked_at: Revision, begun: Time, reply: Reply) {
        let Reply::Listed(listed) = reply else {
            return self.on_list_failed(&reply);
        };
        if let Some(problem) = sync::listing_problem(&self.ctx, &listed, asked_at) {
            self.on_store_replaced(problem);
        }
        let cx = &mut self.ctx;
        sync::apply_listing(cx, listed.revision, listed.entries, begun);
        if matches!(cx.life, Life::Booting) {
            let members = &mut self.membership;
            self.startup.boot_listed(cx, members, listed.store);
        } else if std::mem::take(&mut cx.progress.relist) {
            cx.list();
        }
    }

    fn on_list_failed(&mut self, reply: &Reply) {
        let cx = &mut self.ctx;
        if !matches!(cx.life, Life::Booting) {
            cx.progress.relist = true;
            let again = cx.later(cx.config.timing.renew_interval);
            return cx.timers.set_sooner(Timer::Tick, again);
        }
        let members = &mut self.membership;
        if let Some(refusal) = self.startup.boot_list_failed(cx, members, reply) {
            self.refuse(refusal);
        }
    }

    fn session_not_created(&mut self, reply: &Reply) {
        let (cx, members) = (&mut self.ctx, &mut self.membership);
        if let Some(refusal) = self.startup.session_not_created(cx, members, reply) {
            self.refuse(refusal);
        }
    }

    /// Passes the outcome of a write to the part that made it.
    fn settled(&mut self, settled: Option<SettledWrite>) {
        let Some((purpose, outcome)) = settled else {
            return;
        };
        let (cx, members) = (&mut self.ctx, &mut self.membership);
        match purpose {
            WritePurpose::Boot => self.startup.on_boot_settled(cx, members, outcome),
            WritePurpose::ExpireSession(id) => members.on_expiry_settled(cx, id, &outcome),
            WritePurpose::Shard(id) => {
                self.shards
                    .on_write_settled(cx, &mut self.assignment, id, outcome);
            }
            WritePurpose::Generation(name) => {
                self.recovery.on_generation_drawn(cx, &name, &outcome);
                self.recovery.on_restore_settled(cx, outcome);
            }
            WritePurpose::BootGeneration(name) => {
                self.recovery.on_generation_drawn(cx, &name, &outcome);
                self.startup.on_boot_settled(cx, members, outcome);
            }
            WritePurpose::Keyspace | WritePurpose::Restore => {
                self.recovery.on_restore_settled(cx, outcome);
            }
            WritePurpose::Resign => shutdown::on_resigned(cx, &mut self.session, &outcome),
            WritePurpose::Lead => self.leader.on_election_settled(cx, members, outcome),
            WritePurpose::Plan(id) => self.leader.on_planned(cx, &id, outcome),
            WritePurpose::OwnRecord => {
                rejoin::on_own_record_settled(cx, matches!(outcome, WriteOutcome::Failed { .. }));
            }
            WritePurpose::Unimportant => {}
        }
    }
}
