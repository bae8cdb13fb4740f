//! The lease of one session, as its holder sees it.
//!
//! ```text
//!            renewal failed               closes_at passed
//!  Attached ───────────────► Degraded ──────────────────────► Detached ◄──┐ renewal failed, or closes_at passed
//!     ▲  ◄───────────────────  │  │      (also from Attached)    │        │
//!     │     renewal confirmed  │  └─────────────────────────────►│        │
//!     │                        ▼                                 ▼ renewal confirmed
//!     └───────────────── window of health ◄────────────────── Recovering ─┘
//! ```
//!
//! The deadline counts from the time a confirmed renewal was *sent*: the store, and every judge, saw it later than that
//! (P1). Gates close `lease_detach_margin` before it. Nothing but a confirmed renewal moves the deadline, and nothing but
//! the clock detaches: a store that fails or hangs costs nothing before its time (A2, A3).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rules::{Mutant, Rules};
use crate::settings::Timing;
use crate::time::Time;

/// How a node stands with its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeasePhase {
    /// Renewals succeed.
    Attached,
    /// A renewal failed; work goes on while there is time.
    Degraded,
    /// Time ran out: nothing is owned.
    Detached,
    /// Renewals succeed again, but not yet for long enough.
    Recovering,
}

impl LeasePhase {
    /// The phase as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Degraded => "degraded",
            Self::Detached => "detached",
            Self::Recovering => "recovering",
        }
    }

    /// Whether shards may be owned, claimed and served.
    pub fn may_own(self) -> bool {
        matches!(self, Self::Attached | Self::Degraded)
    }
}

/// The lease machine. Made when the creation of a session is confirmed, dropped when the session is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    phase: LeasePhase,
    deadline: Time,
    healthy_since: Time,
    streak: u32,
}

impl Lease {
    /// The lease of a session whose creation was sent at `sent` and is now confirmed to be good for `ttl`.
    pub fn new(now: Time, sent: Time, ttl: Duration, rules: Rules) -> Self {
        let mut lease = Self {
            phase: LeasePhase::Attached,
            deadline: Time::ZERO,
            healthy_since: now,
            streak: 0,
        };
        lease.extend(now, sent, ttl, rules);
        lease
    }

    /// The phase now.
    pub fn phase(&self) -> LeasePhase {
        self.phase
    }

    /// When others may take over at the earliest.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// When gates close by themselves.
    pub fn closes_at(&self, timing: &Timing, rules: Rules) -> Time {
        if rules.broken_by(Mutant::NoDetachment) {
            return Time::NEVER;
        }
        if rules.broken_by(Mutant::MissingMargin) {
            return self.deadline + timing.lease_detach_margin;
        }
        self.deadline - timing.lease_detach_margin
    }

    /// How many renewals failed in a row.
    pub fn failure_streak(&self) -> u32 {
        self.streak
    }

    /// A renewal that was sent at `sent` is confirmed to be good for `ttl`.
    pub fn confirmed(
        &mut self,
        now: Time,
        sent: Time,
        ttl: Duration,
        timing: &Timing,
        rules: Rules,
    ) -> LeasePhase {
        self.extend(now, sent, ttl, rules);
        let healthy_before = self.streak == 0;
        self.streak = 0;
        self.phase = match self.phase {
            LeasePhase::Attached | LeasePhase::Degraded => LeasePhase::Attached,
            LeasePhase::Detached => {
                self.healthy_since = now;
                LeasePhase::Recovering
            }
            LeasePhase::Recovering if !healthy_before => {
                self.healthy_since = now;
                LeasePhase::Recovering
            }
            LeasePhase::Recovering => LeasePhase::Recovering,
        };
        self.tick(now, timing, rules)
    }

    /// A renewal failed, or its outcome is not known.
    pub fn failed(&mut self, now: Time, timing: &Timing, rules: Rules) -> LeasePhase {
        self.streak = self.streak.saturating_add(1);
        self.phase = match self.phase {
            LeasePhase::Attached | LeasePhase::Degraded => LeasePhase::Degraded,
            LeasePhase::Recovering | LeasePhase::Detached => LeasePhase::Detached,
        };
        self.tick(now, timing, rules)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time, timing: &Timing, rules: Rules) -> LeasePhase {
        if now >= self.closes_at(timing, rules) {
            self.phase = LeasePhase::Detached;
        } else if self.phase == LeasePhase::Recovering
            && now >= self.healthy_since + timing.detachment_recover_window
            && !rules.broken_by(Mutant::NoRecovery)
        {
            self.phase = LeasePhase::Attached;
        }
        self.phase
    }

    /// When [`Lease::tick`] is needed next.
    pub fn wake(&self, timing: &Timing, rules: Rules) -> Option<Time> {
        match self.phase {
            LeasePhase::Attached | LeasePhase::Degraded => Some(self.closes_at(timing, rules)),
            LeasePhase::Recovering => Some(
                (self.healthy_since + timing.detachment_recover_window)
                    .min(self.closes_at(timing, rules)),
            ),
            LeasePhase::Detached => None,
        }
    }

    /// Forgets since when renewals have succeeded again, unless it is recovering.
    pub(crate) fn forget_recovery(&mut self) {
        if self.phase != LeasePhase::Recovering {
            self.healthy_since = Time::ZERO;
        }
    }

    fn extend(&mut self, now: Time, sent: Time, ttl: Duration, rules: Rules) {
        let from = if rules.broken_by(Mutant::DeadlineFromReply) {
            now
        } else {
            sent
        };
        self.deadline = self.deadline.max(from + ttl);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    const R: Rules = Rules::sound();

    fn timing() -> Timing {
        // ttl 6 s: margin 1.5 s, recover window 2 s
        Settings {
            ttl: Duration::from_secs(6),
            ..Settings::default()
        }
        .check(Duration::ZERO)
        .unwrap()
    }

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn lease() -> (Lease, Timing) {
        let timing = timing();
        (Lease::new(at(1000), at(1000), timing.ttl, R), timing)
    }

    #[test]
    fn the_deadline_counts_from_the_time_the_renewal_was_sent() {
        let (mut lease, t) = lease();
        lease.confirmed(at(3000), at(2000), t.ttl, &t, R);
        assert_eq!(lease.deadline(), at(8000));
        assert_eq!(lease.closes_at(&t, R), at(6500));
    }

    #[test]
    fn a_late_answer_to_an_older_renewal_does_not_take_the_deadline_back() {
        let (mut lease, t) = lease();
        lease.confirmed(at(3000), at(2500), t.ttl, &t, R);
        lease.confirmed(at(3100), at(2000), t.ttl, &t, R);
        assert_eq!(lease.deadline(), at(8500));
    }

    #[test]
    fn failures_alone_never_detach_before_the_time() {
        let (mut lease, t) = lease();
        for ms in (1100..5500).step_by(100) {
            assert_eq!(lease.failed(at(ms), &t, R), LeasePhase::Degraded, "{ms}");
        }
        assert_eq!(lease.tick(at(5499), &t, R), LeasePhase::Degraded);
        assert_eq!(lease.tick(at(5500), &t, R), LeasePhase::Detached);
    }

    #[test]
    fn one_success_ends_degradation() {
        let (mut lease, t) = lease();
        lease.failed(at(2000), &t, R);
        lease.failed(at(2100), &t, R);
        assert_eq!(lease.failure_streak(), 2);
        assert_eq!(
            lease.confirmed(at(2200), at(2190), t.ttl, &t, R),
            LeasePhase::Attached
        );
        assert_eq!(lease.failure_streak(), 0);
    }

    #[test]
    fn a_detached_node_comes_back_after_a_window_of_health() {
        let (mut lease, t) = lease();
        lease.tick(at(5500), &t, R);
        assert_eq!(
            lease.confirmed(at(6000), at(5990), t.ttl, &t, R),
            LeasePhase::Recovering
        );
        assert_eq!(
            lease.confirmed(at(7000), at(6990), t.ttl, &t, R),
            LeasePhase::Recovering
        );
        assert_eq!(lease.wake(&t, R), Some(at(8000)));
        assert_eq!(lease.tick(at(8000), &t, R), LeasePhase::Attached);
    }

    #[test]
    fn an_unhealthy_signal_restarts_the_window() {
        let (mut lease, t) = lease();
        lease.tick(at(5500), &t, R);
        lease.confirmed(at(6000), at(5990), t.ttl, &t, R);
        assert_eq!(lease.failed(at(7000), &t, R), LeasePhase::Detached);
        assert_eq!(
            lease.confirmed(at(7500), at(7490), t.ttl, &t, R),
            LeasePhase::Recovering
        );
        assert_eq!(lease.tick(at(8400), &t, R), LeasePhase::Recovering);
        assert_eq!(lease.tick(at(9500), &t, R), LeasePhase::Attached);
    }

    #[test]
    fn a_confirmation_that_comes_too_late_does_not_re_attach() {
        let (mut lease, t) = lease();
        assert_eq!(
            lease.confirmed(at(9000), at(2000), t.ttl, &t, R),
            LeasePhase::Detached
        );
    }
}
