//! Every counter of a queue, defined in one place.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a counter is.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// What it says.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($field:ident $kind:literal $name:literal $help:literal;)*) => {
        /// Every metric of a queue.
        pub const ALL: &[Definition] =
            &[$(Definition { name: $name, kind: $kind, help: $help }),*];

        /// What this process has done for a queue.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(pub(crate) $field: Counter,)*
        }

        impl Metrics {
            /// The value of a metric, by its name.
            pub fn value(&self, name: &str) -> Option<u64> {
                match name {
                    $($name => Some(self.$field.get()),)*
                    _ => None,
                }
            }
        }
    };
}

metrics! {
    submitted "counter" "tenure_queue_submitted_total" "Tasks that were created.";
    duplicates "counter" "tenure_queue_duplicates_total" "Submissions whose idempotency key was taken already.";
    claimed "counter" "tenure_queue_claimed_total" "Tasks that were claimed.";
    claims_lost "counter" "tenure_queue_claims_lost_total" "Claims that somebody else was quicker with.";
    finished "counter" "tenure_queue_finished_total" "Tasks that were finished.";
    failed "counter" "tenure_queue_failed_total" "Attempts that failed.";
    panicked "counter" "tenure_queue_panicked_total" "Attempts whose handler panicked.";
    timed_out "counter" "tenure_queue_timed_out_total" "Attempts that took too long.";
    expired "counter" "tenure_queue_expired_total" "Claims of others that ran out and were taken back.";
    dead "counter" "tenure_queue_dead_total" "Tasks that became dead letters.";
    cancelled "counter" "tenure_queue_cancelled_total" "Tasks that were cancelled.";
    rescheduled "counter" "tenure_queue_rescheduled_total" "Tasks that their handler put off.";
    given_back "counter" "tenure_queue_given_back_total" "Tasks given back unfinished, as when the worker stops.";
    extended "counter" "tenure_queue_extended_total" "Claims that were extended.";
    taken_away "counter" "tenure_queue_taken_away_total" "Claims that were lost while the handler ran.";
    polls "counter" "tenure_queue_polls_total" "Looks into a shard.";
    idle_polls "counter" "tenure_queue_idle_polls_total" "Looks into a shard that found nothing due.";
    corrupt "counter" "tenure_queue_corrupt_total" "Objects found that cannot be read.";
    strays "counter" "tenure_queue_strays_total" "Entries of indexes that led nowhere, and were removed or put right.";
    repaired "counter" "tenure_queue_repaired_total" "Tasks found that no index led to.";
    purged "counter" "tenure_queue_purged_total" "Tasks removed after their time.";
    ticks "counter" "tenure_queue_ticks_total" "Tasks submitted by schedules.";
    trouble "counter" "tenure_queue_store_failures_total" "Calls to the store that failed.";
    running "gauge" "tenure_queue_running" "Tasks that this process works on now.";
    shards "gauge" "tenure_queue_shards" "Shards that this process owns now.";
}

impl Metrics {
    /// All of them in Prometheus' text format, with the queue as label.
    pub fn render(&self, queue: &str) -> String {
        let queue = queue.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = String::new();
        for Definition { name, kind, help } in ALL {
            let value = self.value(name).unwrap_or(0);
            let _ = writeln!(text, "# HELP {name} {help}");
            let _ = writeln!(text, "# TYPE {name} {kind}");
            let _ = writeln!(text, "{name}{{queue=\"{queue}\"}} {value}");
        }
        text
    }
}

/// A number that many may count up.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// One fewer. For gauges, which several workers may share.
    pub(crate) fn less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_rendered_under_its_name() {
        let metrics = Metrics::default();
        metrics.claimed.add(3);
        metrics.running.add(3);
        metrics.running.less();
        let text = metrics.render("jo\"bs");
        assert!(
            text.contains("tenure_queue_claimed_total{queue=\"jo\\\"bs\"} 3\n"),
            "{text}"
        );
        assert!(
            text.contains("# TYPE tenure_queue_running gauge\n"),
            "{text}"
        );
        assert_eq!(metrics.value("tenure_queue_running"), Some(2));
        assert_eq!(metrics.value("nothing"), None);
        assert_eq!(text.lines().count(), 3 * ALL.len());
    }
}
