//! Startup: reads everything, agrees on the cluster and its keyspaces, takes the node's name and creates a session.
//!
//! Startup is level-triggered: [`Startup::advance_boot`] evaluates the view and performs the first step that is missing. Failed steps are
//! retried without limit. A start that can never succeed is refused with its reason. A node whose session ended while the node ran goes
//! through the same steps.

use crate::node::session_end;
use crate::node::store_lease;
use std::sync::Arc;

use crate::ids::{KeyspaceName, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::machine::{Expect, Refusal, Reply, StoreFailure};
use crate::record::{ClusterRecord, EndReason, Head, KeyspaceRecord, NodeRecord, Record, Unknown};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::membership::Membership;
use super::readiness::StartupWait;
use super::record_recovery::Recovery;
use super::rejoin::{RegistrationStep, StartupPeers};
use super::renewal::Session;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;
use super::{KeyspaceConfig, Life, Timekeeper};

/// Progress of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Boot {
    begun: bool,
    /// Identity of the store; `None` until everything was read.
    store: Option<String>,
    /// Number of requests of the start in progress.
    under_way: usize,
    /// Earliest time of the next step.
    not_before: Time,
    /// Earlier session of the node's name that the start waits for, its version when first seen, and the start of the wait.
    waiting: Option<(SessionId, Option<Version>, Time)>,
    /// `true` if the store denied the last attempt to create a session.
    refused: bool,
}

/// State of the start, and of the conditions for the node to count as started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Startup {
    pub(super) boot: Boot,
    /// Conditions for the node to count as started; `None` once they are met.
    pub(super) initial: Option<StartupWait>,
    /// Other nodes that were live at the start; `None` before they are recorded.
    pub(super) peers: Option<StartupPeers>,
}

/// End of a start.
pub(super) enum StartupEnd {
    /// The node's record names its session: the node runs.
    Registered,
    /// The start can never succeed.
    Refused(Refusal),
}

/// Next step of the start.
enum Next {
    Wait,
    At(Time),
    Done,
}

impl Boot {
    pub(super) fn is_fresh(&self) -> bool {
        !self.begun
    }
}

impl Startup {
    fn boot(&mut self, cx: &Ctx) -> Option<&mut Boot> {
        matches!(cx.life, Life::Booting).then_some(&mut self.boot)
    }

    /// Schedules a start for a given time.
    pub(super) fn begin(&mut self, cx: &mut Ctx, at: Time) {
        cx.life = Life::Booting;
        self.boot = Boot::default();
        cx.timers.set(Timer::Boot, at);
    }

    /// Continues a start that has waited.
    pub(super) fn resume(&mut self, cx: &Ctx) {
        if let Some(boot) = self.boot(cx) {
            boot.not_before = Time::ZERO;
        }
    }

    /// Ends a start: the node is registered.
    pub(super) fn finish(&mut self, cx: &mut Ctx) {
        cx.life = Life::Running;
        self.boot = Boot::default();
        cx.timers.clear(&Timer::Boot);
        let session = cx.session().unwrap_or(SessionId(0));
        let record = cx.view.nodes.get(&cx.config.name);
        let mode = record.map(|n| n.mode.clone()).unwrap_or_default();
        cx.note(NodeEvent::Registered { session, mode });
        cx.timers.set(Timer::OwnRecord, cx.now);
        if let Some(own) = &mut cx.own {
            own.registered = cx.now;
        }
        let tick = cx.now + cx.config.timing.tick_interval;
        cx.timers.set(Timer::Tick, tick);
    }

    /// Restarts the observation of the peers that the start found: observations from an outage prove nothing.
    pub(super) fn restart_peers(&mut self, now: Time) {
        if let Some(peers) = &mut self.peers {
            peers.restart(now);
        }
    }

    pub(super) fn advance_boot(
        &mut self,
        cx: &mut Ctx,
        session: &mut Session,
        membership: &Membership,
        recovery: &mut Recovery,
    ) -> Option<StartupEnd> {
        let now = cx.now;
        let boot = self.boot(cx)?;
        if boot.under_way > 0 || now < boot.not_before {
            return None;
        }
        if boot.store.is_none() {
            let first = !std::mem::replace(&mut boot.begun, true);
            boot.under_way = 1;
            if first {
                self.peers = None;
            }
            cx.list();
            return None;
        }
        let next = self
            .boot_cluster(cx, recovery)
            .and_then(|next| {
                if matches!(next, Next::Done) {
                    self.boot_keyspaces(cx, recovery)
                } else {
                    Ok(next)
                }
            })
            .and_then(|next| {
                if matches!(next, Next::Done) {
                    self.boot_name(cx, session, membership)
                } else {
                    Ok(next)
                }
            });
        match next {
            Err(refusal) => return Some(StartupEnd::Refused(refusal)),
            Ok(Next::Wait) => {}
            Ok(Next::At(at)) => cx.timers.set_sooner(Timer::Boot, at.max(cx.now)),
            Ok(Next::Done) => return Some(StartupEnd::Registered),
        }
        None
    }

    fn boot_put(&mut self, cx: &mut Ctx, key: Key, expect: Expect, record: Record) {
        self.count_under_way(cx);
        cx.put(key, expect, record, WritePurpose::Boot);
    }

    fn boot_cluster(&mut self, cx: &mut Ctx, recovery: &mut Recovery) -> Result<Next, Refusal> {
        let nonce = cx.nonce();
        let store = self
            .boot(cx)
            .and_then(|b| b.store.clone())
            .unwrap_or_default();
        let ttl = cx.longest_ttl();
        match cx.view.cluster.cell(&()) {
            None | Some(KeyState::Missing { .. }) if cx.store_replaced.is_some() => {
                // The store has lost everything. Only an operator can decide how to continue.
                self.relist_later(cx);
                Ok(Next::Wait)
            }
            None | Some(KeyState::Missing { .. }) => {
                let rev = cx.view.fresh_rev(&Key::Cluster);
                let head = Head {
                    rev,
                    ..Head::first(nonce)
                };
                let record = ClusterRecord {
                    head,
                    boot: cx.view.highest_boot().max(1),
                    store,
                    longest_ttl: ttl,
                    keyspaces: recovery.generations.clone(),
                    moves_paused: None,
                    unknown: Unknown::new(),
                };
                self.boot_put(
                    cx,
                    Key::Cluster,
                    Expect::Absent,
                    Record::Cluster(Arc::new(record)),
                );
                Ok(Next::Wait)
            }
            Some(KeyState::Damaged { damage, .. }) => Err(Refusal::Damaged {
                key: Key::Cluster,
                damage: damage.clone(),
            }),
            Some(KeyState::Present(seen)) if seen.record.store != store => {
                let expected = seen.record.store.clone();
                if !cx.started {
                    return Err(Refusal::StoreChanged {
                        found: store,
                        expected,
                    });
                }
                self.relist_later(cx);
                Ok(Next::Wait)
            }
            Some(KeyState::Present(seen))
                if seen.record.longest_ttl < ttl
                    || self.lists_too_low(cx, recovery, &seen.record) =>
            {
                let mut record = (*seen.record).clone();
                record.head = record.head.next(nonce);
                record.longest_ttl = record.longest_ttl.max(ttl);
                recovery.raise_listed(&mut record);
                let expect = Expect::Version(seen.version.clone());
                self.boot_put(cx, Key::Cluster, expect, Record::Cluster(Arc::new(record)));
                Ok(Next::Wait)
            }
            Some(KeyState::Present(_)) => {
                if cx.is_estranged() {
                    self.relist_later(cx);
                    return Ok(Next::Wait);
                }
                Ok(Next::Done)
            }
        }
    }

    /// Returns `true` if the cluster's record lists a lower generation of a keyspace than this node has seen.
    ///
    /// This happens after a restore of the store. A record that is lost later would be restored below an epoch that was already assigned.
    fn lists_too_low(&self, _cx: &Ctx, recovery: &Recovery, cluster: &ClusterRecord) -> bool {
        let listed = |name| cluster.keyspaces.get(name).copied().unwrap_or(0);
        let mut known = recovery.generations.iter();
        known.any(|(name, generation)| listed(name) < *generation)
    }

    fn relist_later(&mut self, cx: &mut Ctx) {
        let at = cx.now + cx.config.timing.ttl;
        if let Some(boot) = self.boot(cx) {
            boot.store = None;
            boot.not_before = at;
        }
        cx.timers.set(Timer::Boot, at);
    }

    fn boot_keyspaces(&mut self, cx: &mut Ctx, recovery: &mut Recovery) -> Result<Next, Refusal> {
        let config = Arc::clone(&cx.config);
        for (name, wanted) in &config.keyspaces {
            let key = Key::Keyspace(name.clone());
            match cx.view.keyspaces.cell(name) {
                Some(KeyState::Damaged { damage, .. }) => {
                    return Err(Refusal::Damaged {
                        key,
                        damage: damage.clone(),
                    });
                }
                Some(KeyState::Present(seen)) if !seen.record.deleted => {
                    if let Some(problem) = difference(name, wanted, &seen.record) {
                        return Err(Refusal::KeyspaceDiffers { problem });
                    }
                }
                // A keyspace that was removed while this node ran remains removed.
                Some(KeyState::Present(_)) if cx.started => {}
                _ => return Ok(self.create_keyspace(cx, recovery, name, wanted)),
            }
        }
        Ok(Next::Done)
    }

    /// Draws a generation, writes a keyspace's shard records, and finally the record of the keyspace itself.
    ///
    /// A keyspace that the cluster's record lists and that has no record was lost, or another node is creating it. The start waits for
    /// the longest ttl plus clock drift and then restores the record. Every session that may own a shard of the keyspace becomes a witness.
    fn create_keyspace(
        &mut self,
        cx: &mut Ctx,
        recovery: &mut Recovery,
        name: &KeyspaceName,
        wanted: &KeyspaceConfig,
    ) -> Next {
        let key = Key::Keyspace(name.clone());
        let removed = cx.view.keyspaces.get(name).is_some_and(|k| k.deleted);
        let fresh = recovery
            .drawn
            .get(name)
            .map_or(recovery.known_generation(cx, name) == 0, |drawn| {
                drawn.fresh
            });
        let mut since = Time::ZERO;
        if !removed && !fresh {
            if cx.view.keyspaces.cell(name).is_none() {
                // The record may have been created after the complete read. Only a read of the key itself proves that it is missing.
                cx.absent.insert(key);
                return Next::At(cx.now + cx.config.timing.renew_interval);
            }
            if let Some(KeyState::Missing { since: noticed }) = cx.view.keyspaces.cell(name) {
                since = *noticed;
            }
            if let Some(next) = self.wait_to_restore(cx, since) {
                return next;
            }
        }
        let lost = cx.view.lost_at_start(name, wanted.kind, fresh);
        if !fresh && !removed {
            // The restored record replaces a placeholder, so that a late copy of the write cannot bring an old generation back.
            let version = |id: &&ShardId| cx.view.version(&Key::Shard((*id).clone()));
            let absent: Vec<ShardId> = lost
                .keys()
                .filter(|id| version(id).is_none())
                .cloned()
                .collect();
            if !absent.is_empty() {
                for id in absent {
                    self.count_under_way(cx);
                    recovery.put_placeholder(cx, Key::Shard(id), WritePurpose::Boot);
                }
                return Next::Wait;
            }
            // A generation serves for losses before its draw. A record that is lost now may have had a later generation.
            since = lost.values().copied().fold(since, Time::max);
            // The record may have been restored, claimed and lost again since the last complete read.
            if let Some(next) = self.wait_to_restore(cx, since) {
                return next;
            }
        }
        let at = |recovery: &Recovery| recovery.drawn.get(name).map(|drawn| drawn.at);
        let before = at(recovery);
        let Some(generation) =
            recovery.draw_generation(cx, name, since, WritePurpose::BootGeneration(name.clone()))
        else {
            if at(recovery) != before {
                self.count_under_way(cx);
            }
            return Next::Wait;
        };
        if !lost.is_empty() {
            let witnesses = if fresh {
                Vec::new()
            } else {
                cx.possible_owners()
            };
            for id in lost.into_keys() {
                self.count_under_way(cx);
                let version = cx.view.version(&Key::Shard(id.clone()));
                let expect = version.map_or(Expect::Absent, Expect::Version);
                recovery.put_restored(
                    cx,
                    id,
                    expect,
                    generation,
                    witnesses.clone(),
                    WritePurpose::Boot,
                );
            }
            return Next::Wait;
        }
        self.count_under_way(cx);
        let floor = if fresh { 0 } else { generation };
        recovery.put_keyspace(cx, name, wanted, generation, floor, WritePurpose::Boot);
        Next::Wait
    }

    /// Returns the next wait before records that are lost since `since` may be restored. The first wait is the longest ttl plus clock
    /// drift. The second is a complete read that begins after it and contains every possible owner, also sessions that the watch missed.
    fn wait_to_restore(&mut self, cx: &mut Ctx, since: Time) -> Option<Next> {
        let at = cx.restore_at(since);
        if cx.now < at {
            return Some(Next::At(at));
        }
        if cx.progress.listed_at >= at {
            return None;
        }
        if let Some(boot) = self.boot(cx) {
            boot.store = None;
        }
        Some(Next::At(cx.now))
    }

    /// Counts one more request of the start in progress.
    fn count_under_way(&mut self, cx: &mut Ctx) {
        if let Some(boot) = self.boot(cx) {
            boot.under_way += 1;
        }
    }

    /// Takes the node's name, once no other process can be using it.
    fn boot_name(
        &mut self,
        cx: &mut Ctx,
        session: &mut Session,
        membership: &Membership,
    ) -> Result<Next, Refusal> {
        self.record_startup_peers(cx);
        let name = cx.config.name.clone();
        let key = Key::Node(name.clone());
        let cell = cx.view.nodes.cell(&name).cloned();
        let (expect, recorded) = match cell {
            Some(KeyState::Damaged { damage, .. }) => return Err(Refusal::Damaged { key, damage }),
            Some(KeyState::Present(seen)) => (Expect::Version(seen.version), Some(seen.record)),
            _ => (Expect::Absent, None),
        };
        let holder = recorded.as_ref().map(|record| record.session);
        if let Some(session) = holder
            && cx.session() == Some(session)
        {
            return Ok(self.end_predecessor(cx));
        }
        if let Some(id) = holder
            && !session.has_created(cx, id)
            && !cx.ended(id)
            && cx.config.last_session != Some(id)
        {
            return self.wait_for_name(cx, membership, id);
        }
        let entry = match self.enter_as(cx, session, recorded.as_deref()) {
            RegistrationStep::As(entry) => entry,
            RegistrationStep::Raising => {
                self.count_under_way(cx);
                return Ok(Next::Wait);
            }
            RegistrationStep::At(at) => return Ok(Next::At(at)),
            RegistrationStep::Unasked(session) => {
                self.count_under_way(cx);
                self.check_peer_lease(cx, session);
                return Ok(Next::Wait);
            }
            RegistrationStep::Unread => {
                if let Some(boot) = self.boot(cx) {
                    boot.store = None;
                }
                return Ok(Next::At(cx.now));
            }
        };
        if cx.my_session().is_none() {
            if session.is_wedged(cx).is_some() {
                return Ok(Next::At(cx.now + cx.config.timing.renew_interval));
            }
            if cx.own.is_none() {
                self.count_under_way(cx);
                session.create_session(cx);
            }
            return Ok(Next::Wait);
        }
        let nonce = cx.nonce();
        let fresh = Head {
            rev: cx.view.fresh_rev(&key),
            ..Head::first(nonce)
        };
        let recorded = recorded.as_deref();
        let record = NodeRecord {
            head: recorded.map_or(fresh, |old| old.head.next(nonce)),
            session: cx.session().unwrap_or(SessionId(0)),
            mode: entry.mode,
            cordoned: recorded.is_some_and(|old| old.cordoned),
            boot: cx.view.cluster.get(&()).map(|c| c.boot),
            unsure: entry.unsure,
            ephemeral: cx.config.ephemeral,
            stop_session: None,
            unknown: recorded.map(|old| old.unknown.clone()).unwrap_or_default(),
        };
        self.boot_put(cx, key, expect, Record::Node(Arc::new(record)));
        Ok(Next::Wait)
    }

    /// Ends the session of a process that is known to be dead, once this process is registered in its place.
    ///
    /// If the session ended earlier, the node would seem to be gone, and other nodes would take its shards.
    fn end_predecessor(&mut self, cx: &mut Ctx) -> Next {
        let Some(last) = cx.config.last_session else {
            return Next::Done;
        };
        let live = cx.view.sessions.get(&last).is_some_and(|s| s.is_live());
        if !live || cx.ended(last) {
            return Next::Done;
        }
        self.count_under_way(cx);
        session_end::end_session(cx, last, EndReason::Replaced, WritePurpose::Boot);
        Next::Wait
    }

    fn wait_for_name(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        session: SessionId,
    ) -> Result<Next, Refusal> {
        let rules = cx.config.rules;
        if cx.own.is_some() {
            // Another process took the name between this node's read and write. The session of this node has no use.
            cx.resign_session();
        }
        if rules.broken_by(Mutant::StealName) {
            self.count_under_way(cx);
            session_end::end_session(cx, session, EndReason::Replaced, WritePurpose::Boot);
            return Ok(Next::Wait);
        }
        let now = cx.now;
        let version = cx.view.version(&Key::Session(session));
        let ttl = cx
            .view
            .sessions
            .get(&session)
            .map_or(cx.config.timing.ttl, |s| s.ttl);
        let limit = match cx.config.timekeeper {
            Timekeeper::Nodes => ttl + ttl / 5,
            Timekeeper::Store => cx.lease_ends_within(session),
        };
        let boot = self.boot(cx);
        let (_, first, since) = match boot.and_then(|b| b.waiting.clone()) {
            Some(waiting) if waiting.0 == session => waiting,
            _ => {
                let waiting = (session, version.clone(), now);
                if let Some(boot) = self.boot(cx) {
                    boot.waiting = Some(waiting.clone());
                }
                cx.note(NodeEvent::WaitingForName {
                    session,
                    at_most: limit,
                });
                waiting
            }
        };
        if cx.config.timekeeper == Timekeeper::Store && !cx.view.is_unproven(session) {
            let at = store_lease::wait_for_lease(cx, session, since + limit);
            if at.is_none()
                && let Some(boot) = self.boot(cx)
            {
                boot.under_way += 1;
            }
            return Ok(at.map_or(Next::Wait, Next::At));
        }
        let renewed = cx
            .view
            .sessions
            .seen(&session)
            .is_some_and(|s| s.record.is_live() && now < s.since + ttl / 2);
        if now >= since + limit && first != version && renewed {
            return Err(Refusal::NameInUse { session });
        }
        match membership.expires_at(cx, session) {
            Some(at) if now >= at => {
                self.count_under_way(cx);
                session_end::end_session(cx, session, EndReason::Expired, WritePurpose::Boot);
                Ok(Next::Wait)
            }
            Some(at) if first == version || now >= since + limit => Ok(Next::At(at)),
            Some(at) => Ok(Next::At(at.min(since + limit))),
            None => {
                if cx.view.is_missing(&Key::Session(session)) {
                    self.count_under_way(cx);
                    session_end::end_session(cx, session, EndReason::Missing, WritePurpose::Boot);
                    return Ok(Next::Wait);
                }
                cx.absent.insert(Key::Session(session));
                Ok(Next::At(now + cx.config.timing.renew_interval))
            }
        }
    }

    /// Returns `true` if a start has waited for the earlier session of its name for as long as that session may last.
    pub(super) fn has_waited_for(&self, cx: &Ctx, session: SessionId) -> bool {
        let limit = cx.lease_ends_within(session);
        let waiting = self.boot.waiting.as_ref();
        waiting.is_some_and(|(id, _, since)| *id == session && cx.now >= *since + limit)
    }

    pub(super) fn on_boot_settled(
        &mut self,
        cx: &mut Ctx,
        membership: &mut Membership,
        outcome: WriteOutcome,
    ) {
        let retry = cx.later(cx.config.timing.renew_retry_interval);
        let Some(boot) = self.boot(cx) else { return };
        boot.under_way = boot.under_way.saturating_sub(1);
        if matches!(outcome, WriteOutcome::Failed { .. }) {
            boot.not_before = retry;
            // Observations from the time when the store was unavailable prove nothing.
            membership.trust_from(cx.now);
            if let Some(company) = &mut self.peers {
                company.restart(cx.now);
            }
            cx.timers.set(Timer::Boot, retry);
        }
    }

    pub(super) fn boot_listed(&mut self, cx: &mut Ctx, membership: &mut Membership, store: String) {
        if let Some(boot) = self.boot(cx) {
            boot.under_way = boot.under_way.saturating_sub(1);
            boot.store = Some(store);
        }
        membership.trust_from(cx.now);
    }

    /// Returns the refusal if the store denied a write of the start for good. A node that has never started ends then, because no action of
    /// the node would change the denial.
    pub(super) fn denied_at_start(cx: &Ctx, failure: &StoreFailure) -> Option<Refusal> {
        let StoreFailure::Denied(reason) = failure else {
            return None;
        };
        let starts = !cx.started && matches!(cx.life, Life::Booting);
        starts.then(|| Refusal::Denied(reason.clone()))
    }

    /// Handles a failed creation of the session. The store lease may have ended by accident before the session's record was written, so the
    /// node tries a new one. Two denials in a row end the start.
    pub(super) fn session_not_created(
        &mut self,
        cx: &mut Ctx,
        membership: &mut Membership,
        reply: &Reply,
    ) -> Option<Refusal> {
        cx.own = None;
        let failure = match reply {
            Reply::Failed(failure) => Some(failure),
            _ => None,
        };
        let denied = failure.is_some_and(|f| matches!(f, StoreFailure::Denied(_)));
        let again = self
            .boot(cx)
            .is_some_and(|boot| std::mem::replace(&mut boot.refused, denied));
        let refusal = failure.and_then(|failure| Self::denied_at_start(cx, failure));
        if again && refusal.is_some() {
            return refusal;
        }
        self.on_boot_settled(cx, membership, WriteOutcome::Failed { unknown: false });
        None
    }

    pub(super) fn boot_list_failed(
        &mut self,
        cx: &mut Ctx,
        membership: &mut Membership,
        reply: &Reply,
    ) -> Option<Refusal> {
        if let Reply::Failed(failure) = reply
            && let Some(refusal) = Self::denied_at_start(cx, failure)
        {
            return Some(refusal);
        }
        self.on_boot_settled(cx, membership, WriteOutcome::Failed { unknown: false });
        None
    }
}

impl Ctx {
    /// Returns `true` if a store that went back in time still lacks the raised generations that make it safe to continue.
    fn is_estranged(&mut self) -> bool {
        let Some(known) = &self.store_replaced else {
            return false;
        };
        let raised = known.iter().all(|(name, generation)| {
            self.view
                .keyspaces
                .get(name)
                .is_some_and(|k| k.min_generation > *generation)
        });
        if raised {
            self.store_replaced = None;
        }
        !raised
    }
}

impl Session {
    /// Returns `true` if this process created the session.
    pub(super) fn has_created(&self, cx: &Ctx, session: SessionId) -> bool {
        let n = session.0.wrapping_sub(cx.config.entropy);
        n >= 1 && n <= u128::from(self.sessions)
    }
}

fn difference(
    name: &KeyspaceName,
    wanted: &KeyspaceConfig,
    found: &KeyspaceRecord,
) -> Option<String> {
    if wanted.kind != found.kind {
        return Some(format!(
            "keyspace {name} is {}, but this node was started with {}; start the node with the keyspace's setting, or \
             create another keyspace",
            found.kind, wanted.kind
        ));
    }
    if wanted.mode != found.assigned_by {
        return Some(format!(
            "keyspace {name} has assigned_by = {}, but this node was started with {}; start the node with the \
             keyspace's setting",
            found.assigned_by, wanted.mode
        ));
    }
    None
}
