//! Store requests under way, and how their outcomes are settled.
//!
//! A write that lost its race, or whose outcome is unknown, is read back once: a value with our nonce is our own write
//! after all. What the read shows goes into the view, and decisions are derived from there; no outcome is ever guessed.

use crate::ids::{KeyspaceName, Nonce, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::machine::{Connection, Expect, Found, OpId, Reply, Request, StoreFailure};
use crate::record::Record;
use crate::rules::Mutant;
use crate::telemetry::NodeEvent;
use crate::time::Time;

use super::Node;
use super::timers::Timer;

/// What a write was for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WritePurpose {
    /// A step of the start.
    Boot,
    /// Ending somebody's session.
    ExpireSession(SessionId),
    /// A change to a shard's record that belongs to its stay here.
    Stay(ShardId),
    /// Drawing a generation in order to make lost records anew.
    Generation(KeyspaceName),
    /// Drawing a generation in order to create a keyspace.
    BootGeneration(KeyspaceName),
    /// Making a keyspace's lost record anew.
    Keyspace,
    /// Making a shard's lost record anew.
    Restore,
    /// Ending the node's own session.
    Resign,
    /// Becoming leader.
    Lead,
    /// A leader's word on a shard.
    Plan(ShardId),
    /// What the node's own record, or the cluster's, says of its start and of its mode.
    OwnRecord,
    /// Nothing hangs on it.
    Unimportant,
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Settled {
    /// It is in the store.
    Done,
    /// Somebody else's value is in the store; the view has it.
    Lost,
    /// It is not in the store, or that is not known.
    Failed {
        /// It may still land.
        unknown: bool,
    },
}

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    Put {
        key: Key,
        expect: Expect,
        record: Record,
        purpose: WritePurpose,
    },
    ReadBack {
        key: Key,
        expect: Expect,
        record: Record,
        purpose: WritePurpose,
        mark: u64,
        unknown: bool,
    },
    Read {
        key: Key,
        mark: u64,
    },
    Delete {
        key: Key,
        mark: u64,
    },
    /// `asked_at`: how far the store had come when this was asked.
    List {
        asked_at: Revision,
        begun: Time,
    },
    Revision {
        asked_at: Revision,
    },
    CreateSession {
        nonce: Nonce,
        sent: Time,
    },
    Renew {
        id: SessionId,
        nonce: Nonce,
        sent: Time,
        record: Record,
    },
    ReadSession {
        id: SessionId,
    },
    Grant {
        id: SessionId,
        sent: Time,
    },
    KeepAlive {
        id: SessionId,
        sent: Time,
    },
    AskLease {
        id: SessionId,
        purpose: WritePurpose,
    },
}

impl Node {
    pub(super) fn on_reply(&mut self, op: OpId, reply: Reply) {
        let Some(pending) = self.ctx.requests.remove(op) else {
            return;
        };
        self.ctx.progress.count_write(&reply);
        match (pending, reply) {
            (
                Pending::Put {
                    key,
                    record,
                    purpose,
                    ..
                },
                Reply::Won(version),
            ) => {
                self.ctx.learn(
                    &key,
                    Found {
                        version,
                        record: Ok(record),
                    },
                );
                self.settled(purpose, Settled::Done);
            }
            (
                Pending::Put {
                    key,
                    expect,
                    record,
                    purpose,
                },
                Reply::Lost,
            ) => {
                self.read_back(key, expect, record, purpose, false);
            }
            (
                Pending::Put {
                    key,
                    expect,
                    record,
                    purpose,
                },
                Reply::Failed(failure @ StoreFailure::Unknown(_)),
            ) => {
                self.write_failed(&purpose, &failure);
                self.read_back(key, expect, record, purpose, true);
            }
            (Pending::Put { key, purpose, .. }, Reply::Failed(failure)) => {
                self.ctx.report_denied(&key, &failure);
                self.write_failed(&purpose, &failure);
                let starts = matches!(
                    purpose,
                    WritePurpose::Boot | WritePurpose::BootGeneration(_)
                );
                if !(starts && self.denied_at_start(&failure)) {
                    self.settled(purpose, Settled::Failed { unknown: false });
                }
            }
            (
                Pending::ReadBack {
                    key,
                    expect,
                    record,
                    purpose,
                    mark,
                    unknown,
                },
                reply,
            ) => {
                self.on_read_back(key, expect, record, purpose, mark, unknown, reply);
            }
            (Pending::Read { key, mark }, Reply::Got(Some(found))) => {
                self.ctx.learn_read(&key, found, mark);
                if let Key::Session(id) = key {
                    self.judge_read(id);
                }
                // A read is asked for because something hangs on the key, whether it changed or not.
                self.ctx.changed.insert(key);
            }
            (Pending::Read { key, mark }, Reply::Got(None)) => self.learn_missing(key, mark),
            (Pending::Read { key, .. }, Reply::Failed(failure)) => {
                self.ctx.report_denied(&key, &failure);
                self.ctx.absent.insert(key);
                self.ctx.absent_not_before =
                    self.ctx.later(self.ctx.config.timing.renew_retry_interval);
                self.ctx
                    .timers
                    .set(Timer::Absent, self.ctx.absent_not_before);
            }
            (Pending::Delete { key, mark }, Reply::Won(_)) => {
                self.ctx
                    .note(NodeEvent::TombstoneRemoved { key: key.clone() });
                self.learn_missing(key, mark);
            }
            (Pending::Delete { key, .. }, Reply::Failed(failure)) => {
                let error = failure.text().to_owned();
                self.ctx.note(NodeEvent::GcFailed { key, error });
            }
            (Pending::List { asked_at, begun }, Reply::Listed(listed)) => {
                self.on_listed(listed, asked_at, begun);
            }
            (Pending::List { .. }, reply) => self.on_list_failed(reply),
            (Pending::Revision { asked_at }, Reply::Revision(revision)) => {
                self.on_revision(revision, asked_at)
            }
            (Pending::CreateSession { nonce, sent }, reply) => {
                self.on_session_created(nonce, sent, reply)
            }
            (
                Pending::Renew {
                    id,
                    nonce,
                    sent,
                    record,
                },
                reply,
            ) => {
                if self.ctx.session() == Some(id) {
                    self.on_renewed(nonce, sent, record, reply);
                }
            }
            (Pending::ReadSession { id }, reply) => {
                if self.ctx.session() == Some(id) {
                    self.on_session_read(reply);
                }
            }
            (Pending::Grant { id, sent }, reply) => {
                if self.ctx.session() == Some(id) {
                    self.on_granted(sent, reply);
                }
            }
            (Pending::KeepAlive { id, sent }, reply) => {
                if self.ctx.session() == Some(id) {
                    self.on_kept(sent, reply);
                }
            }
            (Pending::AskLease { id, purpose }, reply) => self.on_lease_told(id, purpose, reply),
            (
                Pending::Revision { .. }
                | Pending::Delete { .. }
                | Pending::Read { .. }
                | Pending::Put { .. },
                _,
            ) => {}
        }
    }

    fn read_back(
        &mut self,
        key: Key,
        expect: Expect,
        record: Record,
        purpose: WritePurpose,
        unknown: bool,
    ) {
        if unknown
            && self.ctx.config.rules.broken_by(Mutant::UnknownClaimAssumed)
            && matches!(purpose, WritePurpose::Stay(_))
        {
            self.ctx.learn(
                &key,
                Found {
                    version: Version::Number(u64::MAX),
                    record: Ok(record),
                },
            );
            return self.settled(purpose, Settled::Done);
        }
        let mark = self.ctx.view.mark(&key);
        let pending = Pending::ReadBack {
            key: key.clone(),
            expect,
            record,
            purpose,
            mark,
            unknown,
        };
        self.ctx
            .ask(Connection::Default, Request::Get(key), pending);
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one pending request"
    )]

    fn on_read_back(
        &mut self,
        key: Key,
        expect: Expect,
        record: Record,
        purpose: WritePurpose,
        mark: u64,
        unknown: bool,
        reply: Reply,
    ) {
        let outcome = match reply {
            Reply::Got(Some(found)) => {
                let nonce = found.record.as_ref().ok().map(|r| r.head().nonce);
                let unchanged = expect == Expect::Version(found.version.clone());
                if self.ctx.config.rules.broken_by(Mutant::UnguardedWrite)
                    && matches!(purpose, WritePurpose::Stay(_))
                    && nonce != Some(record.head().nonce)
                {
                    return self
                        .ctx
                        .put(key, Expect::Version(found.version), record, purpose);
                }
                self.ctx.learn_read(&key, found, mark);
                // Refused, but what is there is no news to the view: wait, or the same write would be refused again at once.
                let unchanged = unchanged
                    || self
                        .ctx
                        .view
                        .version(&key)
                        .is_some_and(|v| expect == Expect::Version(v));
                if nonce == Some(record.head().nonce) {
                    Settled::Done
                } else if unchanged {
                    Settled::Failed { unknown }
                } else {
                    Settled::Lost
                }
            }
            Reply::Got(None) => {
                self.learn_missing(key, mark);
                if expect == Expect::Absent {
                    Settled::Failed { unknown }
                } else {
                    Settled::Lost
                }
            }
            _ => Settled::Failed { unknown },
        };
        self.settled(purpose, outcome);
    }

    fn write_failed(&mut self, purpose: &WritePurpose, failure: &StoreFailure) {
        if let WritePurpose::Plan(shard) = purpose {
            self.leader
                .on_plan_write_failed(&mut self.ctx, shard, failure);
        }
    }

    pub(super) fn settled(&mut self, purpose: WritePurpose, outcome: Settled) {
        match purpose {
            WritePurpose::Boot => self.on_boot_settled(outcome),
            WritePurpose::ExpireSession(session) => self.on_judged(session, outcome),
            WritePurpose::Stay(shard) => {
                self.shards
                    .on_stay_settled(&mut self.ctx, &mut self.assignment, shard, outcome)
            }
            WritePurpose::Generation(name) => {
                self.recovery
                    .on_generation_drawn(&mut self.ctx, &name, &outcome);
                self.recovery.on_restore_settled(&mut self.ctx, outcome);
            }
            WritePurpose::BootGeneration(name) => {
                self.recovery
                    .on_generation_drawn(&mut self.ctx, &name, &outcome);
                self.on_boot_settled(outcome);
            }
            WritePurpose::Keyspace | WritePurpose::Restore => {
                self.recovery.on_restore_settled(&mut self.ctx, outcome)
            }
            WritePurpose::Resign => self.on_resigned(outcome),
            WritePurpose::Lead => self
                .leader
                .on_stood(&mut self.ctx, &self.membership, outcome),
            WritePurpose::Plan(shard) => self.leader.on_planned(&mut self.ctx, &shard, outcome),
            WritePurpose::OwnRecord => {
                self.on_around_settled(matches!(outcome, Settled::Failed { .. }))
            }
            WritePurpose::Unimportant => {}
        }
    }

    /// A read, begun when the key's mark was `mark`, found nothing.
    pub(super) fn learn_missing(&mut self, key: Key, mark: u64) {
        self.ctx.absent.remove(&key);
        if let Key::Session(id) = key
            && self.ctx.session() != Some(id)
            && self
                .ctx
                .view
                .sessions
                .get(&id)
                .is_some_and(|s| s.is_proven_end())
        {
            return self.ctx.view.forget_session(id);
        }
        if self.ctx.view.miss(self.ctx.now, &key, mark) {
            self.recovery.on_missing(&mut self.ctx, &key);
            self.ctx.changed.insert(key);
        }
    }
}
