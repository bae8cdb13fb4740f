//! Every counter of a queue, defined in one place.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a counter is.
#[derive(Debug)]
pub struct MetricDefinition {
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
        pub const ALL: &[MetricDefinition] =
            &[$(MetricDefinition { name: $name, kind: $kind, help: $help }),*];

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
    submitted "counter" "tenure_queue_submitted_total" "Tasks submitted.";
    duplicates "counter" "tenure_queue_duplicates_total" "Submissions of tasks whose idempotency key existed already.";
    claimed "counter" "tenure_queue_claimed_total" "Tasks claimed.";
    claims_lost "counter" "tenure_queue_claim_conflicts_total" "Attempts to claim a task that another worker claimed \
        first.";
    finished "counter" "tenure_queue_finished_total" "Tasks that this process finished.";
    failed "counter" "tenure_queue_failed_total" "Attempts that failed.";
    panicked "counter" "tenure_queue_panicked_total" "Attempts whose handler panicked.";
    timed_out "counter" "tenure_queue_timed_out_total" "Attempts that exceeded their timeout.";
    expired "counter" "tenure_queue_expired_claims_total" "Tasks of other workers that this worker released because \
        their claim had expired.";
    dead "counter" "tenure_queue_dead_total" "Tasks that became dead letters.";
    cancelled "counter" "tenure_queue_cancelled_total" "Tasks cancelled.";
    rescheduled "counter" "tenure_queue_rescheduled_total" "Tasks that their handler rescheduled.";
    given_back "counter" "tenure_queue_released_total" "Tasks released unfinished, for example when the worker stops.";
    extended "counter" "tenure_queue_claim_renewals_total" "Renewals of claims on running tasks.";
    taken_away "counter" "tenure_queue_claims_lost_total" "Claims on tasks that were lost while the handler ran.";
    polls "counter" "tenure_queue_polls_total" "Polls of a shard of the queue for due tasks.";
    idle_polls "counter" "tenure_queue_idle_polls_total" "Polls of a shard of the queue that found no due task.";
    corrupt "counter" "tenure_queue_unreadable_objects_total" "Records of the queue found that cannot be read.";
    strays "counter" "tenure_queue_stray_entries_total" "Index entries without a matching task that were removed or corrected.";
    repaired "counter" "tenure_queue_repaired_total" "Tasks without an index entry that were indexed again.";
    purged "counter" "tenure_queue_purged_total" "Tasks removed after their retention time.";
    ticks "counter" "tenure_queue_scheduled_total" "Tasks submitted by schedules.";
    trouble "counter" "tenure_queue_store_failures_total" "Requests to the store that failed.";
    running "gauge" "tenure_queue_running" "Tasks that this process is executing now.";
    shards "gauge" "tenure_queue_shards" "Shards of the queue that this process owns now.";
}

impl Metrics {
    /// All of them in Prometheus' text format, with the queue as label.
    pub fn render(&self, queue: &str) -> String {
        let queue = queue.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = String::new();
        for MetricDefinition { name, kind, help } in ALL {
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
