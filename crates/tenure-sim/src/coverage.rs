//! What happened how often: a checker that has seen nothing has shown nothing.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure_core::lease::LeasePhase;
use tenure_core::record::{EndReason, NodeMode};
use tenure_core::telemetry::NodeEvent;

/// Counts over one run or many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are those of what is counted")]
pub struct Coverage {
    pub events: u64,
    pub simulated_seconds: u64,
    pub starts: u64,
    pub refusals: u64,
    pub gates_opened: u64,
    pub writes: u64,
    pub freezes: u64,
    pub thaws: u64,
    pub moves: u64,
    pub ambushes: u64,
    pub requests: u64,
    pub answered: u64,
    pub held: u64,
    pub flushed: u64,
    pub followed: u64,
    pub turned_away: u64,
    pub lost: u64,
    pub failed_requests: u64,
    pub published: u64,
    pub shard_writes: u64,
    pub unknown_outcomes: u64,
    pub detachments: u64,
    pub recoveries: u64,
    pub sessions_lost: u64,
    pub refused_effects: u64,
    pub wedged: u64,
    pub overslept: u64,
    pub load_failures: u64,
    pub other_keyspaces: u64,
    pub named_shards_served: u64,
    pub doomed: u64,
    pub created_again: u64,
    pub would_haves: u64,
    pub modes_told: u64,
    pub operated: u64,
    pub came_back_drained: u64,
    pub cordoned: u64,
    pub mixed: u64,
    pub planners: u64,
    pub evicted: u64,
    pub restores: u64,
    pub estranged: u64,
    pub ended: BTreeMap<&'static str, u64>,
    pub shard_steps: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub(crate) fn note(&mut self, note: &NodeEvent) {
        match note {
            NodeEvent::Shard(transition) => {
                *self
                    .shard_steps
                    .entry(transition.step.as_str())
                    .or_default() += 1
            }
            NodeEvent::Lease {
                to: LeasePhase::Detached,
                ..
            } => self.detachments += 1,
            NodeEvent::Lease {
                from: LeasePhase::Recovering,
                to: LeasePhase::Attached,
            } => self.recoveries += 1,
            NodeEvent::SessionLost { .. } => self.sessions_lost += 1,
            NodeEvent::RuntimeBlocked { .. } => self.wedged += 1,
            NodeEvent::ClockJump { .. } => self.overslept += 1,
            NodeEvent::LoadFailed { .. } => self.load_failures += 1,
            NodeEvent::WouldDo { .. } => self.would_haves += 1,
            NodeEvent::StoreReplaced { .. } => self.estranged += 1,
            NodeEvent::StopRequested { .. } => self.evicted += 1,
            NodeEvent::Registered { mode, .. } => {
                let asks = matches!(mode, NodeMode::Drained(_)) && !mode.is_by_operator();
                self.came_back_drained += u64::from(asks);
            }
            NodeEvent::SessionEnded { reason, .. } => {
                *self.ended.entry(ended_name(*reason)).or_default() += 1
            }
            _ => {}
        }
    }

    /// How many shards were taken at the end of a move.
    pub fn taken(&self) -> u64 {
        self.shard_steps.get("taken").copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.simulated_seconds += other.simulated_seconds;
        self.starts += other.starts;
        self.refusals += other.refusals;
        self.gates_opened += other.gates_opened;
        self.writes += other.writes;
        self.freezes += other.freezes;
        self.thaws += other.thaws;
        self.moves += other.moves;
        self.ambushes += other.ambushes;
        self.requests += other.requests;
        self.answered += other.answered;
        self.held += other.held;
        self.flushed += other.flushed;
        self.followed += other.followed;
        self.turned_away += other.turned_away;
        self.lost += other.lost;
        self.failed_requests += other.failed_requests;
        self.published += other.published;
        self.shard_writes += other.shard_writes;
        self.unknown_outcomes += other.unknown_outcomes;
        self.detachments += other.detachments;
        self.recoveries += other.recoveries;
        self.sessions_lost += other.sessions_lost;
        self.refused_effects += other.refused_effects;
        self.wedged += other.wedged;
        self.overslept += other.overslept;
        self.load_failures += other.load_failures;
        self.other_keyspaces += other.other_keyspaces;
        self.named_shards_served += other.named_shards_served;
        self.doomed += other.doomed;
        self.created_again += other.created_again;
        self.would_haves += other.would_haves;
        self.modes_told += other.modes_told;
        self.operated += other.operated;
        self.came_back_drained += other.came_back_drained;
        self.cordoned += other.cordoned;
        self.mixed += other.mixed;
        self.planners += other.planners;
        self.evicted += other.evicted;
        self.restores += other.restores;
        self.estranged += other.estranged;
        for (mine, theirs) in [
            (&mut self.ended, &other.ended),
            (&mut self.shard_steps, &other.shard_steps),
            (&mut self.faults, &other.faults),
        ] {
            for (name, count) in theirs {
                *mine.entry(name).or_default() += count;
            }
        }
    }
}

fn ended_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Resigned => "resigned",
        EndReason::Expired => "expired",
        EndReason::Replaced => "replaced",
        EndReason::LeaseGone => "lease_gone",
        EndReason::Missing => "missing",
    }
}
