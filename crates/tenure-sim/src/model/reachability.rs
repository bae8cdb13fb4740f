//! What must happen in some run of the model, or it shows nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::Property;
use tenure_core::lease::LeasePhase;
use tenure_core::reason::Reason;
use tenure_core::record::EndReason;
use tenure_core::telemetry::{NodeEvent, ShardStep};

use super::explore::Exploration;
use super::state::State;

macro_rules! sights {
    ($($name:ident $words:literal,)*) => {
        /// Something worth having seen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "`words` says it")]
        pub enum Sight { $($name,)* }

        impl Sight {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// It in words.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }

            /// That it happens in some run.
            pub(super) fn property(self) -> Property<Exploration> {
                match self {
                    $(Self::$name => Property::sometimes($words, |model: &Exploration, _: &State| {
                        model.sights.is_news(Self::$name)
                    }),)*
                }
            }
        }
    };
}

sights! {
    ClaimedFree "a free shard is claimed",
    TakenAfterEnd "a shard is taken after its owner's session ended",
    AdoptedAgain "a shard is taken up again at the same epoch after detachment",
    Serving "a gate opens",
    Draining "a gate closes and lets work finish",
    CutLeaseLost "a gate is cut because the lease ran out",
    CutSessionEnded "a gate is cut because the session is over",
    CutSuperseded "a gate is cut because the record names another",
    CutMissing "a gate is cut because the record is missing",
    ReleasedForBalance "a shard is released for the sake of balance",
    Moving "a shard begins to move",
    Frozen "a gate is shut for a move",
    Thawed "a gate is opened again because a move was called off",
    Sealed "a shard is sealed for its successor",
    Taken "a shard is taken at the end of a move",
    Reaffirmed "a sealed shard goes back to its last owner",
    ReleasedStopping "a shard is released by a node that stops",
    Restored "a lost record is made anew",
    Degraded "a lease is degraded",
    Detached "a lease is detached",
    Recovering "a lease is recovering",
    Reattached "a lease is attached again after detachment",
    Expired "a session is ended because it expired",
    Replaced "a session is ended by its successor",
    Resigned "a session is ended by its holder",
    SessionLost "a node loses its session and registers anew",
    WaitedForName "a node waits for its name",
    Overslept "a node oversleeps",
    UnknownOwn "an unknown outcome is settled as one's own",
    UnknownNot "an unknown outcome is settled as not one's own",
    RaceLost "a race for a write is lost",
    LateWrite "a write takes effect after its sender gave up or died",
    GateRanOut "a gate is closed by the clock while its process stands still",
    RequestHeld "a router holds a request for a move",
    FlushedAfterTake "a router sends what it held to the new owner",
    FlushedAfterCancel "a router sends what it held to the owner that stayed",
}

/// What was seen so far, by all threads, and what of it was told.
#[derive(Debug, Default)]
pub(crate) struct Sights {
    seen: AtomicU64,
    told: AtomicU64,
}

impl Sights {
    pub(crate) fn add(&self, seen: u64) {
        if self.seen.load(Ordering::Relaxed) & seen != seen {
            self.seen.fetch_or(seen, Ordering::Relaxed);
        }
    }

    /// All that was seen, in words.
    pub(crate) fn all(&self) -> Vec<&'static str> {
        let seen = self.seen.load(Ordering::Relaxed);
        let all = Sight::ALL.iter().filter(|sight| seen & sight.bit() != 0);
        all.map(|sight| sight.words()).collect()
    }

    /// Whether it was seen, and nobody has asked since.
    fn is_news(&self, sight: Sight) -> bool {
        let bit = sight.bit();
        self.seen.load(Ordering::Relaxed) & bit != 0
            && self.told.load(Ordering::Relaxed) & bit == 0
            && self.told.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

impl Sight {
    pub(crate) const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// What a note of a machine shows.
    pub(crate) fn of(note: &NodeEvent) -> u64 {
        let sight = match note {
            NodeEvent::Shard(t) => match (t.step, t.reason) {
                (ShardStep::Claimed, Reason::Free) => Self::ClaimedFree,
                (ShardStep::Claimed, Reason::OwnerEnded) => Self::TakenAfterEnd,
                (ShardStep::Loading, Reason::Recovered) => Self::AdoptedAgain,
                (ShardStep::Serving, _) => Self::Serving,
                (ShardStep::Draining, _) => Self::Draining,
                (ShardStep::Cancelled, Reason::LeaseLost) => Self::CutLeaseLost,
                (ShardStep::Cancelled, Reason::SessionEnded) => Self::CutSessionEnded,
                (ShardStep::Cancelled, Reason::Superseded) => Self::CutSuperseded,
                (ShardStep::Cancelled, Reason::RecordMissing) => Self::CutMissing,
                (ShardStep::Released, Reason::Rebalance) => Self::ReleasedForBalance,
                (ShardStep::Released, Reason::NodeStopping) => Self::ReleasedStopping,
                (ShardStep::MoveStarted, _) => Self::Moving,
                (ShardStep::Frozen, _) => Self::Frozen,
                (ShardStep::Thawed, _) => Self::Thawed,
                (ShardStep::Sealed, _) => Self::Sealed,
                (ShardStep::Taken, _) => Self::Taken,
                (ShardStep::Reclaimed, _) => Self::Reaffirmed,
                (ShardStep::Restored, _) => Self::Restored,
                _ => return 0,
            },
            NodeEvent::Lease { from, to } => match (from, to) {
                (LeasePhase::Recovering, LeasePhase::Attached) => Self::Reattached,
                (_, LeasePhase::Degraded) => Self::Degraded,
                (_, LeasePhase::Detached) => Self::Detached,
                (_, LeasePhase::Recovering) => Self::Recovering,
                _ => return 0,
            },
            NodeEvent::SessionLost { .. } => Self::SessionLost,
            NodeEvent::WaitingForName { .. } => Self::WaitedForName,
            NodeEvent::ClockJump { .. } => Self::Overslept,
            _ => return 0,
        };
        sight.bit()
    }

    /// What a tombstone shows.
    pub(crate) fn of_end(reason: EndReason) -> u64 {
        match reason {
            EndReason::Resigned => Self::Resigned.bit(),
            EndReason::Expired => Self::Expired.bit(),
            EndReason::Replaced => Self::Replaced.bit(),
            EndReason::LeaseGone | EndReason::Missing => 0,
        }
    }
}
