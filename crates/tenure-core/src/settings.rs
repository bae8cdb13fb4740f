//! Times and limits of a node: given as data, checked once, as a whole.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The settings of a node. What is `None` follows from the ttl.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    /// How long a session is good after a confirmed renewal.
    pub ttl: Duration,
    /// How often the session is renewed. Default: a sixth of the ttl.
    pub renew_interval: Option<Duration>,
    /// How long after a failed renewal the next try comes. Default, and most: a twentieth of the ttl.
    pub renew_retry_interval: Option<Duration>,
    /// How long any one request to the store may take. Default: a twelfth of the ttl: the tries after a failed
    /// renewal then fall so that a store which is away for half the ttl is not noticed.
    pub request_timeout: Option<Duration>,
    /// How long before the deadline gates close. Default: a quarter of the ttl.
    pub lease_detach_margin: Option<Duration>,
    /// How long it may take to stop work that is cancelled. Default: an eighth of the ttl.
    pub kill_grace: Option<Duration>,
    /// By how much the rates of two clocks may differ, in parts per thousand.
    pub clock_drift_max_permille: u32,
    /// How long renewals must succeed again before a detached node takes up its shards. Default: a third of the ttl.
    pub detachment_recover_window: Option<Duration>,
    /// How often assigned shards that are held elsewhere are looked at again.
    pub claim_retry_interval: Duration,
    /// For how long they are; zero: on watch and tick only.
    pub claim_retry_window: Duration,
    /// Whether a change seen by the watch leads to a claim at once.
    pub claim_watch_enabled: bool,
    /// How long the set of nodes must be unchanged before shards are given away for balance.
    pub assignment_settle_time: Duration,
    /// How many shards may be given away at the same time.
    pub release_batch: usize,
    /// How long what is in flight may take to finish before it is cancelled.
    pub drain_timeout: Duration,
    /// How long a move waits for routers to hold what comes for the shard.
    pub router_hold_timeout: Duration,
    /// How long a move waits, once the shard is sealed, for its new owner.
    pub take_timeout: Duration,
    /// The longest wait before a move that was called off is tried again; the first is at least `drain_timeout`.
    pub move_retry_max: Duration,
    /// How often everything is looked at even if nothing was heard. Default: four times the ttl.
    pub tick_interval: Option<Duration>,
    /// How often everything is read anew even if nothing seems amiss. Default: 24 times the ttl.
    pub relist_interval: Option<Duration>,
    /// How long the application's runtime may show no sign of life before renewals stop. Default: the ttl.
    pub stall_limit: Option<Duration>,
    /// How long a load may take before it counts as failed.
    pub load_timeout: Duration,
    /// The first wait after a failed load; doubles with each.
    pub load_retry_min: Duration,
    /// The longest wait after a failed load.
    pub load_retry_max: Duration,
    /// How many loads are tried before the shard goes to another node.
    pub load_attempts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_millis(2500),
            renew_interval: None,
            renew_retry_interval: None,
            request_timeout: None,
            lease_detach_margin: None,
            kill_grace: None,
            clock_drift_max_permille: 10,
            detachment_recover_window: None,
            claim_retry_interval: Duration::from_millis(200),
            claim_retry_window: Duration::from_secs(2),
            claim_watch_enabled: true,
            assignment_settle_time: Duration::from_millis(250),
            release_batch: 64,
            drain_timeout: Duration::from_secs(10),
            move_retry_max: Duration::from_secs(60),
            take_timeout: Duration::from_secs(10),
            router_hold_timeout: Duration::from_secs(2),
            tick_interval: None,
            relist_interval: None,
            stall_limit: None,
            load_timeout: Duration::from_secs(60),
            load_retry_min: Duration::from_millis(100),
            load_retry_max: Duration::from_secs(10),
            load_attempts: 3,
        }
    }
}

/// One thing that is wrong with the settings: which, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SettingProblem {
    /// The name of the setting.
    pub setting: &'static str,
    /// What is wrong, and the way out.
    pub problem: String,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.problem)
    }
}

/// Checked settings: every value is set and they fit together. Only [`Settings::check`] makes one, also of what a trace says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Settings", into = "Settings")]
#[allow(missing_docs, reason = "the fields are those of `Settings`")]
#[non_exhaustive]
pub struct Timing {
    pub ttl: Duration,
    pub renew_interval: Duration,
    pub renew_retry_interval: Duration,
    pub request_timeout: Duration,
    pub lease_detach_margin: Duration,
    pub kill_grace: Duration,
    pub clock_drift_max_permille: u32,
    pub detachment_recover_window: Duration,
    pub claim_retry_interval: Duration,
    pub claim_retry_window: Duration,
    pub claim_watch_enabled: bool,
    pub assignment_settle_time: Duration,
    pub release_batch: usize,
    pub drain_timeout: Duration,
    pub move_retry_max: Duration,
    pub router_hold_timeout: Duration,
    pub take_timeout: Duration,
    pub tick_interval: Duration,
    pub relist_interval: Duration,
    pub stall_limit: Duration,
    pub load_timeout: Duration,
    pub load_retry_min: Duration,
    pub load_retry_max: Duration,
    pub load_attempts: u32,
}

impl Timing {
    /// How long to wait before the next try after a move was called off, so many times in a row before.
    pub fn move_retry(&self, times: u32) -> Duration {
        let first = self.drain_timeout.max(self.ttl / 4);
        let wait = first.saturating_mul(2u32.saturating_pow(times.min(16)));
        wait.min(self.move_retry_max)
    }

    /// `ttl × (1 + drift)`: how long a judge must watch a session of this ttl to know that it is over on its holder's clock.
    pub fn proof_of(&self, ttl: Duration) -> Duration {
        ttl + ttl * self.clock_drift_max_permille / 1000
    }

    /// `ttl / (1 + drift)`: for how long a lease whose time somebody else keeps is good for sure, on one's own clock.
    pub fn sure_of(&self, ttl: Duration) -> Duration {
        ttl * 1000 / (1000 + self.clock_drift_max_permille)
    }
}

impl Settings {
    /// Checks all settings against each other and against the store's shortest ttl; reports every problem at once.
    pub fn check(&self, min_ttl: Duration) -> Result<Timing, Vec<SettingProblem>> {
        let ttl = self.ttl;
        let timing = Timing {
            ttl,
            renew_interval: self.renew_interval.unwrap_or(ttl / 6),
            renew_retry_interval: self.renew_retry_interval.unwrap_or(ttl / 20),
            request_timeout: self.request_timeout.unwrap_or(ttl / 12),
            lease_detach_margin: self.lease_detach_margin.unwrap_or(ttl / 4),
            kill_grace: self.kill_grace.unwrap_or(ttl / 8),
            clock_drift_max_permille: self.clock_drift_max_permille,
            detachment_recover_window: self.detachment_recover_window.unwrap_or(ttl / 3),
            claim_retry_interval: self.claim_retry_interval,
            claim_retry_window: self.claim_retry_window,
            claim_watch_enabled: self.claim_watch_enabled,
            assignment_settle_time: self.assignment_settle_time,
            release_batch: self.release_batch,
            drain_timeout: self.drain_timeout,
            move_retry_max: self.move_retry_max,
            take_timeout: self.take_timeout,
            router_hold_timeout: self.router_hold_timeout,
            tick_interval: self.tick_interval.unwrap_or(ttl * 4),
            relist_interval: self.relist_interval.unwrap_or(ttl * 24),
            stall_limit: self.stall_limit.unwrap_or(ttl),
            load_timeout: self.load_timeout,
            load_retry_min: self.load_retry_min,
            load_retry_max: self.load_retry_max,
            load_attempts: self.load_attempts,
        };
        let problems = timing.problems(min_ttl);
        if problems.is_empty() {
            Ok(timing)
        } else {
            Err(problems)
        }
    }
}

impl From<Timing> for Settings {
    fn from(t: Timing) -> Self {
        Self {
            ttl: t.ttl,
            renew_interval: Some(t.renew_interval),
            renew_retry_interval: Some(t.renew_retry_interval),
            request_timeout: Some(t.request_timeout),
            lease_detach_margin: Some(t.lease_detach_margin),
            kill_grace: Some(t.kill_grace),
            clock_drift_max_permille: t.clock_drift_max_permille,
            detachment_recover_window: Some(t.detachment_recover_window),
            claim_retry_interval: t.claim_retry_interval,
            claim_retry_window: t.claim_retry_window,
            claim_watch_enabled: t.claim_watch_enabled,
            assignment_settle_time: t.assignment_settle_time,
            release_batch: t.release_batch,
            drain_timeout: t.drain_timeout,
            move_retry_max: t.move_retry_max,
            take_timeout: t.take_timeout,
            router_hold_timeout: t.router_hold_timeout,
            tick_interval: Some(t.tick_interval),
            relist_interval: Some(t.relist_interval),
            stall_limit: Some(t.stall_limit),
            load_timeout: t.load_timeout,
            load_retry_min: t.load_retry_min,
            load_retry_max: t.load_retry_max,
            load_attempts: t.load_attempts,
        }
    }
}

impl TryFrom<Settings> for Timing {
    type Error = String;

    /// Whatever minimum the store had, it has been checked by whoever made the timing first.
    fn try_from(settings: Settings) -> Result<Self, String> {
        let told = |problems: Vec<SettingProblem>| {
            let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
            problems.join("; ")
        };
        settings.check(Duration::ZERO).map_err(told)
    }
}

impl Timing {
    fn problems(&self, min_ttl: Duration) -> Vec<SettingProblem> {
        let mut problems = Vec::new();
        let mut say = |wrong: bool, setting: &'static str, problem: String| {
            if wrong {
                problems.push(SettingProblem { setting, problem });
            }
        };
        let drift = self.ttl * self.clock_drift_max_permille / 1000;
        say(
            self.ttl < min_ttl,
            "ttl",
            format!(
                "{:?} is below this store's minimum of {min_ttl:?}",
                self.ttl
            ),
        );
        say(
            self.clock_drift_max_permille > 100,
            "clock_drift_max_permille",
            format!(
                "{} is above the maximum of 100 (10 %)",
                self.clock_drift_max_permille
            ),
        );
        say(
            self.renew_interval + self.request_timeout
                >= self.ttl.saturating_sub(self.lease_detach_margin),
            "renew_interval",
            format!(
                "renew_interval ({:?}) + request_timeout ({:?}) must be below ttl − lease_detach_margin ({:?}), or one slow \
                 response loses the lease; renew more often or raise the ttl",
                self.renew_interval,
                self.request_timeout,
                self.ttl.saturating_sub(self.lease_detach_margin)
            ),
        );
        say(
            self.lease_detach_margin <= drift + self.kill_grace,
            "lease_detach_margin",
            format!(
                "{:?} must be above clock drift × ttl ({drift:?}) + kill_grace ({:?}), or work may outlive the lease; raise \
                 the margin or lower kill_grace",
                self.lease_detach_margin, self.kill_grace
            ),
        );
        say(
            self.renew_retry_interval > self.ttl / 20,
            "renew_retry_interval",
            format!(
                "{:?} must be at most a twentieth of the ttl ({:?})",
                self.renew_retry_interval,
                self.ttl / 20
            ),
        );
        say(
            self.tick_interval < self.renew_interval,
            "tick_interval",
            format!(
                "{:?} must be at least renew_interval ({:?})",
                self.tick_interval, self.renew_interval
            ),
        );
        say(
            self.relist_interval < self.tick_interval,
            "relist_interval",
            format!(
                "{:?} must be at least tick_interval ({:?}), the interval at which it is checked",
                self.relist_interval, self.tick_interval
            ),
        );
        say(
            self.stall_limit < self.renew_interval * 2,
            "stall_limit",
            format!(
                "{:?} must be at least twice renew_interval ({:?})",
                self.stall_limit, self.renew_interval
            ),
        );
        say(
            self.load_retry_max < self.load_retry_min,
            "load_retry_max",
            format!(
                "{:?} must be at least load_retry_min ({:?})",
                self.load_retry_max, self.load_retry_min
            ),
        );
        for (setting, value) in [
            ("renew_interval", self.renew_interval),
            ("renew_retry_interval", self.renew_retry_interval),
            ("request_timeout", self.request_timeout),
            ("claim_retry_interval", self.claim_retry_interval),
            ("load_timeout", self.load_timeout),
            ("load_retry_min", self.load_retry_min),
        ] {
            say(value.is_zero(), setting, "must not be zero".to_owned());
        }
        say(
            self.release_batch == 0,
            "release_batch",
            "must be at least 1".to_owned(),
        );
        say(
            self.load_attempts == 0,
            "load_attempts",
            "must be at least 1".to_owned(),
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut Settings)) -> Vec<&'static str> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
            .check(Duration::from_millis(200))
            .err()
            .unwrap_or_default()
            .iter()
            .map(|p| p.setting)
            .collect()
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_defaults_fit_together() {
        assert_eq!(problems(|_| ()), Vec::<&str>::new());
    }

    #[test]
    fn every_broken_relation_is_named() {
        assert_eq!(problems(|s| s.ttl = MS(100)), ["ttl"]);
        assert_eq!(
            problems(|s| s.renew_interval = Some(MS(2000))),
            ["renew_interval", "stall_limit"]
        );
        assert_eq!(
            problems(|s| s.lease_detach_margin = Some(MS(100))),
            ["lease_detach_margin"]
        );
        assert_eq!(
            problems(|s| s.renew_retry_interval = Some(MS(1000))),
            ["renew_retry_interval"]
        );
        assert_eq!(
            problems(|s| s.tick_interval = Some(MS(10))),
            ["tick_interval"]
        );
        assert_eq!(problems(|s| s.stall_limit = Some(MS(10))), ["stall_limit"]);
        assert_eq!(problems(|s| s.load_retry_max = MS(1)), ["load_retry_max"]);
        assert_eq!(
            problems(|s| s.clock_drift_max_permille = 101),
            ["clock_drift_max_permille"]
        );
        assert_eq!(
            problems(|s| s.claim_retry_interval = MS(0)),
            ["claim_retry_interval"]
        );
        assert_eq!(problems(|s| s.release_batch = 0), ["release_batch"]);
        assert_eq!(problems(|s| s.load_attempts = 0), ["load_attempts"]);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let all = problems(|s| {
            s.ttl = MS(100);
            s.release_batch = 0;
        });
        assert_eq!(all, ["ttl", "release_batch"]);
    }
}
