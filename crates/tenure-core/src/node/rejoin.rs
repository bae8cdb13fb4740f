//! Coming back: as what a node takes part again, and whether the whole cluster began anew.
//!
//! Everything here follows from what the store says. A node whose session *ran out* while others lived was declared dead by
//! them; whether it takes part again by itself is its operator's choice ([`RejoinMode`]). Where nobody else lived there was no
//! healthy cluster to be careful with: the whole cluster has started again, and the `boot` number in its record says so. It is
//! raised by the first starter that has seen each node it found either end or stand still for a whole ttl. A node whose
//! session ran under an older number comes back as if nothing had happened, in whatever order nodes return.
//!
//! Only a node that would be drained waits for that before it registers. Any other registers at once and finds out later; until
//! then its record says that it is *unsure*, and that it lives proves to nobody that others did.

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

/// For how long a node's session must have been over before what is recorded of an ephemeral node goes.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The others that a start found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct StartupPeers {
    /// The cluster's boot number then.
    boot: u64,
    /// Some node has run under that number.
    begun: bool,
    /// Sessions of nodes that were not over, with their version, and since when they are watched.
    found: BTreeMap<SessionId, (Option<Version>, Time)>,
    /// One of them was seen to live, whatever became of it later.
    lived: bool,
}

impl StartupPeers {
    /// Whether it is known for good that the node was not alone.
    pub(super) fn is_sure(&self) -> bool {
        self.lived
    }
}

/// What is known of the others that a start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerLiveness {
    /// One of them lives.
    Live,
    /// None of them does.
    Gone,
    /// Not before this time.
    Open(Time),
    /// Everything has to be read for it.
    Unread,
    /// The store has kept the record of one that may itself not know who lives for longer than the lease of a dead one. Either
    /// it lives, or somebody's hand has taken the record off its lease: that has to be asked.
    Unasked(SessionId),
}

/// As what a node registers.
pub(super) struct RegistrationMode {
    pub(super) mode: NodeMode,
    pub(super) unsure: bool,
}

/// What a start has to do before it can register.
pub(super) enum RegistrationStep {
    As(RegistrationMode),
    /// The boot number is being raised.
    Raising,
    At(Time),
    Unread,
    Unasked(SessionId),
}

impl StartupPeers {
    /// What was observed before proves nothing: the store was away.
    pub(super) fn restart(&mut self, now: Time) {
        self.found.values_mut().for_each(|(_, since)| *since = now);
    }
}

impl Startup {
    /// Takes down who is there, once for each start.
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

    /// Takes down that one of those that the start found has renewed its session: it may be over before anybody looks.
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
            // Who is sure says so at once: a node that starts next must not take it for one that knows nothing.
            cx.timers.set_sooner(Timer::OwnRecord, cx.now);
        }
    }

    /// Whether any of those that the start found lives.
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
            // The peer lives and does not know whether others did. Its record may say more by now, and a watch may have left
            // that out. A start has no ticks, so it reads everything again.
            let read_at = cx.progress.listed_at.max(since) + timing.proof_of(cx.longest_ttl());
            return match cx.now < read_at {
                true => PeerLiveness::Open(until.min(read_at)),
                false => PeerLiveness::Unread,
            };
        }
        if cx.progress.listed_at < until {
            // A watch may have left out that it was renewed, or that it is over.
            return PeerLiveness::Unread;
        }
        match (leased, unsure) {
            // The store has kept it for longer than a dead one's.
            (true, false) => PeerLiveness::Live,
            (true, true) => PeerLiveness::Unasked(id),
            (false, _) => PeerLiveness::Gone,
        }
    }

    /// As what this node registers, given what is recorded of its name.
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

    /// Asks after the lease of one of those that the start found. If it is kept, that is asked again when it should be gone.
    pub(super) fn check_peer_lease(&mut self, cx: &mut Ctx, id: SessionId) {
        let now = cx.now;
        let found = self.peers.as_mut().and_then(|c| c.found.get_mut(&id));
        if let Some((_, since)) = found {
            *since = now;
        }
        session_end::ask_lease(cx, id, WritePurpose::Boot);
    }

    /// Whether an operator wants to be asked before a node with this record takes part again: its session ran out, and the
    /// whole cluster has not begun anew since.
    fn is_stale(&self, cx: &Ctx, session: &Session, record: &NodeRecord) -> bool {
        let expired_session = match cx.view.sessions.get(&record.session) {
            Some(session) => {
                let reason = session.ended.map(|ended| ended.reason);
                matches!(reason, Some(EndReason::Expired | EndReason::LeaseGone))
            }
            // Where the store keeps the time, what is gone has run out, unless its holder knows better.
            None => {
                let leased = cx.config.timekeeper == Timekeeper::Store;
                leased && !session.has_created(cx, record.session)
            }
        } || session.expired_session == Some(record.session);
        let boot = cx.view.cluster.get(&()).map_or(0, |c| c.boot);
        let ran_under = record.boot.unwrap_or(boot);
        cx.config.rejoin == RejoinMode::Manual && expired_session && ran_under >= boot
    }

    /// Raises the cluster's boot number, if that is still what it was when this node started; says whether it does.
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

    /// Finds out, while it runs, whether anybody lived when this node started, and says so in its record.
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
                // Somebody asks after each session, now and then.
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
    /// A write of [`Purpose::OwnRecord`] is settled, whatever became of it: what is left to do shows in the view.
    pub(super) fn on_own_record_settled(&mut self, failed: bool) {
        let at = match failed {
            true => self.later(self.config.timing.renew_retry_interval),
            false => self.now,
        };
        self.timers.set_sooner(Timer::OwnRecord, at);
    }

    /// Removes what is recorded of ephemeral nodes that are long gone, unless an operator has set something there.
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
    /// Whether nothing is owned by a session of this node, or on its way to it.
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
