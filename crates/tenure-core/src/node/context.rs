//! Context of every part of a node: settings, time, known records, timers, and the outputs of the current step.
//!
//! A part receives the context as `&mut Ctx` and reads other parts through their queries. All outputs of a part go through the context:
//! store requests, timers, actions, and requests for a scan of the shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{KeyspaceName, NodeName, Nonce, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::machine::{Action, Connection, Expect, Found, OpId, Request, StoreFailure};
use crate::reason::Reason;
use crate::record::{HeldByRouter, NodeMode, Ownership, Record, ShardRecord};
use crate::rules::Mutant;
use crate::settings::Timing;
use crate::telemetry::{NodeEvent, ShardEvent, ShardStep};
use crate::time::Time;
use crate::view::View;

use super::changed_keys::ChangedKeys;
use super::move_pause::MovePause;
use super::outstanding_requests::OutstandingRequests;
use super::renewal::OwnSession;
use super::store_requests::{Pending, Write, WritePurpose};
use super::sync::StoreProgress;
use super::timers::{Timer, Timers};
use super::{Life, NodeConfig};

/// State that every part of a node reads, and the outputs of the current step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ctx {
    pub(super) config: Arc<NodeConfig>,
    pub(super) now: Time,
    pub(super) life: Life,
    pub(super) view: View,
    /// Session that this node has created or is creating.
    pub(super) own: Option<OwnSession>,
    pub(super) timers: Timers,
    /// Store requests in progress.
    pub(super) requests: OutstandingRequests,
    /// Number of store requests so far; part of every [`OpId`].
    pub(super) ops: u64,
    pub(super) nonces: u64,
    pub(super) out: Vec<Action>,
    /// Keys whose known value has changed and has not been evaluated since.
    pub(super) changed: ChangedKeys,
    /// Keys that a list or a watch reported as deleted. Only a read of the key itself is believed.
    pub(super) absent: BTreeSet<Key>,
    pub(super) absent_not_before: Time,
    /// The current event came from the watch.
    pub(super) from_watch: bool,
    /// A scan of all shards is due.
    pub(super) scan_all: bool,
    /// Generations that must be exceeded before the node owns shards again, after the store was replaced or restored.
    pub(super) store_replaced: Option<BTreeMap<KeyspaceName, u32>>,
    /// Time at which the stop began.
    pub(super) stopping_since: Time,
    /// The node counts as started. Once true, this never changes.
    pub(super) started: bool,
    /// Longest ttl of all sessions seen so far.
    pub(super) longest: Duration,
    /// Progress of the store, and the need for a complete read.
    pub(super) progress: StoreProgress,
    /// Cluster record as last seen, and the pause of planned moves.
    pub(super) pause: MovePause,
    /// Mode and cordon of this node, as last seen in its record.
    pub(super) own_node: OwnNode,
    /// Moves for which a router holds requests. Of a node: moves to this node that have loaded and wait for others.
    pub(super) held: HeldByRouter,
}

/// Mode and cordon of a node, as last seen in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnNode {
    pub(super) mode: NodeMode,
    pub(super) cordoned: bool,
}

impl Ctx {
    pub(super) fn new(config: Arc<NodeConfig>) -> Self {
        let view = View::new(config.rules);
        Self {
            config,
            now: Time::ZERO,
            life: Life::Booting,
            view,
            own: None,
            timers: Timers::default(),
            requests: OutstandingRequests::default(),
            ops: 0,
            nonces: 0,
            out: Vec::new(),
            changed: ChangedKeys::default(),
            absent: BTreeSet::new(),
            absent_not_before: Time::ZERO,
            from_watch: false,
            scan_all: false,
            store_replaced: None,
            stopping_since: Time::ZERO,
            started: false,
            longest: Duration::ZERO,
            progress: StoreProgress::default(),
            pause: MovePause::default(),
            own_node: OwnNode::default(),
            held: HeldByRouter::new(),
        }
    }

    pub(super) fn timing(&self) -> Timing {
        self.config.timing.clone()
    }

    pub(super) fn broken_by(&self, mutant: Mutant) -> bool {
        self.config.rules.broken_by(mutant)
    }

    /// Returns a time after `wait` from now, extended by up to a quarter so that nodes do not act simultaneously.
    pub(super) fn later(&self, wait: Duration) -> Time {
        let jitter = crate::hash::mix(self.config.entropy as u64 ^ self.ops) % 256;
        self.now + wait + wait * u32::try_from(jitter).unwrap_or(0) / 1024
    }

    pub(super) fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        Nonce {
            writer: SessionId(self.config.entropy),
            n: self.nonces,
        }
    }

    pub(super) fn note(&mut self, event: NodeEvent) {
        self.out.push(Action::Report(event));
    }

    // Queries of the own session.

    /// Returns the id of the node's session, including one that is being created.
    pub(super) fn session(&self) -> Option<SessionId> {
        self.own.as_ref().map(|own| own.id)
    }

    /// Returns the node's session once its creation is confirmed.
    pub(super) fn my_session(&self) -> Option<&OwnSession> {
        self.own.as_ref().filter(|own| own.version.is_some())
    }

    pub(super) fn lease_phase(&self) -> Option<LeasePhase> {
        let lease = self.own.as_ref().and_then(|own| own.lease.as_ref());
        lease.map(|lease| lease.phase())
    }

    /// Returns `true` after the end of the present session was sent. That write may have landed or may land late. From then on, other
    /// nodes can claim the session's shards.
    pub(super) fn has_resigned(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.resigned)
            && !self.broken_by(Mutant::ServesAfterResigning)
    }

    /// Returns `true` if the node may own, claim and serve shards.
    pub(super) fn may_own(&self) -> bool {
        matches!(self.life, Life::Running | Life::Stopping)
            && self.lease_phase().is_some_and(LeasePhase::may_own)
            && self.store_replaced.is_none()
            && !self.has_resigned()
    }

    // Store requests.

    pub(super) fn ask(
        &mut self,
        connection: Connection,
        request: Request,
        pending: Pending,
    ) -> OpId {
        self.ops += 1;
        let op = OpId(self.ops);
        self.requests.push(op, pending);
        self.out.push(Action::Store {
            op,
            connection,
            request,
        });
        op
    }

    pub(super) fn put(&mut self, key: Key, expect: Expect, record: Record, purpose: WritePurpose) {
        let request = Request::Put {
            key: key.clone(),
            expect: expect.clone(),
            record: record.clone(),
        };
        let write = Write {
            key,
            expect,
            record,
            purpose,
        };
        self.ask(Connection::Default, request, Pending::Put(write));
    }

    pub(super) fn read(&mut self, key: Key) {
        let mark = self.view.mark(&key);
        let request = Request::Get(key.clone());
        self.ask(Connection::Default, request, Pending::Read { key, mark });
    }

    pub(super) fn delete(&mut self, key: Key, version: Version) {
        let mark = self.view.mark(&key);
        let request = Request::Delete {
            key: key.clone(),
            version,
        };
        self.ask(Connection::Default, request, Pending::Delete { key, mark });
    }

    /// Returns `true` if a write with this purpose, or the read that settles it, is in progress.
    pub(super) fn is_writing(&self, purpose: &WritePurpose) -> bool {
        let mut writes = self.requests.values().filter_map(Pending::as_write);
        writes.any(|write| write.purpose == *purpose)
    }

    pub(super) fn is_being_read(&self, key: &Key) -> bool {
        self.requests
            .values()
            .any(|p| matches!(p, Pending::Read { key: k, .. } if k == key))
    }

    // Changes of known records.

    /// Applies the content of a list, a watch or a confirmed write for a key to the view.
    pub(super) fn learn(&mut self, key: &Key, found: Found) {
        let found = Found {
            record: found.record.and_then(Record::stored),
            ..found
        };
        // A damaged value has no rev, so a late copy of a repaired value seems new. Only a read is believed.
        if found.record.is_err()
            && let Some(known) = self.view.version(key)
        {
            if known != found.version {
                self.absent.insert(key.clone());
            }
            return;
        }
        self.report_damage(key, &found);
        let contradicts = self.view.contradicts(key, &found);
        if self.view.apply(self.now, key, found) {
            self.learned(key);
        } else if contradicts {
            // One of the two values belongs to a lost history of the store. Only a read of the key shows which.
            self.absent.insert(key.clone());
        } else if self.view.is_missing(key) && !self.is_being_read(key) {
            // Probably a late message about a deleted key. A write that was in progress may also have created the key again.
            self.read(key.clone());
        }
    }

    /// Applies the result of a read of the key itself, begun at `mark`, to the view.
    pub(super) fn learn_read(&mut self, key: &Key, found: Found, mark: u64) {
        if self.view.mark(key) != mark {
            return self.learn(key, found);
        }
        self.report_damage(key, &found);
        if self.view.apply_read(self.now, key, found, mark) {
            self.learned(key);
        }
    }

    fn learned(&mut self, key: &Key) {
        if !self.absent.is_empty() {
            self.absent.remove(key);
        }
        self.changed.insert(key.clone());
    }

    fn report_damage(&mut self, key: &Key, found: &Found) {
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

    pub(super) fn report_denied(&mut self, key: &Key, failure: &StoreFailure) {
        if let StoreFailure::Denied(error) = failure {
            self.note(NodeEvent::WriteDenied {
                key: key.clone(),
                error: error.clone(),
            });
        }
    }

    pub(super) fn report_step(
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

    /// Returns `true` if everything was read after `at`, the earliest time for restoring a record; otherwise starts that read. A watch
    /// may have omitted new sessions, and a session that is not known would not be asked for a disclaimer.
    pub(super) fn has_read_since(&mut self, at: Time) -> bool {
        if self.progress.listed_at >= at {
            return true;
        }
        self.list();
        false
    }

    /// Returns a number that no other move of any shard has.
    pub(in crate::node) fn move_id(&mut self) -> u64 {
        let nonce = self.nonce();
        let writer = nonce.writer.0;
        let spread = (writer >> 64) as u64 ^ writer as u64;
        // Limited to 53 bits, which JSON readers in other languages can represent exactly.
        (spread
            .wrapping_add(nonce.n)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15))
            >> 11
    }

    pub(super) fn list(&mut self) {
        if !self
            .requests
            .values()
            .any(|p| matches!(p, Pending::List { .. }))
        {
            let asked_at = self.progress.asked_at;
            let begun = self.now;
            self.ask(
                Connection::Default,
                Request::List,
                Pending::List { asked_at, begun },
            );
        }
    }

    /// Reads keys that a list or a watch reported as deleted: only a read of the key itself is believed.
    pub(super) fn ask_about_absent(&mut self) {
        if self.absent.is_empty() || self.now < self.absent_not_before {
            return;
        }
        for key in std::mem::take(&mut self.absent) {
            let asked = self.is_being_read(&key);
            if asked {
                // The read in progress may predate the report. The key is read again after its reply.
                self.absent.insert(key);
            } else if !self.view.is_missing(&key) {
                self.read(key);
            }
        }
    }

    pub(super) fn store_differs(&self, store: &str) -> bool {
        self.started && self.view.cluster.get(&()).is_some_and(|c| c.store != store)
    }

    /// Sets the moves for which requests are held. New moves are reported at once, because owners wait for them. The renewal that
    /// reports them follows in the same step, or after the renewal in progress.
    pub(super) fn hold(&mut self, held: HeldByRouter) {
        if self.held == held {
            return;
        }
        // No process waits for a report of moves that are no longer held: the next renewal contains it.
        let news = held.iter().any(|(keyspace, shards)| {
            let told = self.held.get(keyspace);
            shards
                .iter()
                .any(|(shard, mv)| told.and_then(|told| told.get(shard)) != Some(mv))
        });
        self.held = held;
        if news && self.my_session().is_some_and(|own| !own.busy) {
            self.timers.set(Timer::Renew, self.now);
        }
    }

    /// Applies a message of the watch.
    pub(super) fn apply_changes(&mut self, changes: Vec<(Key, Option<Found>)>, upto: Revision) {
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

    /// Updates mode and cordon from this node's own record.
    pub(super) fn note_own_node(&mut self) {
        let Some(record) = self.view.nodes.get(&self.config.name) else {
            return;
        };
        let own = OwnNode {
            mode: record.mode.clone(),
            cordoned: record.cordoned,
        };
        let before = std::mem::replace(&mut self.own_node, own);
        self.timers.set_sooner(Timer::OwnRecord, self.now);
        if before.mode != self.own_node.mode && matches!(self.life, Life::Running) {
            let mode = self.own_node.mode.clone();
            self.note(NodeEvent::ModeChanged { mode });
        }
    }

    /// Publishes the owner of a shard to the process.
    pub(super) fn publish_shard(&mut self, id: &ShardId, record: &ShardRecord) {
        let serving = matches!(
            record.ownership,
            Ownership::Owned { serving: true, .. }
                | Ownership::Warming { .. }
                | Ownership::Freezing { .. }
        );
        self.out.push(Action::Seen {
            shard: id.clone(),
            owner: record.owner().cloned(),
            epoch: record.epoch,
            serving,
            moving: record.ownership.moving().map(|(mv, phase)| (mv.id, phase)),
            rev: record.head.rev,
        });
    }
}
