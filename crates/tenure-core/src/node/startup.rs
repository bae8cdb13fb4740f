//! The start: read everything, agree on cluster and keyspaces, take the node's name, create a session.
//!
//! Level-triggered like everything else: [`Node::advance_boot`] looks at the view and does the first thing that is not as it
//! should be. Whatever fails is tried again, for ever; what can never succeed is refused with its reason. A node whose
//! session ended while it ran goes through the same steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{KeyspaceName, SessionId, ShardId, ShardName, Version};
use crate::keys::Key;
use crate::machine::{Expect, Refusal, Reply, StoreFailure};
use crate::record::{
    ClusterRecord, EndReason, Head, KeyspaceKind, KeyspaceRecord, NodeRecord, Record, Unknown,
};
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::rejoin::Entering;
use super::store_requests::{Settled, WritePurpose};
use super::timers::Timer;
use super::{KeyspaceConfig, Life, Node, Timekeeper};

/// How far the start has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Boot {
    begun: bool,
    /// The identity of the store, once everything was read.
    store: Option<String>,
    /// Requests of the start that are under way.
    under_way: usize,
    /// Nothing happens before this.
    not_before: Time,
    /// The earlier holder of the name that is waited for: its session, its version at first sight, and since when.
    waiting: Option<(SessionId, Option<Version>, Time)>,
    /// Whether the store refused the last session that was tried.
    refused: bool,
}

/// What the start should do next.
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

impl Node {
    fn boot(&mut self) -> Option<&mut Boot> {
        match &mut self.life {
            Life::Booting(boot) => Some(boot),
            _ => None,
        }
    }

    pub(super) fn resume_boot(&mut self) {
        if let Some(boot) = self.boot() {
            boot.not_before = Time::ZERO;
        }
        self.advance_boot();
    }

    pub(super) fn advance_boot(&mut self) {
        let now = self.now;
        let Some(boot) = self.boot() else { return };
        if boot.under_way > 0 || now < boot.not_before {
            return;
        }
        if boot.store.is_none() {
            let first = !std::mem::replace(&mut boot.begun, true);
            boot.under_way = 1;
            if first {
                self.company = None;
            }
            return self.list();
        }
        let next = self
            .boot_cluster()
            .and_then(|next| {
                if matches!(next, Next::Done) {
                    self.boot_keyspaces()
                } else {
                    Ok(next)
                }
            })
            .and_then(|next| {
                if matches!(next, Next::Done) {
                    self.boot_name()
                } else {
                    Ok(next)
                }
            });
        match next {
            Err(refusal) => self.refuse(refusal),
            Ok(Next::Wait) => {}
            Ok(Next::At(at)) => self.timers.set_sooner(Timer::Boot, at.max(self.now)),
            Ok(Next::Done) => self.begin_running(),
        }
    }

    fn begin_running(&mut self) {
        self.life = Life::Running;
        self.timers.clear(&Timer::Boot);
        let session = self.session().unwrap_or(SessionId(0));
        let mode = self
            .view
            .nodes
            .get(&self.config.name)
            .map(|n| n.mode.clone())
            .unwrap_or_default();
        self.note(NodeEvent::Registered { session, mode });
        self.timers.set(Timer::OwnRecord, self.now);
        self.peers.trust_from(self.now);
        self.registered = self.now;
        self.timers
            .set(Timer::Tick, self.now + self.config.timing.tick_interval);
        self.refresh_members();
        self.judge_everyone();
        if std::mem::take(&mut self.relist) {
            self.list();
        }
        self.look_at_every_shard();
        self.look_at_leader();
        self.begin_ready();
    }

    fn boot_put(&mut self, key: Key, expect: Expect, record: Record) {
        self.count_under_way();
        self.put(key, expect, record, WritePurpose::Boot);
    }

    fn boot_cluster(&mut self) -> Result<Next, Refusal> {
        let nonce = self.nonce();
        let store = self
            .boot()
            .and_then(|b| b.store.clone())
            .unwrap_or_default();
        let ttl = self.longest_ttl();
        match self.view.cluster.cell(&()) {
            None | Some(KeyState::Missing { .. }) if self.store_replaced.is_some() => {
                // A store that lost everything: only people can say what it should become.
                self.relist_later();
                Ok(Next::Wait)
            }
            None | Some(KeyState::Missing { .. }) => {
                let rev = self.view.fresh_rev(&Key::Cluster);
                let head = Head {
                    rev,
                    ..Head::first(nonce)
                };
                let record = ClusterRecord {
                    head,
                    boot: self.view.highest_boot().max(1),
                    store,
                    longest_ttl: ttl,
                    keyspaces: self.generations.clone(),
                    moves_paused: None,
                    unknown: Unknown::new(),
                };
                self.boot_put(
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
                if !self.started {
                    return Err(Refusal::StoreChanged {
                        found: store,
                        expected,
                    });
                }
                self.relist_later();
                Ok(Next::Wait)
            }
            Some(KeyState::Present(seen))
                if seen.record.longest_ttl < ttl || self.lists_too_low(&seen.record) =>
            {
                let mut record = (*seen.record).clone();
                record.head = record.head.next(nonce);
                record.longest_ttl = record.longest_ttl.max(ttl);
                self.raise_listed(&mut record);
                let expect = Expect::Version(seen.version.clone());
                self.boot_put(Key::Cluster, expect, Record::Cluster(Arc::new(record)));
                Ok(Next::Wait)
            }
            Some(KeyState::Present(_)) => {
                if self.is_estranged() {
                    self.relist_later();
                    return Ok(Next::Wait);
                }
                Ok(Next::Done)
            }
        }
    }

    /// True if the cluster's record lists a lower generation of a keyspace than this node has seen. A store that was
    /// restored does: a record that is lost later would be restored below an epoch that was given out.
    fn lists_too_low(&self, cluster: &ClusterRecord) -> bool {
        let listed = |name| cluster.keyspaces.get(name).copied().unwrap_or(0);
        let mut known = self.generations.iter();
        known.any(|(name, generation)| listed(name) < *generation)
    }

    /// Whether a store that went back in time still lacks the raised generations that make it safe to go on.
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

    fn relist_later(&mut self) {
        let at = self.now + self.config.timing.ttl;
        if let Some(boot) = self.boot() {
            boot.store = None;
            boot.not_before = at;
        }
        self.timers.set(Timer::Boot, at);
    }

    fn boot_keyspaces(&mut self) -> Result<Next, Refusal> {
        let config = Arc::clone(&self.config);
        for (name, wanted) in &config.keyspaces {
            let key = Key::Keyspace(name.clone());
            match self.view.keyspaces.cell(name) {
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
                // One that was removed while this node ran stays removed.
                Some(KeyState::Present(_)) if self.started => {}
                _ => return Ok(self.create_keyspace(name, wanted)),
            }
        }
        Ok(Next::Done)
    }

    /// Draws a generation, writes a keyspace's shard records, and when all are there, the keyspace's own.
    ///
    /// A keyspace that the cluster's record lists and that has no record of its own was lost, or is being created by
    /// somebody else: it is left alone for a ttl, and then made anew with everyone who may own something of it as a witness.
    fn create_keyspace(&mut self, name: &KeyspaceName, wanted: &KeyspaceConfig) -> Next {
        let key = Key::Keyspace(name.clone());
        let removed = self.view.keyspaces.get(name).is_some_and(|k| k.deleted);
        let fresh = self
            .drawn
            .get(name)
            .map_or(self.known_generation(name) == 0, |drawn| drawn.fresh);
        let mut since = Time::ZERO;
        if !removed && !fresh {
            if self.view.keyspaces.cell(name).is_none() {
                // It may have been made since everything was listed: only a read of the key itself is believed.
                self.absent.insert(key);
                return Next::At(self.now + self.config.timing.renew_interval);
            }
            if let Some(KeyState::Missing { since: noticed }) = self.view.keyspaces.cell(name) {
                since = *noticed;
            }
            if let Some(next) = self.wait_to_restore(since) {
                return next;
            }
        }
        let lost = self.lost_at_start(name, wanted.kind, fresh);
        if !fresh && !removed {
            // A late copy of a restored record must not bring an old generation back: it replaces a placeholder.
            let version = |id: &&ShardId| self.view.version(&Key::Shard((*id).clone()));
            let absent: Vec<ShardId> = lost
                .keys()
                .filter(|id| version(id).is_none())
                .cloned()
                .collect();
            if !absent.is_empty() {
                for id in absent {
                    self.count_under_way();
                    self.put_placeholder(Key::Shard(id), WritePurpose::Boot);
                }
                return Next::Wait;
            }
            // A generation serves for what was lost before it was drawn. What is lost now may have had a later one.
            since = lost.values().copied().fold(since, Time::max);
            // The record may have been restored, claimed and lost again since everything was listed.
            if let Some(next) = self.wait_to_restore(since) {
                return next;
            }
        }
        let at = |node: &Self| node.drawn.get(name).map(|drawn| drawn.at);
        let before = at(self);
        let Some(generation) =
            self.draw_generation(name, since, WritePurpose::BootGeneration(name.clone()))
        else {
            if at(self) != before {
                self.count_under_way();
            }
            return Next::Wait;
        };
        if !lost.is_empty() {
            let witnesses = if fresh {
                Vec::new()
            } else {
                self.possible_owners()
            };
            for id in lost.into_keys() {
                self.count_under_way();
                let version = self.view.version(&Key::Shard(id.clone()));
                let expect = version.map_or(Expect::Absent, Expect::Version);
                self.put_restored(
                    id,
                    expect,
                    generation,
                    witnesses.clone(),
                    WritePurpose::Boot,
                );
            }
            return Next::Wait;
        }
        self.count_under_way();
        let floor = if fresh { 0 } else { generation };
        self.put_keyspace(name, wanted, generation, floor, WritePurpose::Boot);
        Next::Wait
    }

    /// Returns the next wait before records that are lost since `since` may be restored: the longest ttl, then a list that
    /// begins after it. The list contains every session that may own one of the shards, also those that the watch missed.
    fn wait_to_restore(&mut self, since: Time) -> Option<Next> {
        let at = self.restore_at(since);
        if self.now < at {
            return Some(Next::At(at));
        }
        if self.listed_at >= at {
            return None;
        }
        if let Some(boot) = self.boot() {
            boot.store = None;
        }
        Some(Next::At(self.now))
    }

    /// The shard records that a keyspace lacks when it is created or restored, and since when this node knows that.
    fn lost_at_start(
        &self,
        name: &KeyspaceName,
        kind: KeyspaceKind,
        fresh: bool,
    ) -> BTreeMap<ShardId, Time> {
        let KeyspaceKind::Hashed(n) = kind else {
            return BTreeMap::new();
        };
        let ids = (0..n).map(|index| ShardId::new(name.clone(), ShardName::index(index)));
        ids.filter_map(|id| {
            let since = match self.view.shards.cell(&id) {
                None => Time::ZERO,
                Some(KeyState::Missing { since }) => *since,
                Some(KeyState::Damaged { damage, since, .. })
                    if !fresh && damage.is_placeholder() =>
                {
                    *since
                }
                Some(KeyState::Damaged { .. } | KeyState::Present(_)) => return None,
            };
            Some((id, since))
        })
        .collect()
    }

    /// One more request of the start is under way.
    fn count_under_way(&mut self) {
        if let Some(boot) = self.boot() {
            boot.under_way += 1;
        }
    }

    /// Takes the node's name, once nobody else can be using it.
    fn boot_name(&mut self) -> Result<Next, Refusal> {
        self.record_startup_peers();
        let name = self.config.name.clone();
        let key = Key::Node(name.clone());
        let cell = self.view.nodes.cell(&name).cloned();
        let (expect, recorded) = match cell {
            Some(KeyState::Damaged { damage, .. }) => return Err(Refusal::Damaged { key, damage }),
            Some(KeyState::Present(seen)) => (Expect::Version(seen.version), Some(seen.record)),
            _ => (Expect::Absent, None),
        };
        let holder = recorded.as_ref().map(|record| record.session);
        if let Some(session) = holder
            && self.session() == Some(session)
        {
            return Ok(self.end_predecessor());
        }
        if let Some(session) = holder
            && !self.was_mine(session)
            && !self.ended(session)
            && self.config.last_session != Some(session)
        {
            return self.wait_for_name(session);
        }
        let entry = match self.enter_as(recorded.as_deref()) {
            Entering::As(entry) => entry,
            Entering::Raising => {
                self.count_under_way();
                return Ok(Next::Wait);
            }
            Entering::At(at) => return Ok(Next::At(at)),
            Entering::Unasked(session) => {
                self.count_under_way();
                self.ask_after_company(session);
                return Ok(Next::Wait);
            }
            Entering::Unread => {
                if let Some(boot) = self.boot() {
                    boot.store = None;
                }
                return Ok(Next::At(self.now));
            }
        };
        if self.my_session().is_none() {
            if self.is_wedged().is_some() {
                return Ok(Next::At(self.now + self.config.timing.renew_interval));
            }
            if self.holder.is_none() {
                self.count_under_way();
                self.create_session();
            }
            return Ok(Next::Wait);
        }
        let nonce = self.nonce();
        let fresh = Head {
            rev: self.view.fresh_rev(&key),
            ..Head::first(nonce)
        };
        let recorded = recorded.as_deref();
        let record = NodeRecord {
            head: recorded.map_or(fresh, |old| old.head.next(nonce)),
            session: self.session().unwrap_or(SessionId(0)),
            mode: entry.mode,
            cordoned: recorded.is_some_and(|old| old.cordoned),
            boot: self.view.cluster.get(&()).map(|c| c.boot),
            unsure: entry.unsure,
            ephemeral: self.config.ephemeral,
            stop_session: None,
            unknown: recorded.map(|old| old.unknown.clone()).unwrap_or_default(),
        };
        self.boot_put(key, expect, Record::Node(Arc::new(record)));
        Ok(Next::Wait)
    }

    /// Ends the session of a process that is known to be dead, once this one stands in its place for all to see: before,
    /// others would take the shards of a node that seems to be gone.
    fn end_predecessor(&mut self) -> Next {
        let Some(last) = self.config.last_session else {
            return Next::Done;
        };
        let live = self.view.sessions.get(&last).is_some_and(|s| s.is_live());
        if !live || self.ended(last) {
            return Next::Done;
        }
        self.count_under_way();
        self.end_session(last, EndReason::Replaced, WritePurpose::Boot);
        Next::Wait
    }

    /// Whether a session was created by this very process.
    pub(super) fn was_mine(&self, session: SessionId) -> bool {
        let n = session.0.wrapping_sub(self.config.entropy);
        n >= 1 && n <= u128::from(self.sessions)
    }

    fn wait_for_name(&mut self, session: SessionId) -> Result<Next, Refusal> {
        let rules = self.config.rules;
        if self.holder.is_some() {
            // Somebody took the name between our look and our write: our session is of no use.
            self.resign_session();
        }
        if rules.broken_by(Mutant::StealName) {
            self.count_under_way();
            self.end_session(session, EndReason::Replaced, WritePurpose::Boot);
            return Ok(Next::Wait);
        }
        let now = self.now;
        let version = self.view.version(&Key::Session(session));
        let ttl = self
            .view
            .sessions
            .get(&session)
            .map_or(self.config.timing.ttl, |s| s.ttl);
        let limit = match self.config.timekeeper {
            Timekeeper::Nodes => ttl + ttl / 5,
            Timekeeper::Store => self.lease_ends_within(session),
        };
        let boot = self.boot();
        let (_, first, since) = match boot.and_then(|b| b.waiting.clone()) {
            Some(waiting) if waiting.0 == session => waiting,
            _ => {
                let waiting = (session, version.clone(), now);
                if let Some(boot) = self.boot() {
                    boot.waiting = Some(waiting.clone());
                }
                self.note(NodeEvent::WaitingForName {
                    session,
                    at_most: limit,
                });
                waiting
            }
        };
        if self.config.timekeeper == Timekeeper::Store && !self.is_unproven(session) {
            let at = self.wait_for_lease(session, since + limit);
            if at.is_none()
                && let Some(boot) = self.boot()
            {
                boot.under_way += 1;
            }
            return Ok(at.map_or(Next::Wait, Next::At));
        }
        let renewed = self
            .view
            .sessions
            .seen(&session)
            .is_some_and(|s| s.record.is_live() && now < s.since + ttl / 2);
        if now >= since + limit && first != version && renewed {
            return Err(Refusal::NameInUse { session });
        }
        match self.expires_at(session) {
            Some(at) if now >= at => {
                self.count_under_way();
                self.end_session(session, EndReason::Expired, WritePurpose::Boot);
                Ok(Next::Wait)
            }
            Some(at) if first == version || now >= since + limit => Ok(Next::At(at)),
            Some(at) => Ok(Next::At(at.min(since + limit))),
            None => {
                if self.view.is_missing(&Key::Session(session)) {
                    self.count_under_way();
                    self.end_session(session, EndReason::Missing, WritePurpose::Boot);
                    return Ok(Next::Wait);
                }
                self.absent.insert(Key::Session(session));
                Ok(Next::At(now + self.config.timing.renew_interval))
            }
        }
    }

    /// Whether a start has waited for the earlier holder of its name for as long as it may take to go.
    pub(super) fn has_waited_for(&self, session: SessionId) -> bool {
        let limit = self.lease_ends_within(session);
        matches!(&self.life, Life::Booting(boot) if boot.waiting.as_ref()
            .is_some_and(|(id, _, since)| *id == session && self.now >= *since + limit))
    }

    pub(super) fn on_boot_settled(&mut self, outcome: Settled) {
        let retry = self.later(self.config.timing.renew_retry_interval);
        let Some(boot) = self.boot() else { return };
        boot.under_way = boot.under_way.saturating_sub(1);
        if matches!(outcome, Settled::Failed { .. }) {
            boot.not_before = retry;
            // What was observed while the store was away proves nothing.
            self.peers.trust_from(self.now);
            if let Some(company) = &mut self.company {
                company.restart(self.now);
            }
            self.timers.set(Timer::Boot, retry);
        }
    }

    pub(super) fn boot_listed(&mut self, store: String) {
        if let Some(boot) = self.boot() {
            boot.under_way = boot.under_way.saturating_sub(1);
            boot.store = Some(store);
        }
        self.peers.trust_from(self.now);
    }

    /// A write of the start was refused for good: a node that has never started ends with that, for nothing that it could do
    /// would change it.
    pub(super) fn denied_at_start(&mut self, failure: &StoreFailure) -> bool {
        let StoreFailure::Denied(reason) = failure else {
            return false;
        };
        if self.started || self.boot().is_none() {
            return false;
        }
        self.refuse(Refusal::Denied(reason.clone()));
        true
    }

    /// The session could not be created. A lease that was gone before its record was written may be an accident, and a fresh
    /// one is tried; being refused twice in a row is not.
    pub(super) fn session_not_created(&mut self, reply: &Reply) {
        self.holder = None;
        let failure = match reply {
            Reply::Failed(failure) => Some(failure),
            _ => None,
        };
        let denied = failure.is_some_and(|f| matches!(f, StoreFailure::Denied(_)));
        let again = self
            .boot()
            .is_some_and(|boot| std::mem::replace(&mut boot.refused, denied));
        if again && failure.is_some_and(|failure| self.denied_at_start(failure)) {
            return;
        }
        self.on_boot_settled(Settled::Failed { unknown: false });
    }

    pub(super) fn boot_list_failed(&mut self, reply: Reply) {
        if let Reply::Failed(failure) = reply
            && self.denied_at_start(&failure)
        {
            return;
        }
        self.on_boot_settled(Settled::Failed { unknown: false });
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
