//! Names and numbers of the queue, each a type of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::store_time::StoreTime;

/// The longest name of a queue, task, schedule or worker, in bytes.
pub const NAME_MAX: usize = 200;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {name:?} {reason}")]
pub struct BadName {
    what: &'static str,
    name: String,
    reason: String,
}

fn check(what: &'static str, name: &str) -> Result<(), BadName> {
    let reason = if name.is_empty() {
        "is empty; give it a name".to_owned()
    } else if name.len() > NAME_MAX {
        format!("is longer than {NAME_MAX} bytes; shorten it")
    } else if name.chars().any(char::is_control) {
        "has control characters; leave them out".to_owned()
    } else {
        return Ok(());
    };
    let name = name.chars().take(80).collect();
    Err(BadName { what, name, reason })
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Takes a text of up to 200 bytes without control characters.
            pub fn new(name: impl Into<String>) -> Result<Self, BadName> {
                let name = name.into();
                check($what, &name)?;
                Ok(Self(name))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(name: String) -> Result<Self, BadName> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(name: &str) -> Result<Self, BadName> {
                Self::new(name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names! {
    /// The name of a queue within its cluster.
    QueueName "queue";
    /// The name of a task within its queue.
    TaskId "task";
    /// The name of a recurring schedule within its queue.
    ScheduleName "schedule";
    /// Who works on tasks: a name of a process, for people to read.
    WorkerName "worker";
}

impl TaskId {
    /// The id of a task that nobody named: the time, so that ids sort by it, and random bits.
    pub fn random(now: StoreTime, bits: u64) -> Self {
        Self(format!("t{:011x}-{bits:016x}", now.as_millis()))
    }

    /// The id of the task with this idempotency key: the key says it all, so that no second record is needed.
    pub fn of_key(key: &str) -> Result<Self, BadName> {
        check("idempotency key", key)?;
        Self::new(format!("k-{key}"))
    }

    /// The id of the task of one tick of a schedule.
    pub fn of_tick(schedule: &ScheduleName, tick: StoreTime) -> Result<Self, BadName> {
        Self::new(format!("s-{schedule}-{}", tick.stamp()))
    }

    /// The schedule and the tick that this is the task of, if it is one.
    pub fn tick(&self) -> Option<(ScheduleName, StoreTime)> {
        let (schedule, stamp) = self.0.strip_prefix("s-")?.rsplit_once('-')?;
        let tick = StoreTime::from_stamp(stamp)?;
        Some((ScheduleName::new(schedule).ok()?, tick))
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                let number = u64::from_str_radix(&text, 16);
                number.map(Self).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

numbers! {
    /// The right to work on a task once: drawn at random for every claim, and never used again.
    ClaimId;
    /// Which write it was: drawn at random for every change, so that a writer whose answer was lost knows its own value again.
    Nonce;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_say_what_is_wrong() {
        for (name, reason) in [
            ("", "empty"),
            ("a\nb", "control"),
            (&*"x".repeat(201), "longer than 200"),
        ] {
            let e = QueueName::new(name).unwrap_err().to_string();
            assert!(e.starts_with("queue ") && e.contains(reason), "{e}");
            assert!(e.len() < 200, "{e}");
        }
        assert!(QueueName::new("jobs/eu ä").is_ok());
    }

    #[test]
    fn ids_of_keys_and_ticks_say_what_they_are_of() {
        assert_eq!(TaskId::of_key("order 7").unwrap().as_str(), "k-order 7");
        let name = ScheduleName::new("nightly").unwrap();
        let tick = "2026-11-16T02:00:00Z".parse().unwrap();
        let id = TaskId::of_tick(&name, tick).unwrap();
        assert_eq!(id.as_str(), "s-nightly-20261116T020000.000Z");
        assert_eq!(id.tick(), Some((name, tick)));
        let dashed = ScheduleName::new("a-b-").unwrap();
        let id = TaskId::of_tick(&dashed, tick).unwrap();
        assert_eq!(id.tick(), Some((dashed, tick)));
        for other in ["k-s-a-20261116T020000.000Z", "s-a", "s-a-soon"] {
            assert_eq!(TaskId::new(other).unwrap().tick(), None, "{other}");
        }
        let early = TaskId::random(StoreTime::from_millis(5), 9);
        assert!(early < TaskId::random(StoreTime::from_millis(16), 1));
    }

    #[test]
    fn numbers_are_sixteen_digits_and_read_back() {
        let text = serde_json::to_string(&ClaimId(255)).unwrap();
        assert_eq!(text, "\"00000000000000ff\"");
        assert_eq!(
            serde_json::from_str::<ClaimId>(&text).unwrap(),
            ClaimId(255)
        );
        assert!(serde_json::from_str::<ClaimId>("\"claim\"").is_err());
    }
}
