//! How a worker comes by shards: the section `[worker.ownership]`, checked as a whole.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::Settings;

use crate::error::QueueError;

/// The variable that switches leasing on (`1`, `true`) or off (`0`, `false`).
pub const ENV_ENABLED: &str = "TENURE_WORKER_OWNERSHIP";
/// The variable for `shards_per_worker`.
pub const ENV_SHARDS: &str = "TENURE_WORKER_OWNERSHIP_SHARDS_PER_WORKER";
/// The variable for `ttl_secs`.
pub const ENV_TTL: &str = "TENURE_WORKER_OWNERSHIP_TTL_SECS";
/// The variable for `renew_interval_secs`.
pub const ENV_RENEW: &str = "TENURE_WORKER_OWNERSHIP_RENEW_SECS";

/// How a worker comes by shards. What is `None` is as the store suggests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnershipSettings {
    /// Whether the worker owns shards and polls them alone. Otherwise it looks into one shard after the other, at random,
    /// whoever else does.
    pub enabled: bool,
    /// Into how many shards it looks at most in one round. A worker that owns more takes them in turns: what it owns
    /// follows from its fair share, so that every shard is somebody's.
    pub shards_per_worker: Option<u32>,
    /// How long the worker's lease is good after a renewal, in seconds.
    pub ttl_secs: Option<f64>,
    /// How often it is renewed, in seconds.
    pub renew_interval_secs: Option<f64>,
}

impl Default for OwnershipSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            shards_per_worker: None,
            ttl_secs: None,
            renew_interval_secs: None,
        }
    }
}

/// [`OwnershipSettings`] after all of it was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedOwnership {
    pub(crate) enabled: bool,
    pub(crate) per_round: usize,
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew: Option<Duration>,
}

/// Into how many shards a worker looks in one round unless it is told otherwise.
const PER_ROUND: u32 = 16;

impl OwnershipSettings {
    /// No leasing: the worker sweeps.
    pub fn off() -> Self {
        Self {
            enabled: false,
            ..Self::default()
        }
    }

    /// The same with what the environment says; it goes before what stands in a file. `get` reads a variable.
    pub fn with_env(mut self, get: impl Fn(&str) -> Option<String>) -> Result<Self, QueueError> {
        let mut problems = Vec::new();
        let mut read = |name: &str, take: &mut dyn FnMut(&str) -> bool, wanted: &str| {
            if let Some(text) = get(name)
                && !take(text.trim())
            {
                problems.push(format!("{name} is {text:?}; it must be {wanted}"));
            }
        };
        let enabled = &mut self.enabled;
        let mut switch = |text: &str| match text {
            "1" | "true" | "on" => set(enabled, true),
            "0" | "false" | "off" => set(enabled, false),
            _ => false,
        };
        read(ENV_ENABLED, &mut switch, "1 or 0");
        let shards = &mut self.shards_per_worker;
        let mut number = |text: &str| text.parse().is_ok_and(|n| set(shards, Some(n)));
        read(ENV_SHARDS, &mut number, "a whole number");
        for (name, field) in [
            (ENV_TTL, &mut self.ttl_secs),
            (ENV_RENEW, &mut self.renew_interval_secs),
        ] {
            let mut seconds = |text: &str| text.parse().is_ok_and(|n| set(field, Some(n)));
            read(name, &mut seconds, "a number of seconds");
        }
        match problems.is_empty() {
            true => Ok(self),
            false => Err(QueueError::Invalid(problems)),
        }
    }

    /// Checks all of it against the store's shortest ttl, and reports every problem at once.
    pub fn check(
        &self,
        default_ttl: Duration,
        min_ttl: Duration,
    ) -> Result<CheckedOwnership, QueueError> {
        let mut problems = Vec::new();
        if self.shards_per_worker == Some(0) {
            problems.push("shards_per_worker is 0; it must be at least 1".to_owned());
        }
        let mut seconds =
            |name: &str, value: Option<f64>| match value.map(Duration::try_from_secs_f64) {
                None => None,
                Some(Ok(duration)) if !duration.is_zero() => Some(duration),
                Some(_) => {
                    problems.push(format!("{name} is {value:?}; it must be more than zero"));
                    None
                }
            };
        let ttl = seconds("ttl_secs", self.ttl_secs);
        let renew = seconds("renew_interval_secs", self.renew_interval_secs);
        let leasing = CheckedOwnership {
            enabled: self.enabled,
            per_round: self.shards_per_worker.unwrap_or(PER_ROUND) as usize,
            ttl,
            renew,
        };
        if self.enabled && problems.is_empty() {
            let settings = leasing.settings(default_ttl);
            let found = settings.check(min_ttl).err().unwrap_or_default();
            problems.extend(found.iter().map(|p| match p.setting {
                "ttl" => format!("ttl_secs: {}", p.problem),
                "renew_interval" => format!("renew_interval_secs: {}", p.problem),
                _ => p.to_string(),
            }));
        }
        match problems.is_empty() {
            true => Ok(leasing),
            false => Err(QueueError::Invalid(problems)),
        }
    }
}

fn set<T>(field: &mut T, value: T) -> bool {
    *field = value;
    true
}

impl CheckedOwnership {
    /// The settings of the worker's node.
    pub(crate) fn settings(&self, default_ttl: Duration) -> Settings {
        Settings {
            ttl: self.ttl.unwrap_or(default_ttl),
            renew_interval: self.renew,
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);
    const MIN: Duration = Duration::from_secs(1);

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = pairs.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn every_knob_has_an_effect_from_the_environment_too() {
        let none = OwnershipSettings::default().check(TTL, MIN).unwrap();
        assert_eq!((none.enabled, none.per_round), (true, 16));
        assert_eq!(none.settings(TTL).ttl, TTL);
        let said = OwnershipSettings::default().with_env(env(&[
            (ENV_ENABLED, "1"),
            (ENV_SHARDS, "4"),
            (ENV_TTL, "30"),
            (ENV_RENEW, "2.5"),
        ]));
        let leasing = said.unwrap().check(TTL, MIN).unwrap();
        assert_eq!(leasing.per_round, 4);
        let settings = leasing.settings(TTL);
        assert_eq!(settings.ttl, Duration::from_secs(30));
        assert_eq!(settings.renew_interval, Some(Duration::from_millis(2500)));
        let off = OwnershipSettings::default().with_env(env(&[(ENV_ENABLED, "0")]));
        assert!(!off.unwrap().check(TTL, MIN).unwrap().enabled);
    }

    #[test]
    fn the_environment_goes_before_the_file() {
        let file = OwnershipSettings {
            shards_per_worker: Some(9),
            ttl_secs: Some(12.0),
            ..OwnershipSettings::off()
        };
        let both = file.with_env(env(&[(ENV_SHARDS, "3")])).unwrap();
        assert!(!both.enabled);
        assert_eq!(
            (both.shards_per_worker, both.ttl_secs),
            (Some(3), Some(12.0))
        );
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let text = OwnershipSettings::default().with_env(env(&[
            (ENV_ENABLED, "maybe"),
            (ENV_SHARDS, "-1"),
            (ENV_TTL, "long"),
        ]));
        let text = text.unwrap_err().to_string();
        for name in [ENV_ENABLED, ENV_SHARDS, ENV_TTL] {
            assert!(text.contains(name), "{text}");
        }
        let bad = OwnershipSettings {
            enabled: true,
            shards_per_worker: Some(0),
            ttl_secs: Some(-1.0),
            renew_interval_secs: Some(f64::NAN),
        };
        let text = bad.check(TTL, MIN).unwrap_err().to_string();
        for name in ["shards_per_worker", "ttl_secs", "renew_interval_secs"] {
            assert!(text.contains(name), "{text}");
        }
        let slow = OwnershipSettings {
            ttl_secs: Some(6.0),
            renew_interval_secs: Some(7.0),
            ..OwnershipSettings::default()
        };
        let text = slow.check(TTL, MIN).unwrap_err().to_string();
        assert!(text.contains("renew"), "{text}");
        // Who sweeps has no lease to get wrong.
        let slow = OwnershipSettings {
            enabled: false,
            ..slow
        };
        assert!(slow.check(TTL, MIN).is_ok());
    }
}
