//! The store's clock, as far as answers tell it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How far the local clock may be off before the store's is signed instead. Services let fifteen minutes pass.
const SLACK: Duration = Duration::from_secs(5);

/// What the `Date` of answers says of the time there, to the second.
#[derive(Debug, Default)]
pub(super) struct ServiceClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last that was heard, and when.
    heard: Option<(SystemTime, Instant)>,
    /// What the local clock is corrected by: how far it is off, and whether it is ahead.
    off: (Duration, bool),
}

impl ServiceClock {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of the `Date` of an answer.
    pub(super) fn heard(&self, date: SystemTime) {
        let mut state = self.lock();
        state.heard = Some((date, Instant::now()));
        if apart(corrected(SystemTime::now(), state.off), date) > SLACK {
            let local = SystemTime::now();
            state.off = (apart(local, date), local > date);
        }
    }

    /// The time to sign with.
    pub(super) fn to_sign(&self) -> SystemTime {
        corrected(SystemTime::now(), self.lock().off)
    }

    /// The time there, if it was heard of within `age`.
    pub(super) fn now(&self, age: Duration) -> Option<SystemTime> {
        let (date, at) = self.lock().heard?;
        let since = at.elapsed();
        (since <= age).then(|| date + since)
    }

    /// How far the local wall clock is off, and whether it is ahead; nothing within the slack.
    pub(super) fn off(&self) -> Option<(Duration, bool)> {
        let off = self.lock().off;
        (off.0 > SLACK).then_some(off)
    }
}

fn corrected(local: SystemTime, (off, ahead): (Duration, bool)) -> SystemTime {
    let corrected = match ahead {
        true => local.checked_sub(off),
        false => local.checked_add(off),
    };
    corrected.unwrap_or(local)
}

fn apart(a: SystemTime, b: SystemTime) -> Duration {
    let back = |e: std::time::SystemTimeError| e.duration();
    a.duration_since(b).unwrap_or_else(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_time_is_signed_where_the_local_clock_is_off() {
        let hours = Duration::from_secs(5 * 3600);
        for theirs in [SystemTime::now() + hours, SystemTime::now() - hours] {
            let clock = ServiceClock::default();
            assert_eq!(clock.off(), None);
            clock.heard(theirs);
            assert!(apart(clock.to_sign(), theirs) < SLACK);
            assert!(clock.off().unwrap().0 > hours - SLACK);
            clock.heard(SystemTime::now());
            assert!(apart(clock.to_sign(), SystemTime::now()) < SLACK);
            assert_eq!(clock.off(), None);
        }
    }

    #[test]
    fn a_clock_that_is_nearly_right_is_left_alone() {
        let clock = ServiceClock::default();
        clock.heard(SystemTime::now() - Duration::from_secs(2));
        assert_eq!(clock.off(), None);
        assert!(clock.now(SLACK).is_some());
        assert_eq!(clock.now(Duration::ZERO), None);
    }
}
