//! P1: when which gates were open, and that no two of one shard were at once.
//!
//! A gate admits from its opening until it is closed, its process ends, or the clock reaches the time at which its lease
//! closes it. A process that was killed is only known to have lived up to its last line: what it may have admitted after
//! that is not counted. So what is found here did happen; what happened need not be found.

use std::collections::BTreeMap;

use tenure_core::ids::{Epoch, NodeName, SessionId, ShardId};
use tenure_core::machine::{Action, ActivationId};
use tenure_core::time::Time;

use super::report::{CheckKind, FindingSink, TracePosition};

/// Interval in which a gate was open.
#[derive(Clone, Debug)]
pub(super) struct GateInterval {
    from: Time,
    to: Time,
    node: NodeName,
    epoch: Epoch,
    place: TracePosition,
}

/// The gates of one process.
pub(super) struct Gates {
    node: NodeName,
    leases: BTreeMap<SessionId, Time>,
    stays: BTreeMap<ActivationId, Activation>,
    openings: Vec<(ShardId, GateInterval)>,
}

struct Activation {
    shard: ShardId,
    epoch: Epoch,
    session: SessionId,
    open: Option<(Time, TracePosition)>,
}

impl Gates {
    pub(super) fn new(node: NodeName) -> Self {
        Self {
            node,
            leases: BTreeMap::new(),
            stays: BTreeMap::new(),
            openings: Vec::new(),
        }
    }

    pub(super) fn act(&mut self, t: Time, place: &TracePosition, action: &Action) {
        match action {
            Action::Lease {
                session, stop_time, ..
            } => self.extend(t, place, *session, *stop_time),
            Action::Load {
                activation,
                shard,
                epoch,
                session,
                ..
            } => {
                let stay = Activation {
                    shard: shard.clone(),
                    epoch: *epoch,
                    session: *session,
                    open: None,
                };
                self.stays.insert(*activation, stay);
            }
            Action::Open(activation) => {
                if let Some(stay) = self.stays.get_mut(activation) {
                    stay.open = Some((t, place.clone()));
                }
            }
            Action::Close { activation, .. } => {
                if let Some(stay) = self.stays.remove(activation) {
                    self.closed(t, stay);
                }
            }
            _ => {}
        }
    }

    /// A lease goes on. Gates that it had closed before are open again from here.
    fn extend(&mut self, t: Time, place: &TracePosition, session: SessionId, stop_time: Time) {
        let before = self.leases.insert(session, stop_time).unwrap_or(Time::ZERO);
        if stop_time < before {
            self.leases.insert(session, before);
        }
        if t < before {
            return;
        }
        for stay in self.stays.values_mut().filter(|s| s.session == session) {
            let Some((from, since)) = stay.open.take() else {
                continue;
            };
            stay.open = Some((t, place.clone()));
            let opening = GateInterval {
                from,
                to: before,
                node: self.node.clone(),
                epoch: stay.epoch,
                place: since,
            };
            self.openings.push((stay.shard.clone(), opening));
        }
    }

    fn closed(&mut self, t: Time, stay: Activation) {
        let Some((from, place)) = stay.open else {
            return;
        };
        let lease = self.leases.get(&stay.session).copied();
        let opening = GateInterval {
            from,
            to: t.min(lease.unwrap_or(Time::ZERO)),
            node: self.node.clone(),
            epoch: stay.epoch,
            place,
        };
        self.openings.push((stay.shard, opening));
    }

    /// All that was open, once the process is known to be over, or was last heard of, at this time.
    pub(super) fn end(mut self, t: Time) -> Vec<(ShardId, GateInterval)> {
        for stay in std::mem::take(&mut self.stays).into_values() {
            self.closed(t, stay);
        }
        self.openings
            .retain(|(_, opening)| opening.from < opening.to);
        self.openings
    }
}

/// Sees that of all openings of one shard, by clocks that show the same time, no two overlap.
pub(super) fn alone(shard: &ShardId, mut openings: Vec<GateInterval>, sink: &mut FindingSink) {
    openings.sort_by(|a, b| (a.from, &a.place).cmp(&(b.from, &b.place)));
    sink.report.openings += openings.len() as u64;
    let mut last: Option<GateInterval> = None;
    for next in openings {
        if let Some(last) = &last
            && next.from < last.to
        {
            let what = format!(
                "the gate of {shard} opened at node {} (epoch {}) at {} although that of node {} (epoch {}, {}) was open \
                 from {} to {}",
                next.node,
                next.epoch,
                next.from,
                last.node,
                last.epoch,
                last.place,
                last.from,
                last.to
            );
            sink.found(&next.place, CheckKind::P1, what);
        }
        if last.as_ref().is_none_or(|last| next.to > last.to) {
            last = Some(next);
        }
    }
}
