//! Store requests in progress, and the evaluation of their outcomes.
//!
//! A write that lost its race, or whose outcome is unknown, is read back once. A value with this node's nonce proves that the write
//! succeeded. The result of the read goes into the view, and decisions are derived from the view. No outcome is ever guessed.

use crate::ids::{KeyspaceName, Nonce, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::machine::{Connection, Expect, Found, Refusal, Reply, Request, StoreFailure};
use crate::record::Record;
use crate::rules::Mutant;
use crate::time::Time;

use super::context::Ctx;
use super::election::Leader;
use super::record_recovery::Recovery;
use super::startup::Startup;
use super::timers::Timer;

/// Purpose of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WritePurpose {
    /// A step of the start.
    Boot,
    /// Ending the session of another process.
    ExpireSession(SessionId),
    /// A change to a shard's record that belongs to its local slot.
    Shard(ShardId),
    /// Drawing a generation in order to restore lost records.
    Generation(KeyspaceName),
    /// Drawing a generation in order to create a keyspace.
    BootGeneration(KeyspaceName),
    /// Restoring a keyspace's lost record.
    Keyspace,
    /// Restoring a shard's lost record.
    Restore,
    /// Ending the node's own session.
    Resign,
    /// A write that makes this node the leader.
    Lead,
    /// A plan update of the leader for a shard.
    Plan(ShardId),
    /// A change of the node's own record, of the cluster's boot number or of a rebalance request. The view shows what to retry.
    OwnRecord,
    /// No decision depends on the outcome.
    Unimportant,
}

/// Outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteOutcome {
    /// The store contains the value.
    Done,
    /// The store contains the value of another process, and so does the view.
    Lost,
    /// The store does not contain the value, or the outcome is unknown.
    Failed {
        /// `true` if the write may still take effect.
        unknown: bool,
    },
}

/// Write of `record`, on the condition that the state of the key matches `expect`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    pub(super) key: Key,
    pub(super) expect: Expect,
    pub(super) record: Record,
    pub(super) purpose: WritePurpose,
}

/// Request in progress, with the context that its reply needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pending {
    Put(Write),
    ReadBack {
        write: Write,
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
    /// `asked_at` is the highest store revision that was known at the time of the request.
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

impl Pending {
    /// Returns the write that is in progress or being settled.
    pub(super) fn as_write(&self) -> Option<&Write> {
        match self {
            Self::Put(write) | Self::ReadBack { write, .. } => Some(write),
            _ => None,
        }
    }
}

/// Purpose and outcome of a settled write.
pub(super) type SettledWrite = (WritePurpose, WriteOutcome);

/// Reads a key back after a write that lost its race, or whose outcome is unknown.
pub(super) fn read_back(cx: &mut Ctx, write: Write, unknown: bool) -> Option<SettledWrite> {
    if unknown
        && cx.broken_by(Mutant::UnknownClaimAssumed)
        && matches!(write.purpose, WritePurpose::Shard(_))
    {
        let found = Found {
            version: Version::Number(u64::MAX),
            record: Ok(write.record),
        };
        cx.learn(&write.key, found);
        return Some((write.purpose, WriteOutcome::Done));
    }
    let key = write.key.clone();
    let pending = Pending::ReadBack {
        mark: cx.view.mark(&key),
        write,
        unknown,
    };
    cx.ask(Connection::Default, Request::Get(key), pending);
    None
}

/// Settles a write by the value that was read back.
pub(super) fn on_read_back(
    cx: &mut Ctx,
    recovery: &mut Recovery,
    write: Write,
    mark: u64,
    unknown: bool,
    reply: Reply,
) -> Option<SettledWrite> {
    let Write {
        key,
        expect,
        record,
        purpose,
    } = write;
    let outcome = match reply {
        Reply::Got(Some(found)) => {
            let nonce = found.record.as_ref().ok().map(|r| r.head().nonce);
            let unchanged = expect == Expect::Version(found.version.clone());
            let own = nonce == Some(record.head().nonce);
            let unguarded = cx.broken_by(Mutant::UnguardedWrite);
            if unguarded && matches!(purpose, WritePurpose::Shard(_)) && !own {
                cx.put(key, Expect::Version(found.version), record, purpose);
                return None;
            }
            cx.learn_read(&key, found, mark);
            // The write was rejected although the view knows no other value. Without a wait it would be rejected again.
            let version = cx.view.version(&key);
            let unchanged = unchanged || version.is_some_and(|v| expect == Expect::Version(v));
            if own {
                WriteOutcome::Done
            } else if unchanged {
                WriteOutcome::Failed { unknown }
            } else {
                WriteOutcome::Lost
            }
        }
        Reply::Got(None) => {
            learn_missing(cx, recovery, key, mark);
            match expect == Expect::Absent {
                true => WriteOutcome::Failed { unknown },
                false => WriteOutcome::Lost,
            }
        }
        _ => WriteOutcome::Failed { unknown },
    };
    Some((purpose, outcome))
}

/// Applies a read, begun when the key's mark was `mark`, that found no value.
pub(super) fn learn_missing(cx: &mut Ctx, recovery: &mut Recovery, key: Key, mark: u64) {
    cx.absent.remove(&key);
    if let Key::Session(id) = key
        && cx.session() != Some(id)
        && cx.view.sessions.get(&id).is_some_and(|s| s.is_proven_end())
    {
        return cx.view.forget_session(id);
    }
    if cx.view.miss(cx.now, &key, mark) {
        recovery.on_missing(cx, &key);
        cx.changed.insert(key);
    }
}

/// Result of the reply to a write.
pub(super) enum PutResult {
    /// The write is settled; `None`: it is being read back.
    WriteOutcome(Option<SettledWrite>),
    /// The store denied a write of the start for good.
    Denied(Refusal),
}

/// Evaluates the reply to a write.
pub(super) fn on_put(cx: &mut Ctx, leader: &mut Leader, write: Write, reply: Reply) -> PutResult {
    let settled = match reply {
        Reply::Won(version) => {
            let record = Ok(write.record);
            cx.learn(&write.key, Found { version, record });
            Some((write.purpose, WriteOutcome::Done))
        }
        Reply::Lost => read_back(cx, write, false),
        Reply::Failed(failure @ StoreFailure::Unknown(_)) => {
            leader.note_failure(&write.purpose, &failure);
            read_back(cx, write, true)
        }
        Reply::Failed(failure) => {
            cx.report_denied(&write.key, &failure);
            leader.note_failure(&write.purpose, &failure);
            let starts = matches!(
                write.purpose,
                WritePurpose::Boot | WritePurpose::BootGeneration(_)
            );
            if let Some(refusal) = Startup::denied_at_start(cx, &failure).filter(|_| starts) {
                return PutResult::Denied(refusal);
            }
            Some((write.purpose, WriteOutcome::Failed { unknown: false }))
        }
        _ => None,
    };
    PutResult::WriteOutcome(settled)
}

/// Evaluates the reply to a read. Returns a session whose expiry must be checked, because only reads show its current record.
pub(super) fn on_read(
    cx: &mut Ctx,
    recovery: &mut Recovery,
    key: Key,
    mark: u64,
    reply: Reply,
) -> Option<SessionId> {
    match reply {
        Reply::Got(Some(found)) => {
            cx.learn_read(&key, found, mark);
            // A decision depends on the key, whether its value changed or not.
            cx.changed.insert(key.clone());
            match key {
                Key::Session(id) if cx.view.is_dated_back(id) => return Some(id),
                _ => {}
            }
        }
        Reply::Got(None) => learn_missing(cx, recovery, key, mark),
        Reply::Failed(failure) => {
            cx.report_denied(&key, &failure);
            cx.absent.insert(key);
            cx.absent_not_before = cx.later(cx.config.timing.renew_retry_interval);
            cx.timers.set(Timer::Absent, cx.absent_not_before);
        }
        _ => {}
    }
    None
}
