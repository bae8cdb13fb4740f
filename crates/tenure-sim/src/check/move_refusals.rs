//! P4, the smooth part: in a planned move no request that a router has let through is turned away.
//!
//! The owner shuts its gate when every router holds what comes and has nothing under way, or when `router_hold_timeout` has
//! passed; and nothing is sent to an owner that is still loading. Asked only of runs in which nothing goes wrong: elsewhere
//! a request that is turned away waits and goes again. So it does if a move is called off while the owner seals.

use tenure_core::ids::Epoch;
use tenure_core::record::MovePhase;

use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::event_queue::Pid;

/// A gate that was shut for a move.
#[derive(Clone, Copy, Debug)]
struct Shut {
    pid: Pid,
    epoch: Epoch,
    /// Routers had been given all the time that there is.
    timed_out: bool,
    /// The application has begun to seal the shard.
    sealing: bool,
    /// The move was called off after that: the owner loads the shard again, and its record says meanwhile that it serves.
    called_off: bool,
}

/// What is known of the moves of each shard.
#[derive(Clone, Copy, Debug, Default)]
struct Moving {
    freezing_since: Option<Instant>,
    shut: Option<Shut>,
}

/// Checker that planned moves refuse no request, with the moves of all shards.
#[derive(Debug)]
pub(crate) struct MoveRefusalChecker(Vec<Moving>);

impl MoveRefusalChecker {
    pub(crate) fn new(shards: usize) -> Self {
        Self(vec![Moving::default(); shards])
    }

    /// A shard's record was written: routers are asked to hold from then on, or no longer.
    pub(crate) fn written(
        &mut self,
        at: Instant,
        shard: usize,
        epoch: Epoch,
        phase: Option<MovePhase>,
    ) {
        let moving = &mut self.0[shard];
        let since = moving.freezing_since.unwrap_or(at);
        moving.freezing_since = (phase == Some(MovePhase::Freezing)).then_some(since);
        if let Some(shut) = &mut moving.shut {
            shut.called_off |= shut.sealing && phase.is_none() && shut.epoch == epoch;
        }
    }

    /// The application of a shut gate begins to seal.
    pub(crate) fn seals(&mut self, shard: usize) {
        if let Some(shut) = &mut self.0[shard].shut {
            shut.sealing = true;
        }
    }

    /// An owner shuts its gate for a move.
    pub(crate) fn shut(
        &mut self,
        at: Instant,
        shard: usize,
        pid: Pid,
        epoch: Epoch,
        patience: u64,
    ) {
        let moving = &mut self.0[shard];
        // Clocks may be off, and timers early by as much.
        let waited = moving.freezing_since.map_or(0, |since| at - since);
        moving.shut = Some(Shut {
            pid,
            epoch,
            timed_out: waited >= patience / 10 * 9,
            sealing: false,
            called_off: false,
        });
    }

    pub(crate) fn thawed(&mut self, shard: usize) {
        self.0[shard].shut = None;
    }

    /// A node turns a request away that was sent by this epoch.
    pub(crate) fn turned_away(
        &self,
        at: Instant,
        shard: usize,
        pid: Pid,
        epoch: Epoch,
        loading: bool,
    ) -> CheckResult {
        let shut = self.0[shard].shut;
        let shut = shut.filter(|s| s.pid == pid && s.epoch == epoch);
        if shut.is_some_and(|s| s.called_off) {
            return Ok(());
        }
        let shut = shut.is_some_and(|s| !s.timed_out);
        let reason = match (shut, loading) {
            (true, _) => "the gate was shut for a move before its router held",
            (_, true) => "its owner is still loading",
            _ => return Ok(()),
        };
        let what = format!("process {pid} turns away a request for shard {shard}: {reason}");
        Err(Violation::new("P4", at, what))
    }
}
