//! The order of letting go and taking: work stops before a shard is released, and nothing is taken from a session that may
//! still serve. Each breach would become two open gates in some run; here it is seen in the run where it happens.

use std::collections::BTreeSet;

use tenure_core::ids::SessionId;
use tenure_core::record::{EndReason, Ownership, SessionRecord, ShardRecord};

use super::gates::GateChecker;
use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::process::{Activation, Process, Work};

/// Checker that a shard is released before it is claimed: the last owner of each that has not released it.
#[derive(Debug)]
pub(crate) struct ReleaseOrderChecker {
    holders: Vec<Option<SessionId>>,
    /// Sessions that let go of everything themselves, whatever became of their tombstones.
    resigned: BTreeSet<SessionId>,
    /// Whether clocks keep the assumption that proofs of expiry rest on.
    clocks_hold: bool,
}

impl ReleaseOrderChecker {
    pub(crate) fn new(shards: usize, clocks_hold: bool) -> Self {
        Self {
            holders: vec![None; shards],
            resigned: BTreeSet::new(),
            clocks_hold,
        }
    }

    pub(crate) fn demand(&mut self, clocks_hold: bool) {
        self.clocks_hold = clocks_hold;
    }

    /// The store was put back; `now` tells who owns each shard there. Whoever owned it in what is lost lets go of nothing by
    /// writing about it.
    pub(crate) fn restored(&mut self, now: impl Fn(usize) -> Option<SessionId>) {
        for (shard, holder) in self.holders.iter_mut().enumerate() {
            *holder = now(shard);
        }
    }

    /// A shard's record was written.
    pub(crate) fn shard_written(
        &mut self,
        at: Instant,
        shard: usize,
        record: &ShardRecord,
        processes: &[Process],
        gates: &GateChecker,
    ) -> CheckResult {
        // Who has sealed has let go: its successor takes it when it likes.
        let sealed = matches!(record.ownership, Ownership::Sealed { .. });
        let owner = record.owner().filter(|_| !sealed);
        let owner = owner.map(|owner| owner.session);
        let deleted = record.ownership == Ownership::Deleted;
        let writer = record.head.nonce.writer;
        if let Some(holder) = self.holders[shard] {
            if same_process(writer, holder) && owner != Some(holder) && !is_witness(record, holder)
            {
                stopped(at, processes, "releases", |stay| {
                    stay.shard == shard && stay.session == holder
                })?;
                self.holders[shard] = None;
            } else if (deleted || owner.is_some_and(|owner| owner != holder))
                && !self.resigned.contains(&holder)
            {
                self.out(
                    at,
                    holder,
                    processes,
                    gates,
                    &format!("shard {shard} was taken from session {holder}"),
                )?;
            }
        }
        if deleted {
            self.holders[shard] = None;
        }
        if let Some(owner) = owner {
            stopped(at, processes, "claims again", |stay| {
                let older = stay.epoch < record.epoch && !stay.succeeds;
                stay.shard == shard && stay.session == owner && older
            })?;
            self.holders[shard] = Some(owner);
        }
        Ok(())
    }

    /// A session's record was written and is a tombstone.
    pub(crate) fn session_ended(
        &mut self,
        at: Instant,
        session: SessionId,
        record: &SessionRecord,
        processes: &[Process],
        gates: &GateChecker,
    ) -> CheckResult {
        match record.ended {
            Some(ended) if ended.reason == EndReason::Resigned => {
                self.resigned.insert(session);
                stopped(at, processes, "resigns", |stay| stay.session == session)
            }
            Some(ended) if ended.reason != EndReason::Missing => self.out(
                at,
                session,
                processes,
                gates,
                &format!("session {session} was ended ({})", ended.reason),
            ),
            _ => Ok(()),
        }
    }

    /// The session can admit nothing any more: its process is dead, or its deadline has passed on its own clock.
    fn out(
        &self,
        at: Instant,
        session: SessionId,
        processes: &[Process],
        gates: &GateChecker,
        what: &str,
    ) -> CheckResult {
        let Some(lease) = gates.lease(session) else {
            return Ok(());
        };
        let now = lease.clock.at(at);
        let process = &processes[lease.pid];
        if !self.clocks_hold || !process.alive {
            return Ok(());
        }
        if now >= lease.deadline {
            // A process that was not stopped meanwhile has cancelled its work when its gates closed, and the margin left
            // it the time to end.
            let awake = process.paused_until.is_none()
                && lease.clock.at(process.resumed_at) < lease.closes_at;
            return if awake {
                stopped(at, processes, "is succeeded", |stay| {
                    stay.session == session
                })
            } else {
                Ok(())
            };
        }
        let what = format!(
            "{what}, which is good until {} and has {now} now",
            lease.deadline
        );
        Err(Violation::new("P1", at, what))
    }
}

/// Ids that one process makes differ in their last bits alone: the simulator hands out entropy that way.
fn same_process(a: SessionId, b: SessionId) -> bool {
    a.0 >> 16 == b.0 >> 16
}

fn is_witness(record: &ShardRecord, session: SessionId) -> bool {
    matches!(&record.ownership, Ownership::Free { awaiting_disclaimers } if awaiting_disclaimers.contains(&session))
}

fn stopped(
    at: Instant,
    processes: &[Process],
    what: &str,
    which: impl Fn(&Activation) -> bool,
) -> CheckResult {
    let alive = processes
        .iter()
        .enumerate()
        .filter(|(_, process)| process.alive);
    for (pid, process) in alive {
        let running = process
            .stays
            .iter()
            .find(|stay| stay.work != Work::Failed && which(stay));
        if let Some(stay) = running {
            let what = format!(
                "process {pid} {what} while its work on shard {} at epoch {} still runs",
                stay.shard, stay.epoch
            );
            return Err(Violation::new("A9", at, what));
        }
    }
    Ok(())
}
