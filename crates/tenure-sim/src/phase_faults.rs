//! A fault that waits for a move: it strikes a participant at the moment at which a shard enters a phase.

use tenure_core::ids::NodeName;
use tenure_core::keys::Key;
use tenure_core::reason::Reason;
use tenure_core::record::{MovePhase, Ownership, Record, ShardRecord};

use crate::event_queue::ScheduledEvent;
use crate::fault::{Cut, Fault};
use crate::run_config::nanos;
use crate::world::World;

/// Phase of a move in which a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultPhase {
    /// When a move enters this phase.
    Phase(MovePhase),
    /// When its target has taken the shard.
    Taken,
}

/// Victim of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Victim {
    /// Who owns the shard.
    Owner,
    /// Who is to own it.
    Target,
    /// Who plans.
    Leader,
    /// The first of the routers.
    Router,
}

/// Effect of a fault on its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultEffect {
    /// It dies.
    Kill,
    /// It dies, and starts again at once with its data directory.
    Restart,
    /// It is stopped for so long, in hundredths of the ttl.
    Pause(u64),
    /// It is cut off from the store for so long, in hundredths of the ttl.
    Cut(u64),
    /// It is asked to stop.
    Stop,
}

/// Fault that waits for a phase of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PhaseFault {
    /// Where.
    pub at: FaultPhase,
    /// Whom.
    pub victim: Victim,
    /// How.
    pub blow: FaultEffect,
    /// How many times.
    pub times: u32,
}

impl World {
    /// A shard's record was written: does that spring an ambush?
    pub(crate) fn look_for_ambush(&mut self, record: &ShardRecord) {
        let Some(ambush) = self.plan.ambush.filter(|a| self.ambushed < a.times) else {
            return;
        };
        let taken = record
            .history
            .last()
            .is_some_and(|p| p.reason == Reason::Taken && p.epoch == record.epoch);
        let moving = record.ownership.moving();
        let (owner, target): (NodeName, NodeName) = match (ambush.at, moving, &record.ownership) {
            (FaultPhase::Phase(phase), Some((mv, now)), _) if phase == now => {
                let Some(owner) = record.owner() else {
                    return;
                };
                (owner.node.clone(), mv.to.node.clone())
            }
            (FaultPhase::Taken, None, Ownership::Owned { by, serving: true }) if taken => {
                let from = record.history.last().and_then(|p| p.from.clone());
                (from.unwrap_or_else(|| by.node.clone()), by.node.clone())
            }
            _ => return,
        };
        let name = match ambush.victim {
            Victim::Owner => Some(owner),
            Victim::Target => Some(target),
            Victim::Leader => self.leader(),
            Victim::Router => None,
        };
        let router = self.plan.nodes + self.plan.observers;
        let number = match ambush.victim {
            Victim::Router => Some(router).filter(|_| self.plan.routers > 0),
            _ => name.and_then(|name| self.number_of(&name)),
        };
        let Some(node) = number else {
            return;
        };
        self.ambushed += 1;
        self.coverage.ambushes += 1;
        let percent = nanos(self.plan.timing.ttl) / 100;
        let faults = match ambush.blow {
            FaultEffect::Kill => vec![Fault::Kill { node }],
            FaultEffect::Restart => vec![Fault::Kill { node }, Fault::Restart { node, dir: true }],
            FaultEffect::Pause(span) => {
                let span = span * percent;
                vec![Fault::Pause { node, span }]
            }
            FaultEffect::Cut(span) => vec![Fault::Cut {
                node,
                how: Cut::Both,
                span: span * percent,
            }],
            FaultEffect::Stop => vec![Fault::Stop { node }],
        };
        for fault in faults {
            self.queue.push(self.now, ScheduledEvent::Strike(fault));
        }
    }

    fn leader(&self) -> Option<NodeName> {
        match self.store.get(&Key::Leader)?.record.as_ref() {
            Ok(Record::Leader(record)) => Some(record.node.clone()),
            _ => None,
        }
    }

    fn number_of(&self, name: &NodeName) -> Option<usize> {
        (0..self.plan.nodes).find(|n| self.plan.name(*n) == name.as_str())
    }
}
