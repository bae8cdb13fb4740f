//! Every metric of a node, defined in one place and fed from [`NodeEvent`]s and from the driver alone.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::ids::ShardId;
use tenure_core::lease::LeasePhase;
use tenure_core::machine::{LeaseState, Reply, StoreFailure};
use tenure_core::members::Unserved;
use tenure_core::node::Waiting;
use tenure_core::record::NodeMode;
use tenure_core::telemetry::{NodeEvent, ShardEvent, ShardStep};
use tenure_core::time::Time;

use crate::clock::Clock;
use crate::enter::RejectReason;

/// What a metric is.
#[derive(Debug)]
pub struct Definition {
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
        $(const $id: Definition = Definition { name: $name, kind: $kind, help: $help, labelled: $labelled };)*
        /// Every metric.
        pub const ALL: &[Definition] = &[$($id),*];
    };
}

metrics! {
    DETACHED "gauge" "tenure_detached" false "1 while the lease is detached or recovering: nothing is owned.";
    SUCCESSES "counter" "tenure_lease_keepalive_successes_total" false "Renewals that were confirmed.";
    FAILURES "counter" "tenure_lease_keepalive_failures_total" false "Renewals that failed.";
    STREAK "gauge" "tenure_lease_keepalive_failure_streak" false "Renewals that failed in a row.";
    TOOK "gauge" "tenure_lease_keepalive_duration_seconds" false "How long the last confirmed renewal took.";
    LAG "gauge" "tenure_lease_deadline_lag_seconds" false "Deadline of the lease minus now; negative once it is over.";
    LEASE_CHANGES "counter" "tenure_lease_transitions_total" true "Changes of the lease's phase.";
    SESSIONS_LOST "counter" "tenure_sessions_lost_total" true "Sessions of this node that ended against its will.";
    SESSIONS_ENDED "counter" "tenure_sessions_ended_total" true "Sessions of others that this node proved to be over.";
    RETRIES "counter" "tenure_acquire_retry_attempts_total" false "Rounds of looking again at assigned shards held elsewhere.";
    EXHAUSTED "counter" "tenure_acquire_retry_window_exhausted_total" false "Retry windows that ended with shards still held elsewhere.";
    SHARDS "gauge" "tenure_shards" true "Shards at this node by state.";
    TRANSITIONS "counter" "tenure_shard_transitions_total" true "Steps of shards at this node.";
    LOAD_FAILURES "counter" "tenure_load_failures_total" false "Loads of shards that failed.";
    REFUSED "counter" "tenure_refused_total" true "Requests that were turned away.";
    STORE "counter" "tenure_store_requests_total" true "Requests to the store.";
    WATCH_GAPS "counter" "tenure_watch_gaps_total" false "Watches of the store that broke off.";
    WOULD "counter" "tenure_would_total" true "Steps that an observer would have taken.";
    ACTIVE "gauge" "tenure_active" false "1 while the node's mode is active: it takes shards.";
    DAMAGED "counter" "tenure_damaged_records_total" false "Records found that cannot be read.";
    MISSING "counter" "tenure_missing_records_total" false "Records found missing that must exist.";
    ESTRANGED "counter" "tenure_store_changes_total" false "Times that the store was found exchanged or gone back.";
    WEDGED "counter" "tenure_wedged_total" false "Renewals held back because the application's runtime stood still.";
    OVERSLEPT "counter" "tenure_overslept_total" false "Times that this process was not scheduled for long.";
    OVERDUE "counter" "tenure_overdue_total" false "Shards whose cancelled work did not stop in time.";
    UNCLAIMED "gauge" "tenure_unclaimed_shards" false "Shards of this node's keyspaces that nobody owns.";
    UNCLAIMED_AGE "gauge" "tenure_unclaimed_age_seconds" false "For how long the longest of them has been free.";
    UNSERVED "gauge" "tenure_unserved_shards" true "Shards of the cluster without an owner that serves them for longer than three ttl.";
    ELSEWHERE "gauge" "tenure_held_elsewhere_shards" false "Shards that this node should have and another live node has.";
    ELSEWHERE_AGE "gauge" "tenure_held_elsewhere_age_seconds" false "For how long the longest of them has been waited for.";
    SWEPT "counter" "tenure_swept_total" false "Tombstones removed.";
    LEADER "gauge" "tenure_leader" false "1 while this node leads.";
    TERM "gauge" "tenure_leader_term" false "The last term in which this node led.";
    PLANS "counter" "tenure_plans_total" false "Plans with changes that this node published.";
    PLAN_VERSION "gauge" "tenure_plan_version" false "The number of the last of them.";
    PLANNED "counter" "tenure_planned_total" true "Changes in them, by kind.";
    PLAN_PUT_OFF "gauge" "tenure_plan_put_off" false "Changes that the last of them had to put off.";
    PLAN_PROBLEMS "counter" "tenure_plan_problems_total" false "Things that the planner had to work around.";
    STALE_SWEPT "counter" "tenure_stale_assignments_swept_total" false "Assignments to departed nodes that were put right.";
    SEAL_FAILURES "counter" "tenure_seal_failures_total" false "Moves called off because the application could not seal.";
    HELD "gauge" "tenure_router_held" false "Requests that the router holds now.";
    HELD_TOTAL "counter" "tenure_router_held_total" false "Times that it held a request.";
    HOLD_SECONDS "counter" "tenure_router_hold_seconds_total" false "For how long it held them, all together.";
    FLUSHES "counter" "tenure_router_flushes_total" false "Times that it let go what it held of a shard.";
    HOPS "counter" "tenure_router_extra_hops_total" false "Requests that it sent on after another node had refused them.";
    OVERFLOWS "counter" "tenure_router_overflows_total" false "Requests that it turned away because it held too much.";
    EXPIRED "counter" "tenure_router_expired_total" false "Requests that it gave up because they were held for too long.";
    PUBLISHED "counter" "tenure_router_published_total" false "Times that it told owners which moves it holds requests for.";
    SWEEP_FAILURES "counter" "tenure_sweep_failures_total" false "Sweeps of one record that failed.";
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
            let Definition {
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

    pub(crate) fn waiting(&self, waiting: &Waiting) {
        self.set(&UNCLAIMED, "", waiting.unclaimed as f64);
        self.set(&UNCLAIMED_AGE, "", waiting.unclaimed_for.as_secs_f64());
        self.set(&ELSEWHERE, "", waiting.held_elsewhere as f64);
        self.set(&ELSEWHERE_AGE, "", waiting.held_elsewhere_for.as_secs_f64());
        for reason in Unserved::ALL {
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
            Reply::Won(_) | Reply::LeaseCreated(_) | Reply::KeptAlive(LeaseState::Alive(_)) => "won",
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
            NodeEvent::SessionLost { reason: why, .. } => {
                self.set(&DETACHED, "", 1.0);
                self.add(&SESSIONS_LOST, &labels(&[("why", why.as_str())]));
            }
            NodeEvent::SessionEnded { reason: why, .. } => {
                self.add(&SESSIONS_ENDED, &labels(&[("why", &why.to_string())]));
            }
            NodeEvent::WouldDo { step, reason: why, .. } => {
                let would = [("step", step.as_str()), ("why", why.as_str())];
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
                assigned: intended,
                moved,
                aborted: cancelled,
                deferred: put_off,
                ..
            } => {
                self.add(&PLANS, "");
                self.set(&PLAN_VERSION, "", plan.seq as f64);
                self.set(
                    &PLAN_PUT_OFF,
                    "",
                    put_off.as_ref().map_or(0.0, |(n, _)| *n as f64),
                );
                for (kind, n) in [
                    ("intended", *intended),
                    ("moved", *moved),
                    ("cancelled", *cancelled),
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
        let both = [("step", step.as_str()), ("why", transition.reason.as_str())];
        self.add(&TRANSITIONS, &labels(&both));
        let state = match step {
            ShardStep::Claimed => Some("claimed"),
            ShardStep::Loading => Some("loading"),
            ShardStep::Serving => Some("serving"),
            ShardStep::Draining | ShardStep::Cancelled => Some("closing"),
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

    fn add(&self, metric: &Definition, labels: &str) {
        self.add_n(metric, labels, 1.0);
    }

    fn add_n(&self, metric: &Definition, labels: &str, n: f64) {
        let key = (metric.name, labels.to_owned());
        *self.lock().series.entry(key).or_default() += n;
    }

    fn set(&self, metric: &Definition, labels: &str, value: f64) {
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
