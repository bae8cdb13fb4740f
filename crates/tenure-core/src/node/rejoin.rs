//! Rejoining: the mode in which a node takes part again, and the detection of a restart of the whole cluster.
//!
//! All decisions follow from the content of the store. A node whose session *expired* while other nodes lived was declared dead by them.
//! Its operator chooses whether such a node takes part again by itself ([`RejoinMode`]). If no other node lived, there was no healthy
//! cluster to protect: the whole cluster has restarted. The `boot` number in the cluster's record shows this. A starting node raises the
//! number once every node that it found has either ended or not changed for a whole ttl. A node whose session ran under a lower number
//! returns to its earlier mode. The order in which nodes return does not matter.
//!
//! Only a node that would be drained waits for this result before it registers. Any other node registers at once and determines the result
//! later. Until then its record is marked as *unsure*. The life of an unsure node does not prove to others that any node lived at its
//! start.

use crate::node::session_end;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{SessionId, Version};
use crate::keys::Key;
use crate::machine::Expect;
use crate::record::{EndReason, NodeMode, NodeRecord, Record, RejoinMode, Role};
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::view::KeyState;

use super::context::Ctx;
use super::renewal::Session;
use super::shards::Shards;
use super::startup::Startup;
use super::store_requests::WritePurpose;
use super::timers::Timer;
use super::{Life, Timekeeper};

/// Time after the end of a node's session at which the record of an ephemeral node is removed.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Other nodes that a start found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StartupPeers {
    /// Boot number of the cluster at the start.
    boot: u64,
    /// `true` if some node has run under this boot number.
    begun: bool,
    /// Sessions of nodes that were not over, with their version and the start of their observation.
    found: BTreeMap<SessionId, (Option<Version>, Time)>,
    /// `true` once one of these sessions was seen alive, even if it has ended since.
    lived: bool,
}

impl StartupPeers {
    /// Returns `true` if it is proven that other nodes lived.
    pub(super) fn is_sure(&self) -> bool {
        self.lived
    }
}

/// Liveness of the peers that a start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLiveness {
    /// At least one of them lives.
    Live,
    /// None of them lives.
    Gone,
    /// Undecided until this time.
    Open(Time),
    /// Undecided until a complete read.
    Unread,
    /// Undecided until the store reports on the lease of this session. The session's node is unsure, and the session's record has outlasted
    /// the lease of a dead session. Either the session lives, or an operator rewrote its record without the lease.
    Unasked(SessionId),
}

/// Mode in which a node registers.
pub(super) struct RegistrationMode {
    pub(super) mode: NodeMode,
    pub(super) unsure: bool,
}

/// Next step of a start before the node can register.
pub(super) enum RegistrationStep {
    As(RegistrationMode),
    /// The boot number is being raised.
    Raising,
    At(Time),
    Unread,
    Unasked(SessionId),
}

impl StartupPeers {
    /// Restarts the observation: the store was unavailable, so earlier observations prove nothing.
    pub(super) fn restart(&mut self, now: Time) {
        self.found.values_mut().for_each(|(_, since)| *since = now);
    }
}

impl Startup {
    /// Records which sessions were alive at startup, once for each start.
    pub(super) fn record_startup_peers(&mut self, cx: &mut Ctx) {
        if self.peers.is_some() || cx.config.role != Role::Node {
            return;
        }
        let boot = cx.view.cluster.get(&()).map_or(0, |c| c.boot);
        let mut found = BTreeMap::new();
        let mut begun = false;
        for (name, node) in cx.view.nodes.iter() {
            let session = node.record.session;
            let cell = cx.view.sessions.cell(&session);
            let role = match cell {
                Some(KeyState::Present(seen)) => seen.record.role,
                _ => Role::Node,
            };
            if role != Role::Node {
                continue;
            }
            begun |= node.record.boot.unwrap_or(boot) >= boot;
            let may_live = match cell {
                Some(KeyState::Present(seen)) => seen.record.is_live(),
                Some(KeyState::Damaged { .. }) => true,
                Some(KeyState::Missing { .. }) | None => false,
            };
            if may_live && *name != cx.config.name {
                let version = cx.view.version(&Key::Session(session));
                found.insert(session, (version, cx.now));
            }
        }
        self.peers = Some(StartupPeers {
            boot,
            begun,
            found,
            lived: false,
        });
    }

    /// Records that a peer found by the start has renewed its session. The session may be over before the next check of the peers.
    pub(super) fn note_peer_alive(&mut self, cx: &mut Ctx, id: SessionId) {
        let company = self.peers.as_ref().filter(|company| !company.lived);
        let Some((version, since)) = company.and_then(|c| c.found.get(&id)) else {
            return;
        };
        if self.other(cx, id, version.as_ref(), *since) != PeerLiveness::Live {
            return;
        }
        if let Some(company) = &mut self.peers
            && !std::mem::replace(&mut company.lived, true)
        {
            // A node that is sure updates its record at once, so that the next starting node does not treat it as unsure.
            cx.timers.set_sooner(Timer::OwnRecord, cx.now);
        }
    }

    /// Returns the combined liveness of the peers that the start found.
    fn others(&self, cx: &Ctx) -> PeerLiveness {
        let Some(company) = &self.peers else {
            return PeerLiveness::Gone;
        };
        if company.lived {
            return PeerLiveness::Live;
        }
        let mut answer = PeerLiveness::Gone;
        for (id, (version, since)) in &company.found {
            match self.other(cx, *id, version.as_ref(), *since) {
                PeerLiveness::Live => return PeerLiveness::Live,
                PeerLiveness::Gone => {}
                unknown @ (PeerLiveness::Unread | PeerLiveness::Unasked(_)) => {
                    if answer == PeerLiveness::Gone {
                        answer = unknown;
                    }
                }
                PeerLiveness::Open(at) => {
                    answer = match answer {
                        PeerLiveness::Open(sooner) => PeerLiveness::Open(sooner.min(at)),
                        _ => PeerLiveness::Open(at),
                    }
                }
            }
        }
        answer
    }

    fn other(
        &self,
        cx: &Ctx,
        id: SessionId,
        version: Option<&Version>,
        since: Time,
    ) -> PeerLiveness {
        let timing = &cx.config.timing;
        let (changed, leased, until, unsure) = match cx.view.sessions.cell(&id) {
            Some(KeyState::Present(seen)) if seen.record.is_live() => {
                let record = &seen.record;
                let since = since.max(seen.since);
                let named = cx.view.nodes.get(&record.node);
                let unsure = named.is_some_and(|n| n.session == id && n.unsure);
                let clock = record.boot_clock.as_ref().filter(|clock| {
                    record.renewals > 0 && cx.config.boot_id.as_ref() == Some(&clock.id)
                });
                let until = match (record.leased, clock) {
                    (Some(_), _) => since + cx.lease_ends_within(id),
                    (None, Some(clock)) => clock.until_ns.max(since + record.ttl / 3),
                    (None, None) => since + timing.proof_of(record.ttl),
                };
                let changed = Some(&seen.version) != version;
                (changed, record.leased.is_some(), until, unsure)
            }
            Some(KeyState::Damaged { version: now, .. }) => {
                let until = since + timing.proof_of(cx.longest_ttl());
                (Some(now) != version, false, until, false)
            }
            _ => return PeerLiveness::Gone,
        };
        if changed && !unsure {
            return PeerLiveness::Live;
        }
        if cx.now < until {
            if !changed || !matches!(cx.life, Life::Booting) {
                return PeerLiveness::Open(until);
            }
            // The peer lives, but is unsure whether others did. Its record may have changed by now, and a watch may have missed that. A
            // start has no ticks, so it reads everything again.
            let read_at = cx.progress.listed_at.max(since) + timing.proof_of(cx.longest_ttl());
            return match cx.now < read_at {
                true => PeerLiveness::Open(until.min(read_at)),
                false => PeerLiveness::Unread,
            };
        }
        if cx.progress.listed_at < until {
            // A watch may have missed a renewal or the end of the session.
            return PeerLiveness::Unread;
        }
        match (leased, unsure) {
            // The store has kept the record for longer than the lease of a dead session.
            (true, false) => PeerLiveness::Live,
            (true, true) => PeerLiveness::Unasked(id),
            (false, _) => PeerLiveness::Gone,
        }
    }

    /// Returns the next step of the registration, given the record of the node's name.
    pub(super) fn enter_as(
        &mut self,
        cx: &mut Ctx,
        session: &Session,
        record: Option<&NodeRecord>,
    ) -> RegistrationStep {
        let mode = match record {
            Some(record) => record.mode.clone(),
            None if cx.config.join => NodeMode::drained(NodeMode::JOINED),
            None => NodeMode::Active,
        };
        if cx.config.role != Role::Node {
            let unsure = false;
            return RegistrationStep::As(RegistrationMode { mode, unsure });
        }
        let others = self.others(cx);
        if others == PeerLiveness::Gone && self.raise_boot(cx, WritePurpose::Boot) {
            return RegistrationStep::Raising;
        }
        let returns = record.filter(|r| mode == NodeMode::Active && self.is_stale(cx, session, r));
        let sure = matches!(others, PeerLiveness::Live | PeerLiveness::Gone);
        match (returns, others) {
            (None, _) | (Some(_), PeerLiveness::Gone) => RegistrationStep::As(RegistrationMode {
                mode,
                unsure: !sure,
            }),
            (Some(record), PeerLiveness::Live) => {
                let reason = match session.has_created(cx, record.session) {
                    true => NodeMode::REGISTRATION_EXPIRED,
                    false => NodeMode::STALE_RESTART,
                };
                RegistrationStep::As(RegistrationMode {
                    mode: NodeMode::drained(reason),
                    unsure: false,
                })
            }
            (Some(_), PeerLiveness::Open(at)) => RegistrationStep::At(at),
            (Some(_), PeerLiveness::Unread) => RegistrationStep::Unread,
            (Some(_), PeerLiveness::Unasked(id)) => RegistrationStep::Unasked(id),
        }
    }

    /// Asks the store for the lease of a peer. If the lease is alive, the node asks again when it should have expired.
    pub(super) fn check_peer_lease(&mut self, cx: &mut Ctx, id: SessionId) {
        let now = cx.now;
        let found = self.peers.as_mut().and_then(|c| c.found.get_mut(&id));
        if let Some((_, since)) = found {
            *since = now;
        }
        session_end::ask_lease(cx, id, WritePurpose::Boot);
    }

    /// Returns `true` if a node with this record needs its operator's approval to take part again. This applies if its session expired and
    /// the whole cluster has not restarted since.
    fn is_stale(&self, cx: &Ctx, session: &Session, record: &NodeRecord) -> bool {
        let expired_session = match cx.view.sessions.get(&record.session) {
            Some(session) => {
                let reason = session.ended.map(|ended| ended.reason);
                matches!(reason, Some(EndReason::Expired | EndReason::LeaseGone))
            }
            // With store leases, a missing session has expired, unless this process created it and knows its end.
            None => {
                let leased = cx.config.timekeeper == Timekeeper::Store;
                leased && !session.has_created(cx, record.session)
            }
        } || session.expired_session == Some(record.session);
        let boot = cx.view.cluster.get(&()).map_or(0, |c| c.boot);
        let ran_under = record.boot.unwrap_or(boot);
        cx.config.rejoin == RejoinMode::Manual && expired_session && ran_under >= boot
    }

    /// Raises the cluster's boot number if it has not changed since this node started; returns `true` if a write was sent.
    fn raise_boot(&mut self, cx: &mut Ctx, purpose: WritePurpose) -> bool {
        let Some(company) = self.peers.as_ref().filter(|c| c.begun) else {
            return false;
        };
        let boot = company.boot;
        let Some(seen) = cx.view.cluster.seen(&()).cloned() else {
            return false;
        };
        if seen.record.boot > boot {
            return false;
        }
        let mut record = (*seen.record).clone();
        record.head = record.head.next(cx.nonce());
        record.boot = boot + 1;
        let expect = Expect::Version(seen.version);
        let record = Record::Cluster(Arc::new(record));
        cx.put(Key::Cluster, expect, record, purpose);
        true
    }

    /// Determines, while the node runs, whether peers lived at its start, and updates the node's record.
    pub(super) fn resolve_unsure(&mut self, cx: &mut Ctx) {
        if !matches!(cx.life, Life::Running) || cx.config.role != Role::Node {
            return;
        }
        let Some((record, expect)) = cx.own_record() else {
            return;
        };
        if !record.unsure || cx.is_writing_own_record() {
            return;
        }
        match self.others(cx) {
            PeerLiveness::Open(at) => return cx.timers.set(Timer::OwnRecord, at.max(cx.now)),
            PeerLiveness::Unread => {
                cx.list();
                let again = cx.now + cx.config.timing.renew_interval;
                return cx.timers.set(Timer::OwnRecord, again);
            }
            PeerLiveness::Unasked(_) => {
                // Some node periodically asks for the lease of each session.
                let again = cx.now + cx.config.timing.renew_interval;
                return cx.timers.set(Timer::OwnRecord, again);
            }
            PeerLiveness::Gone if self.raise_boot(cx, WritePurpose::OwnRecord) => return,
            PeerLiveness::Gone | PeerLiveness::Live => {}
        }
        let boot = cx.view.cluster.get(&()).map(|c| c.boot);
        let new = NodeRecord {
            head: record.head.next(cx.nonce()),
            unsure: false,
            boot: boot.max(record.boot),
            ..record
        };
        cx.put_own_record(expect, new);
    }
}

impl Ctx {
    /// Schedules the next check after a write of [`WritePurpose::OwnRecord`]. The view shows what is left to do, whatever the outcome.
    pub(super) fn on_own_record_settled(&mut self, failed: bool) {
        let at = match failed {
            true => self.later(self.config.timing.renew_retry_interval),
            false => self.now,
        };
        self.timers.set_sooner(Timer::OwnRecord, at);
    }

    /// Removes the records of ephemeral nodes that ended long ago, unless an operator has set something there.
    pub(super) fn sweep_nodes(&mut self) {
        let gone: Vec<_> = self
            .view
            .nodes
            .iter()
            .filter(|(name, seen)| {
                let record = &seen.record;
                let ended = self.view.sessions.seen(&record.session);
                let long = ended.is_some_and(|s| {
                    self.ended(record.session) && self.now >= s.since.max(seen.since) + KEPT
                });
                record.ephemeral
                    && !record.cordoned
                    && !record.mode.is_by_operator()
                    && **name != self.config.name
                    && long
            })
            .map(|(name, seen)| (Key::Node(name.clone()), seen.version.clone()))
            .collect();
        for (key, version) in gone {
            self.delete(key, version);
        }
    }
}

impl Shards {
    /// Returns `true` if a session of this node owns no shard, and no shard moves to it.
    fn has_nothing(&self, cx: &Ctx, session: SessionId) -> bool {
        let shards = cx.view.shards.iter();
        let mut mine = shards.filter(|(id, seen)| {
            let coming = seen.record.ownership.moving();
            cx.config.keyspaces.contains_key(&id.keyspace)
                && (seen.record.is_owned_by(session)
                    || coming.is_some_and(|(mv, _)| mv.to.session == session))
        });
        self.activations.is_empty()
            && mine.next().is_none()
            && self.slots.values().all(super::shards::ShardSlot::is_quiet)
    }
}

impl Ctx {
    fn put_own_record(&mut self, expect: Expect, record: NodeRecord) {
        let key = Key::Node(self.config.name.clone());
        self.put(
            key,
            expect,
            Record::Node(Arc::new(record)),
            WritePurpose::OwnRecord,
        );
    }

    fn is_writing_own_record(&self) -> bool {
        self.is_writing(&WritePurpose::OwnRecord)
    }
}

/// Reports that a draining node is drained. Returns `true` if an operator has asked this node to stop.
pub(super) fn apply_own_record(cx: &mut Ctx, shards: &Shards) -> bool {
    let Some((record, expect)) = cx.own_record() else {
        return false;
    };
    let running = matches!(cx.life, Life::Running);
    if record.stop_session == Some(record.session) && running {
        cx.note(NodeEvent::StopRequested {
            session: record.session,
        });
        return true;
    }
    let done = record.mode == NodeMode::Draining
        && running
        && cx.may_own()
        && !cx.is_writing_own_record()
        && shards.has_nothing(cx, record.session);
    if done {
        let new = NodeRecord {
            head: record.head.next(cx.nonce()),
            mode: NodeMode::drained(NodeMode::BY_OPERATOR),
            ..record
        };
        cx.put_own_record(expect, new);
    }
    false
}
