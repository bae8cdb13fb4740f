//! Every metric of a node, defined in one place and fed from [`NodeEvent`]s and from the driver alone.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::ids::ShardId;
use tenure_core::lease::LeasePhase;
use tenure_core::machine::{LeaseState, Reply, StoreFailure};
use tenure_core::members::UnservedReason;
use tenure_core::node::ShardWaitStats;
use tenure_core::record::NodeMode;
use tenure_core::telemetry::{NodeEvent, ShardEvent, ShardStep};
use tenure_core::time::Time;

use crate::clock::Clock;
use crate::enter::RejectReason;

/// What a metric is.
#[derive(Debug)]
pub struct MetricDefinition {
    /// Its name.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Whether it has labels; one without starts at zero.
    labelled: bool,
}

macro_rules! metrics {
    ($($id:ident $kind:literal $name:literal $labelled:literal $help:literal;)*) => {
        $(const $id: MetricDefinition = MetricDefinition { name: $name, kind: $kind, help: $help, labelled: $labelled };)*
        /// Every metric.
        pub const ALL: &[MetricDefinition] = &[$($id),*];
    };
}

metrics! {
    DETACHED "gauge" "tenure_detached" false "1 while the lease is detached or recovering; the node serves no shards.";
    SUCCESSES "counter" "tenure_lease_renewals_total" false "Successful renewals of this node's lease.";
    FAILURES "counter" "tenure_lease_renewal_failures_total" false "Failed renewals of this node's lease.";
    STREAK "gauge" "tenure_lease_renewal_failure_streak" false "Consecutive failed lease renewals; 0 after a success.";
    TOOK "gauge" "tenure_lease_renewal_duration_seconds" false "Duration of the last successful lease renewal.";
    LAG "gauge" "tenure_lease_remaining_seconds" false "Time until the lease deadline; negative after it.";
    LEASE_CHANGES "counter" "tenure_lease_transitions_total" true "Phase changes of this node's lease (attached, degraded, detached, recovering).";
    SESSIONS_LOST "counter" "tenure_sessions_lost_total" true "Sessions of this node that ended while the node was running, by reason.";
    SESSIONS_ENDED "counter" "tenure_sessions_ended_total" true "Sessions of other nodes that this node ended, by reason.";
    RETRIES "counter" "tenure_claim_retries_total" false "Rounds of retries to claim assigned shards that another node owns.";
    EXHAUSTED "counter" "tenure_claim_retry_windows_exhausted_total" false "Times that claim_retry_window ended while another node still owned assigned shards.";
    SHARDS "gauge" "tenure_shards" true "Shards on this node, by state.";
    TRANSITIONS "counter" "tenure_shard_transitions_total" true "State changes of this node's shards, by step and reason.";
    LOAD_FAILURES "counter" "tenure_load_failures_total" false "Failed attempts to load a shard.";
    REFUSED "counter" "tenure_rejected_requests_total" true "Requests that this node rejected, by reason.";
    STORE "counter" "tenure_store_requests_total" true "Requests of this node to the store, by kind and outcome.";
    WATCH_GAPS "counter" "tenure_watch_gaps_total" false "Times that the watch of the store ended and was started again.";
    WOULD "counter" "tenure_shadow_transitions_total" true "State changes of shards that this node would have made without shadow mode.";
    ACTIVE "gauge" "tenure_active" false "1 while the node's mode is active.";
    DAMAGED "counter" "tenure_unreadable_records_total" false "Records found that are corrupt or of a newer format.";
    MISSING "counter" "tenure_missing_records_total" false "Times that a required record was missing from the store.";
    ESTRANGED "counter" "tenure_store_replacements_total" false "Times that the store was replaced or restored from a backup.";
    WEDGED "counter" "tenure_runtime_blocked_total" false "Lease renewals skipped because the application's async runtime was blocked.";
    OVERSLEPT "counter" "tenure_clock_jumps_total" false "Times that this process was not scheduled for longer than renew_interval.";
    OVERDUE "counter" "tenure_overdue_cancellations_total" false "Shards whose cancelled work did not stop in time.";
    UNCLAIMED "gauge" "tenure_unowned_shards" false "Shards of this node's keyspaces without an owner.";
    UNCLAIMED_AGE "gauge" "tenure_unowned_age_seconds" false "Longest time that a shard of this node's keyspaces has had no owner.";
    UNSERVED "gauge" "tenure_unserved_shards" true "Shards of the cluster that no node has served for longer than three ttl, by reason.";
    ELSEWHERE "gauge" "tenure_owned_elsewhere_shards" false "Shards assigned to this node that another live node owns.";
    ELSEWHERE_AGE "gauge" "tenure_owned_elsewhere_age_seconds" false "Longest time that this node has waited for an assigned shard that another live node owns.";
    SWEPT "counter" "tenure_tombstones_removed_total" false "Unreferenced tombstones that this node removed.";
    LEADER "gauge" "tenure_leader" false "1 while this node is the leader.";
    TERM "gauge" "tenure_leader_term" false "Last term in which this node was the leader.";
    PLANS "counter" "tenure_plans_total" false "Plans with changes that this node published as leader.";
    PLAN_VERSION "gauge" "tenure_plan_version" false "Sequence number of the last plan that this node published.";
    PLANNED "counter" "tenure_plan_changes_total" true "Changes of shard assignments in published plans, by kind.";
    PLAN_PUT_OFF "gauge" "tenure_plan_deferred_changes" false "Changes of shard assignments that the last plan deferred.";
    PLAN_PROBLEMS "counter" "tenure_plan_problems_total" false "Constraints that the planner could not fully satisfy.";
    STALE_SWEPT "counter" "tenure_stale_assignments_removed_total" false "Assignments to departed nodes that this node removed as leader.";
    SEAL_FAILURES "counter" "tenure_seal_failures_total" false "Moves aborted because the application's handler failed to seal the shard.";
    HELD "gauge" "tenure_router_held_requests" false "Requests that the router holds now.";
    HELD_TOTAL "counter" "tenure_router_held_requests_total" false "Requests that the router has held.";
    HOLD_SECONDS "counter" "tenure_router_hold_seconds_total" false "Total time that requests were held by the router.";
    FLUSHES "counter" "tenure_router_flushes_total" false "Times that the router flushed the held requests of a shard.";
    HOPS "counter" "tenure_router_extra_hops_total" false "Requests sent to another node because the first one rejected them.";
    OVERFLOWS "counter" "tenure_router_overflows_total" false "Requests rejected because the hold queue was full.";
    EXPIRED "counter" "tenure_router_expired_total" false "Requests failed because they were held for too long.";
    PUBLISHED "counter" "tenure_router_hold_acknowledgements_total" false "Acknowledgements to the owner of a moving shard that the router holds its requests.";
    SWEEP_FAILURES "counter" "tenure_gc_failures_total" false "Failed removals of stale assignments; each is retried.";
}

/// How a node stands, as probes ask for it.
const STARTING: u8 = 0;
const STARTED: u8 = 1;
const LEAVING: u8 = 2;
const OVER: u8 = 3;

/// The metrics of one node.
#[derive(Debug)]
pub struct Metrics {
    clock: Clock,
    deadline: AtomicU64,
    health: AtomicU8,
    values: Mutex<Values>,
}

#[derive(Debug, Default)]
struct Values {
    series: BTreeMap<(&'static str, String), f64>,
    shards: HashMap<ShardId, &'static str>,
}

impl Metrics {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            deadline: AtomicU64::new(0),
            health: AtomicU8::new(STARTING),
            values: Mutex::default(),
        }
    }

    /// All metrics in the text format of Prometheus.
    pub fn render(&self) -> String {
        let deadline = self.deadline.load(Ordering::Acquire);
        if deadline > 0 {
            let now = self.clock.now().0;
            self.set(&LAG, "", (deadline as f64 - now as f64) / 1e9);
        }
        let values = self.lock();
        let mut text = String::new();
        for metric in ALL {
            let MetricDefinition {
                name, kind, help, ..
            } = metric;
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            let from = (*name, String::new());
            let mut any = false;
            for ((_, labels), value) in values.series.range(from..).take_while(|s| s.0.0 == *name) {
                any = true;
                let _ = writeln!(text, "{name}{labels} {value}");
            }
            if !any && !metric.labelled {
                let _ = writeln!(text, "{name} 0");
            }
        }
        text
    }

    /// The value of one series, as in `("tenure_shards", "{state=\"serving\"}")`; zero if it never moved.
    pub fn value(&self, name: &'static str, labels: &str) -> f64 {
        let key = (name, labels.to_owned());
        self.lock().series.get(&key).copied().unwrap_or_default()
    }

    pub(crate) fn deadline(&self, deadline: Time) {
        self.deadline.store(deadline.0, Ordering::Release);
    }

    pub(crate) fn waiting(&self, waiting: &ShardWaitStats) {
        self.set(&UNCLAIMED, "", waiting.unclaimed as f64);
        self.set(&UNCLAIMED_AGE, "", waiting.unclaimed_for.as_secs_f64());
        self.set(&ELSEWHERE, "", waiting.held_elsewhere as f64);
        self.set(&ELSEWHERE_AGE, "", waiting.held_elsewhere_for.as_secs_f64());
        for reason in UnservedReason::ALL {
            let shards = waiting.unserved.get(&reason).copied().unwrap_or(0);
            let labels = labels(&[("reason", reason.as_str())]);
            self.set(&UNSERVED, &labels, shards as f64);
        }
    }

    pub(crate) fn refused(&self, reason: RejectReason) {
        self.add(&REFUSED, &labels(&[("reason", reason.as_str())]));
    }

    pub(crate) fn held(&self) {
        self.add(&HELD, "");
        self.add(&HELD_TOTAL, "");
    }

    pub(crate) fn released(&self, after: Duration) {
        self.add_n(&HELD, "", -1.0);
        self.add_n(&HOLD_SECONDS, "", after.as_secs_f64());
    }

    pub(crate) fn flushed(&self) {
        self.add(&FLUSHES, "");
    }

    pub(crate) fn hopped(&self) {
        self.add(&HOPS, "");
    }

    pub(crate) fn overflowed(&self) {
        self.add(&OVERFLOWS, "");
    }

    pub(crate) fn expired(&self) {
        self.add(&EXPIRED, "");
    }

    pub(crate) fn published(&self) {
        self.add(&PUBLISHED, "");
    }

    fn mode(&self, mode: &NodeMode) {
        let active = *mode == NodeMode::Active;
        self.set(&ACTIVE, "", f64::from(u8::from(active)));
    }

    /// The node is on its way out: it is not ready any more.
    pub(crate) fn leaving(&self) {
        self.health.store(LEAVING, Ordering::Release);
    }

    /// The node has ended: there is nothing left that could come back.
    pub(crate) fn over(&self) {
        self.health.store(OVER, Ordering::Release);
    }

    /// Whether the process is worth keeping: everything but a node that has ended can come back by itself.
    pub fn is_alive(&self) -> bool {
        self.health.load(Ordering::Acquire) != OVER
    }

    /// Whether the lease is over by the clock, whatever anybody has noticed.
    fn is_past(&self) -> bool {
        self.clock.now().0 >= self.deadline.load(Ordering::Acquire)
    }

    /// Whether requests can be answered here, or told where to go: `Err` says why not.
    ///
    /// A node that is detached is alive and not ready. One that is drained is ready: it knows who owns what.
    pub fn is_ready(&self) -> Result<(), &'static str> {
        match self.health.load(Ordering::Acquire) {
            STARTED if self.value(DETACHED.name, "") > 0.0 || self.is_past() => Err("detached"),
            STARTED => Ok(()),
            LEAVING => Err("stopping"),
            OVER => Err("stopped"),
            _ => Err("starting"),
        }
    }

    pub(crate) fn watch_gap(&self) {
        self.add(&WATCH_GAPS, "");
    }

    pub(crate) fn store_request(&self, kind: &'static str, reply: &Reply) {
        let outcome = match reply {
            Reply::Got(_) | Reply::Listed(_) | Reply::Revision(_) | Reply::Lease(_) => "ok",
            Reply::Won(_) | Reply::LeaseCreated(_) | Reply::KeptAlive(LeaseState::Alive(_)) => {
                "won"
            }
            Reply::KeptAlive(LeaseState::Unattached | LeaseState::Gone) => "lost",
            Reply::Lost => "lost",
            Reply::Failed(StoreFailure::Unavailable(_)) => "unavailable",
            Reply::Failed(StoreFailure::Unknown(_)) => "unknown",
            Reply::Failed(StoreFailure::Denied(_)) => "denied",
        };
        self.add(&STORE, &labels(&[("kind", kind), ("outcome", outcome)]));
    }

    pub(crate) fn note(&self, note: &NodeEvent) {
        match note {
            NodeEvent::Shard(transition) => self.transition(transition),
            NodeEvent::Lease { from, to } => {
                let detached = matches!(to, LeasePhase::Detached | LeasePhase::Recovering);
                self.set(&DETACHED, "", f64::from(u8::from(detached)));
                let change = [("from", from.as_str()), ("to", to.as_str())];
                self.add(&LEASE_CHANGES, &labels(&change));
            }
            NodeEvent::Renewed { took, .. } => {
                self.add(&SUCCESSES, "");
                self.set(&STREAK, "", 0.0);
                self.set(&TOOK, "", took.as_secs_f64());
            }
            NodeEvent::RenewalFailed { streak, .. } => {
                self.add(&FAILURES, "");
                self.set(&STREAK, "", f64::from(*streak));
            }
            NodeEvent::SessionLost { reason, .. } => {
                self.set(&DETACHED, "", 1.0);
                self.add(&SESSIONS_LOST, &labels(&[("reason", reason.as_str())]));
            }
            NodeEvent::SessionEnded { reason, .. } => {
                self.add(&SESSIONS_ENDED, &labels(&[("reason", &reason.to_string())]));
            }
            NodeEvent::WouldDo { step, reason, .. } => {
                let would = [("step", step.as_str()), ("reason", reason.as_str())];
                self.add(&WOULD, &labels(&would));
            }
            NodeEvent::ClaimRetry { .. } => self.add(&RETRIES, ""),
            NodeEvent::ClaimRetryExhausted { .. } => self.add(&EXHAUSTED, ""),
            NodeEvent::LoadFailed { .. } => self.add(&LOAD_FAILURES, ""),
            NodeEvent::RecordUnreadable { .. } => self.add(&DAMAGED, ""),
            NodeEvent::RecordMissing { .. } => self.add(&MISSING, ""),
            NodeEvent::StoreReplaced { .. } => self.add(&ESTRANGED, ""),
            NodeEvent::RuntimeBlocked { .. } => self.add(&WEDGED, ""),
            NodeEvent::LeadershipAcquired { term } => {
                self.set(&LEADER, "", 1.0);
                self.set(&TERM, "", *term as f64);
            }
            NodeEvent::LeadershipLost { .. } => self.set(&LEADER, "", 0.0),
            NodeEvent::Planned {
                plan,
                assigned,
                moved,
                aborted,
                deferred,
                ..
            } => {
                self.add(&PLANS, "");
                self.set(&PLAN_VERSION, "", plan.seq as f64);
                self.set(
                    &PLAN_PUT_OFF,
                    "",
                    deferred.as_ref().map_or(0.0, |(n, _)| *n as f64),
                );
                for (kind, n) in [
                    ("assigned", *assigned),
                    ("moved", *moved),
                    ("aborted", *aborted),
                ] {
                    self.add_n(&PLANNED, &labels(&[("kind", kind)]), n as f64);
                }
            }
            NodeEvent::PlanProblem { .. } => self.add(&PLAN_PROBLEMS, ""),
            NodeEvent::StaleAssignmentsRemoved { keys, .. } => {
                self.add_n(&STALE_SWEPT, "", keys.len() as f64);
            }
            NodeEvent::SealFailed { .. } => self.add(&SEAL_FAILURES, ""),
            NodeEvent::GcFailed { .. } => self.add(&SWEEP_FAILURES, ""),
            NodeEvent::ClockJump { .. } => self.add(&OVERSLEPT, ""),
            NodeEvent::TombstoneRemoved { .. } => self.add(&SWEPT, ""),
            NodeEvent::CancelOverdue { .. } => self.add(&OVERDUE, ""),
            // A new session begins attached, whatever became of the one before.
            NodeEvent::Registered { mode, .. } => {
                self.mode(mode);
                self.set(&DETACHED, "", 0.0);
                self.set(&STREAK, "", 0.0);
            }
            NodeEvent::ModeChanged { mode } => self.mode(mode),
            NodeEvent::StopRequested { .. } => self.leaving(),
            NodeEvent::StartedWith { .. } => self.health.store(STARTED, Ordering::Release),
            NodeEvent::WaitingForName { .. }
            | NodeEvent::WriteDenied { .. }
            | NodeEvent::LongLease { .. } => {}
        }
    }

    fn transition(&self, transition: &ShardEvent) {
        let step = transition.step;
        let both = [
            ("step", step.as_str()),
            ("reason", transition.reason.as_str()),
        ];
        self.add(&TRANSITIONS, &labels(&both));
        let state = match step {
            ShardStep::Claimed => Some("claimed"),
            ShardStep::Loading => Some("loading"),
            ShardStep::Serving => Some("serving"),
            ShardStep::Draining | ShardStep::Cancelled => Some("draining"),
            ShardStep::Stopped | ShardStep::Released => None,
            ShardStep::Warming => Some("warming"),
            ShardStep::Frozen => Some("frozen"),
            ShardStep::Thawed => Some("serving"),
            ShardStep::Reclaimed => Some("claimed"),
            ShardStep::Sealed => None,
            ShardStep::Restored
            | ShardStep::Quarantined
            | ShardStep::MoveStarted
            | ShardStep::Taken
            | ShardStep::Aborted => return,
        };
        let mut values = self.lock();
        let before = match state {
            Some(state) => values.shards.insert(transition.shard.clone(), state),
            None => values.shards.remove(&transition.shard),
        };
        for (state, by) in [(before, -1.0), (state, 1.0)] {
            if let Some(state) = state {
                let key = (SHARDS.name, labels(&[("state", state)]));
                *values.series.entry(key).or_default() += by;
            }
        }
    }

    fn add(&self, metric: &MetricDefinition, labels: &str) {
        self.add_n(metric, labels, 1.0);
    }

    fn add_n(&self, metric: &MetricDefinition, labels: &str, n: f64) {
        let key = (metric.name, labels.to_owned());
        *self.lock().series.entry(key).or_default() += n;
    }

    fn set(&self, metric: &MetricDefinition, labels: &str, value: f64) {
        let key = (metric.name, labels.to_owned());
        self.lock().series.insert(key, value);
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Labels as they stand behind a name. Their values are words of ours, so nothing needs escaping.
fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests;
