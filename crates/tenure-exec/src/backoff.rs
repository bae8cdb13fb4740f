//! Delay before the restart of a child that keeps ending.

use std::time::Duration;

/// The shortest and the longest delay.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// Life time of a child after which earlier short lives do not count.
pub(crate) const STEADY: Duration = Duration::from_secs(10);

/// Doubles with every child that did not live long.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    short_lives: u32,
}

impl Backoff {
    /// The wait after a child that lived for so long.
    pub(crate) fn after(&mut self, lived: Duration) -> Duration {
        if lived >= STEADY {
            self.short_lives = 0;
        }
        let wait = FIRST * 2u32.saturating_pow(self.short_lives.min(16));
        self.short_lives = self.short_lives.saturating_add(1);
        wait.min(LONGEST)
    }

    /// Number of short-lived children in a row.
    pub(crate) fn short_lives(&self) -> u32 {
        self.short_lives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_a_limit_and_a_long_life_starts_over() {
        let mut backoff = Backoff::default();
        let first: Vec<_> = (0..4).map(|_| backoff.after(Duration::ZERO)).collect();
        assert_eq!(first, [FIRST, FIRST * 2, FIRST * 4, FIRST * 8]);
        for _ in 0..40 {
            assert!(backoff.after(Duration::ZERO) <= LONGEST);
        }
        assert_eq!(backoff.after(Duration::ZERO), LONGEST);
        assert_eq!(backoff.after(STEADY), FIRST);
        assert_eq!(backoff.short_lives(), 1);
    }
}
