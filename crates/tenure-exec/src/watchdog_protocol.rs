//! Messages between `exec` and its watchdog: one JSON object per line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::Time;

/// Times at which a child is asked to stop, killed, and succeeded by another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The child is asked to stop.
    pub closes_at: Time,
    /// The child is killed.
    pub kill_at: Time,
    /// Another node may own the shard.
    pub deadline: Time,
}

impl Limits {
    /// The limits under a lease. The settings see to it that `kill_grace` ends before the deadline; what is left between
    /// them is for dying.
    pub fn of_lease(closes_at: Time, deadline: Time, kill_grace: Duration) -> Self {
        Self {
            closes_at,
            kill_at: (closes_at + kill_grace).min(deadline),
            deadline,
        }
    }

    /// Time between SIGTERM and SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        self.kill_at.since(self.closes_at)
    }

    /// Time after which a watchdog that has not reported the child dead counts as unable to kill.
    pub(crate) fn last_resort(&self) -> Time {
        self.kill_at + self.deadline.since(self.kill_at) / 2
    }
}

/// A child to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Number of the child, never used twice.
    pub id: u64,
    /// Prefix of its output, if output is prefixed.
    pub label: String,
    /// Environment variables in addition to those of this process.
    pub env: BTreeMap<String, String>,
    /// Times at which the child is asked to stop and killed.
    pub limits: Limits,
}

/// Command from `exec` to the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WatchdogCommand {
    /// Start a child.
    Start(Start),
    /// The lease was renewed.
    Lease {
        /// Which child.
        id: u64,
        /// Its new limits.
        limits: Limits,
    },
    /// Ask a child to stop, and kill it at `kill_at` or at the end of its lease, whichever is earlier.
    Stop {
        /// Which child.
        id: u64,
        /// When patience ends; `Time::NEVER` leaves it to the lease.
        kill_at: Time,
    },
}

/// Report from the watchdog to `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WatchdogReport {
    /// The watchdog has its own process session and accepts commands.
    Ready,
    /// A child is dead and reaped, and so is everything that it forked.
    Ended {
        /// Number of the child.
        id: u64,
        /// Exit status of the child.
        how: ChildEnd,
    },
}

/// End of a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildEnd {
    /// By itself, with this exit code (128 + the signal, if it died of one).
    Exited(i32),
    /// The watchdog ended it, because it was asked to or because the lease ran out.
    Stopped,
    /// It never ran, for this reason.
    NotStarted(String),
    /// Its watchdog was lost, and the child with it.
    WatchdogLost,
}

impl std::fmt::Display for ChildEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) if *code > 128 => write!(f, "was killed by signal {}", code - 128),
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Stopped => f.write_str("was stopped"),
            Self::NotStarted(reason) => write!(f, "could not be started: {reason}"),
            Self::WatchdogLost => f.write_str("was killed because its watchdog exited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_killed_a_grace_after_the_gates_close_and_never_after_the_deadline() {
        let limits = Limits::of_lease(Time(1000), Time(2000), Duration::from_nanos(500));
        assert_eq!(limits.kill_at, Time(1500));
        assert_eq!(limits.last_resort(), Time(1750));
        assert_eq!(limits.grace(), Duration::from_nanos(500));
        let limits = Limits::of_lease(Time(1000), Time(2000), Duration::from_secs(1));
        assert_eq!(limits.kill_at, Time(2000));
    }

    #[test]
    fn orders_and_reports_survive_the_wire() {
        let limits = Limits::of_lease(Time(1), Time(3), Duration::from_nanos(1));
        let start = Start {
            id: 7,
            label: "orders/1".to_owned(),
            env: BTreeMap::from([("A".to_owned(), "line\nbreak".to_owned())]),
            limits,
        };
        for order in [
            WatchdogCommand::Start(start),
            WatchdogCommand::Lease { id: 7, limits },
            WatchdogCommand::Stop {
                id: 7,
                kill_at: Time::NEVER,
            },
        ] {
            let line = serde_json::to_string(&order).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(
                serde_json::from_str::<WatchdogCommand>(&line).unwrap(),
                order
            );
        }
    }
}
