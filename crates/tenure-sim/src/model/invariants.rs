//! What must hold in every state, judged from outside with the omniscient clock.

use std::fmt;
use std::sync::Arc;

use tenure_core::ids::{Epoch, SessionId};
use tenure_core::invariants::check_successor;
use tenure_core::keys::Key;
use tenure_core::record::{EndReason, Record, SessionRecord, ShardRecord};

use super::state::State;
use crate::describe::short;

/// Breach of an invariant of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvariantBreach {
    pub(crate) promise: &'static str,
    pub(crate) what: String,
}

impl fmt::Display for InvariantBreach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// Highest epoch that the shard ever had, and whose that epoch is. Epochs never go back, so that no older one can
/// get another owner.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct HighestEpoch {
    pub(crate) highest: Epoch,
    pub(crate) owner: Option<SessionId>,
}

impl State {
    pub(crate) fn breach(&mut self, promise: &'static str, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(Arc::new(InvariantBreach {
                promise,
                what: what.into(),
            }));
        }
    }

    pub(crate) fn breaks(&self, promise: &str) -> bool {
        self.broken
            .as_ref()
            .is_some_and(|breach| breach.promise == promise)
    }

    /// P1: at no instant do two gates admit work. A gate admits from its opening until it is closed, its process dies or
    /// its clock reaches the time at which the lease closes it: so that two can begin to overlap only in a step.
    pub(crate) fn check_gates(&mut self) {
        let open = self.seats.iter().enumerate().flat_map(|(n, seat)| {
            let now = seat.time(self.now);
            let process = seat.process.as_deref();
            process.into_iter().flat_map(move |process| {
                let stays = process.stays.iter();
                stays
                    .filter(move |stay| process.admits(stay, now))
                    .map(move |stay| (n, stay.epoch))
            })
        });
        let open: Vec<(usize, Epoch)> = open.collect();
        if let [(a, first), (b, second), ..] = open[..] {
            self.breach(
                "P1",
                format!("two gates are open: n{a} at epoch {first}, n{b} at epoch {second}"),
            );
        }
    }

    /// P2: an epoch is handed to the application only if the record that made it is in the store, and is its newest.
    pub(crate) fn check_shown(&mut self, epoch: Epoch, session: SessionId) {
        if self.ghost.highest != epoch || self.ghost.owner != Some(session) {
            let HighestEpoch { highest, owner } = self.ghost;
            let what = format!(
                "session {} shows epoch {epoch}, but the newest is {highest} of {}",
                short(session),
                owner.map_or("nobody".to_owned(), short)
            );
            self.breach("P2", what);
        }
    }

    /// A key got a new value.
    pub(crate) fn check_written(&mut self, key: &Key, before: Option<&Record>, after: &Record) {
        match (key, after) {
            (Key::Shard(_), Record::Shard(after)) => {
                if let Some(Record::Shard(before)) = before {
                    self.check_change(before, after);
                    self.check_cordon(before, after);
                }
                self.check_epoch(after);
            }
            (Key::Session(id), Record::Session(after)) if after.ended.is_some() => {
                self.check_end(*id, after);
            }
            _ => {}
        }
    }

    fn check_epoch(&mut self, after: &ShardRecord) {
        let owner = after.owner().map(|by| by.session);
        let HighestEpoch { highest, owner: of } = self.ghost;
        if after.epoch < highest {
            let what = format!(
                "the shard's epoch goes back from {highest} to {}",
                after.epoch
            );
            return self.breach("P2", what);
        }
        if after.epoch == highest && of.is_some() && owner.is_some() && owner != of {
            return self.breach("P2", format!("epoch {highest} has two owners"));
        }
        self.ghost = HighestEpoch {
            highest: after.epoch,
            owner: owner.or(of.filter(|_| after.epoch == highest)),
        };
    }

    /// A9: work has stopped when its shard is released, or claimed again.
    fn check_change(&mut self, before: &ShardRecord, after: &ShardRecord) {
        if let Err(what) = check_successor(before, after) {
            self.breach("record", what);
        }
        let writer = after.head.nonce.writer;
        let running = self.seats.iter().any(|seat| {
            seat.process.as_deref().is_some_and(|process| {
                process.entropy == writer.0
                    && process.stays.iter().any(|stay| {
                        stay.epoch < after.epoch
                            || after.owner().map(|o| o.session) != Some(stay.session)
                    })
            })
        });
        let letting_go = before.owner().map(|o| o.session) != after.owner().map(|o| o.session)
            || before.epoch != after.epoch;
        if running && letting_go {
            self.breach(
                "A9",
                "the shard is released or claimed by a process whose work there still runs",
            );
        }
    }

    /// A cordoned node gets no shard that was not its own last.
    fn check_cordon(&mut self, before: &ShardRecord, after: &ShardRecord) {
        let Some(owner) = after.owner() else { return };
        let node = self.store.keys.get(&Key::Node(owner.node.clone()));
        let cordoned = matches!(node.map(|found| &found.record),
            Some(Ok(Record::Node(node))) if node.cordoned);
        let kept = before.owner().is_some_and(|by| by.node == owner.node);
        if cordoned && !kept {
            self.breach("cordon", "a cordoned node gets the shard");
        }
    }

    /// P1: nobody ends a session whose process lives before its deadline on its own clock.
    fn check_end(&mut self, id: SessionId, record: &SessionRecord) {
        let Some(ended) = record.ended else { return };
        let holder = self.seats.iter().find_map(|seat| {
            let process = seat.process.as_deref()?;
            Some((seat.time(self.now), process, *process.lease(id)?))
        });
        let Some((now, process, lease)) = holder else {
            return;
        };
        let works = process.stays.iter().any(|stay| stay.session == id);
        match ended.reason {
            EndReason::Resigned if works => {
                self.breach("A9", "a session is resigned while work of it still runs");
            }
            EndReason::Expired | EndReason::Replaced | EndReason::LeaseGone
                if now < lease.deadline =>
            {
                let what = format!("a session is ended ({}) before its deadline", ended.reason);
                self.breach("P1", what);
            }
            _ => {}
        }
    }
}
