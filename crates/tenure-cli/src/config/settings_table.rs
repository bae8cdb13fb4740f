//! Every setting there is, in one table: the names in the file, and by rule those of flags and environment variables.

use std::time::Duration;

use tenure_core::record::PlanningSettings;
use tenure_core::settings::{Settings, Timing};

use super::planning;

/// One setting. `renew_interval` in the file is `--renew-interval` as a flag and `TENURE_RENEW_INTERVAL` in the environment.
pub(crate) struct SettingDefinition {
    pub(crate) name: &'static str,
    pub(crate) kind: SettingKind,
    pub(crate) help: &'static str,
}

/// What a setting is, and for those of [`Settings`] where it goes to and how its checked value is read back.
pub(crate) enum SettingKind {
    /// A duration of [`Settings`].
    Time(fn(&mut Settings, Duration), fn(&Timing) -> Duration),
    /// A number of [`Settings`].
    Count(fn(&mut Settings, u32), fn(&Timing) -> u32),
    /// A yes or no of [`Settings`].
    Switch(fn(&mut Settings, bool), fn(&Timing) -> bool),
    /// The store's URL. Shown without what may be secret in it.
    Url,
    /// The name of a cluster.
    Cluster,
    /// The name of a node.
    Node,
    /// Any text that is not empty.
    Text,
    /// A number that the settings know nothing of.
    Weight,
    /// The most of something; without a limit by default.
    Limit,
    /// What a node says of itself, as `NAME=VALUE,…`.
    Labels,
    /// A duration of a keyspace's [`PlanningSettings`]; nothing: the usual.
    PlanTime(fn(&mut PlanningSettings, Option<Duration>)),
    /// A number of it.
    PlanCount(fn(&mut PlanningSettings, Option<u32>)),
    /// A word or a rule of it.
    PlanText(fn(&mut PlanningSettings, Option<&str>) -> Result<(), String>),
    /// A directory, which may not exist yet.
    Directory,
    /// A file, which may not exist yet.
    File,
    /// Where to listen: `HOST:PORT` or `:PORT`.
    Address,
    /// What to log.
    Filter,
    /// How a node comes back.
    Rejoin,
    /// A yes or no that the settings know nothing of.
    YesNo,
    /// A yes or no that is also written as 1 or 0.
    OnOff,
    /// A number of seconds, which may have a fraction.
    Seconds,
}

impl SettingDefinition {
    /// The environment variable.
    pub(crate) fn env(&self) -> String {
        format!("{}{}", super::ENV_PREFIX, self.name.to_uppercase())
    }

    /// The flag, without its dashes.
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Whether every command takes it.
    pub(crate) fn is_global(&self) -> bool {
        matches!(
            self.kind,
            SettingKind::Url | SettingKind::Cluster | SettingKind::Filter
        )
    }

    /// Whether processes offer it as a flag. Rare settings are set by file, environment or `--set`.
    pub(crate) fn is_common(&self) -> bool {
        const TIMES: [&str; 3] = ["ttl", "drain_timeout", "load_timeout"];
        match self.kind {
            SettingKind::Time(..) | SettingKind::Count(..) | SettingKind::Switch(..) => {
                TIMES.contains(&self.name)
            }
            _ => true,
        }
    }

    /// Whether it says how a leader plans for a keyspace.
    pub(crate) fn is_plan(&self) -> bool {
        matches!(
            self.kind,
            SettingKind::PlanTime(_) | SettingKind::PlanCount(_) | SettingKind::PlanText(_)
        )
    }

    /// Whether it says how a worker of a queue comes by shards.
    pub(crate) fn is_leasing(&self) -> bool {
        self.name.starts_with(super::worker_ownership::PREFIX)
    }

    /// Whether it matters to a worker of a queue.
    pub(crate) fn is_workers(&self) -> bool {
        self.is_leasing() || matches!(self.name, "node" | "data_dir" | "admin_addr")
    }

    /// Whether it matters to a process that only leads.
    pub(crate) fn is_leaders(&self) -> bool {
        const OTHERS: [&str; 9] = [
            "kill_grace",
            "zone",
            "rejoin",
            "start_drained",
            "release_batch",
            "assignment_settle_time",
            "drain_timeout",
            "router_hold_timeout",
            "take_timeout",
        ];
        let of_shards = self.name.starts_with("claim_") || self.name.starts_with("load_");
        let of_owners = matches!(
            self.kind,
            SettingKind::Weight | SettingKind::Limit | SettingKind::Labels
        );
        !self.is_plan()
            && !self.is_leasing()
            && !of_owners
            && !of_shards
            && !OTHERS.contains(&self.name)
    }

    /// Whether it matters to commands that write records themselves.
    pub(crate) fn is_operators(&self) -> bool {
        matches!(self.name, "ttl" | "clock_drift_max_permille")
    }

    /// Whether it matters to a process that owns shards.
    pub(crate) fn is_nodes(&self) -> bool {
        !self.is_leasing()
    }

    /// Whether it matters to a router.
    pub(crate) fn is_routers(&self) -> bool {
        const MOVES: [&str; 3] = ["drain_timeout", "router_hold_timeout", "take_timeout"];
        const OTHERS: [&str; 2] = ["data_dir", "trace"];
        let matters = self.is_leaders() && !OTHERS.contains(&self.name);
        matters || MOVES.contains(&self.name)
    }

    /// What stands for the value in `--help`.
    pub(crate) fn value_name(&self) -> &'static str {
        match self.kind {
            SettingKind::Time(..) | SettingKind::PlanTime(_) => "DURATION",
            SettingKind::Count(..)
            | SettingKind::Weight
            | SettingKind::Limit
            | SettingKind::PlanCount(_) => "NUMBER",
            SettingKind::Seconds => "SECONDS",
            SettingKind::Labels => "NAME=VALUE,…",
            SettingKind::PlanText(_) => "RULE",
            SettingKind::Switch(..) | SettingKind::YesNo | SettingKind::OnOff => "true|false",
            SettingKind::Rejoin => "auto|manual",
            SettingKind::Url => "URL",
            SettingKind::Cluster | SettingKind::Node => "NAME",
            SettingKind::Text => "TEXT",
            SettingKind::Directory => "DIR",
            SettingKind::File => "FILE",
            SettingKind::Address => "ADDR",
            SettingKind::Filter => "FILTER",
        }
    }

    /// The value when nothing says otherwise and it is not a time or limit; `None`: there is none.
    pub(crate) fn default_text(&self) -> Option<&'static str> {
        match self.kind {
            SettingKind::Weight => Some("100"),
            SettingKind::Filter => Some("warn"),
            SettingKind::Rejoin => Some("auto"),
            SettingKind::YesNo => Some("false"),
            SettingKind::OnOff => Some("true"),
            _ if self.is_plan() => planning::default_text(self.name),
            _ => None,
        }
    }
}

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static SettingDefinition> {
    KNOBS.iter().find(|knob| knob.name == name)
}

const fn knob(name: &'static str, kind: SettingKind, help: &'static str) -> SettingDefinition {
    SettingDefinition { name, kind, help }
}

/// All settings, in the order in which they are shown.
pub(crate) const KNOBS: &[SettingDefinition] = &[
    knob(
        "store",
        SettingKind::Url,
        "Store URL, such as sqlite:shop.db",
    ),
    knob("cluster", SettingKind::Cluster, "Cluster name"),
    knob(
        "node",
        SettingKind::Node,
        "Name of the node; must stay the same across restarts",
    ),
    knob(
        "zone",
        SettingKind::Text,
        "Zone of the node, such as a rack or availability zone",
    ),
    knob(
        "weight",
        SettingKind::Weight,
        "Relative share of the shards; a node with 200 gets twice as many as one with 100, the default",
    ),
    knob(
        "capacity",
        SettingKind::Limit,
        "Maximum number of shards that the node owns",
    ),
    knob(
        "labels",
        SettingKind::Labels,
        "Labels of the node, such as disk=ssd,arch=arm; keyspaces can require labels",
    ),
    knob(
        "data_dir",
        SettingKind::Directory,
        "Data directory of the node; lets a restarted node claim its shards again immediately",
    ),
    knob(
        "rejoin",
        SettingKind::Rejoin,
        "Behavior after the session expired while other nodes ran: auto (own shards again) or manual (own none until `tenure node resume`)",
    ),
    knob(
        "start_drained",
        SettingKind::YesNo,
        "Own no shards after the first start of the node until `tenure node resume`",
    ),
    knob(
        "admin_addr",
        SettingKind::Address,
        "Address for metrics and health checks, such as :9464 (loopback) or 0.0.0.0:9464",
    ),
    knob(
        "trace",
        SettingKind::File,
        "Write a trace of all steps of the node to this file, for `tenure-sim validate`",
    ),
    knob(
        "log",
        SettingKind::Filter,
        "Log filter, such as info or tenure=debug",
    ),
    knob(
        "ttl",
        SettingKind::Time(|s, v| s.ttl = v, |t| t.ttl),
        "Time without renewal after which the session of a node expires and other nodes claim its shards",
    ),
    knob(
        "renew_interval",
        SettingKind::Time(|s, v| s.renew_interval = Some(v), |t| t.renew_interval),
        "Interval between lease renewals; default: ttl / 6",
    ),
    knob(
        "renew_retry_interval",
        SettingKind::Time(
            |s, v| s.renew_retry_interval = Some(v),
            |t| t.renew_retry_interval,
        ),
        "Wait after a failed renewal; default and maximum: ttl / 20",
    ),
    knob(
        "request_timeout",
        SettingKind::Time(|s, v| s.request_timeout = Some(v), |t| t.request_timeout),
        "Timeout of a store request; default: ttl / 12",
    ),
    knob(
        "lease_detach_margin",
        SettingKind::Time(
            |s, v| s.lease_detach_margin = Some(v),
            |t| t.lease_detach_margin,
        ),
        "Time before the lease deadline at which the node stops admitting requests; default: ttl / 4",
    ),
    knob(
        "kill_grace",
        SettingKind::Time(|s, v| s.kill_grace = Some(v), |t| t.kill_grace),
        "Time for cancelled work to stop; default: ttl / 8",
    ),
    knob(
        "clock_drift_max_permille",
        SettingKind::Count(
            |s, v| s.clock_drift_max_permille = v,
            |t| t.clock_drift_max_permille,
        ),
        "Maximum difference between the rates of two clocks, in parts per thousand",
    ),
    knob(
        "detachment_recover_window",
        SettingKind::Time(
            |s, v| s.detachment_recover_window = Some(v),
            |t| t.detachment_recover_window,
        ),
        "Time that renewals must succeed before a detached node (lease not renewed in time) serves again; default: \
         ttl / 3",
    ),
    knob(
        "claim_retry_interval",
        SettingKind::Time(
            |s, v| s.claim_retry_interval = v,
            |t| t.claim_retry_interval,
        ),
        "Interval between claim retries for assigned shards that another node owns",
    ),
    knob(
        "claim_retry_window",
        SettingKind::Time(|s, v| s.claim_retry_window = v, |t| t.claim_retry_window),
        "Duration of the claim retries; 0ms: do not retry, claim only on watch events and scans of all shards",
    ),
    knob(
        "claim_watch_enabled",
        SettingKind::Switch(|s, v| s.claim_watch_enabled = v, |t| t.claim_watch_enabled),
        "Claim shards as soon as the watch of the store reports a change",
    ),
    knob(
        "assignment_settle_time",
        SettingKind::Time(
            |s, v| s.assignment_settle_time = v,
            |t| t.assignment_settle_time,
        ),
        "Time without membership changes before a node releases shards for balance",
    ),
    knob(
        "release_batch",
        SettingKind::Count(
            |s, v| s.release_batch = v as usize,
            |t| u32::try_from(t.release_batch).unwrap_or(u32::MAX),
        ),
        "Maximum number of shards that a node releases at the same time",
    ),
    knob(
        "drain_timeout",
        SettingKind::Time(|s, v| s.drain_timeout = v, |t| t.drain_timeout),
        "Time for running requests (of `exec`: for the child process) to finish when a shard leaves the node; then they are cancelled",
    ),
    knob(
        "router_hold_timeout",
        SettingKind::Time(|s, v| s.router_hold_timeout = v, |t| t.router_hold_timeout),
        "Maximum time that a move waits for routers to hold requests",
    ),
    knob(
        "take_timeout",
        SettingKind::Time(|s, v| s.take_timeout = v, |t| t.take_timeout),
        "Maximum time that a move waits for the target to take the sealed shard",
    ),
    knob(
        "move_retry_max",
        SettingKind::Time(|s, v| s.move_retry_max = v, |t| t.move_retry_max),
        "Maximum wait before an aborted move is retried",
    ),
    knob(
        "tick_interval",
        SettingKind::Time(|s, v| s.tick_interval = Some(v), |t| t.tick_interval),
        "Interval between scans of all shards; default: 4 x ttl",
    ),
    knob(
        "relist_interval",
        SettingKind::Time(|s, v| s.relist_interval = Some(v), |t| t.relist_interval),
        "Interval at which a node reads all records of the cluster again; default: 24 x ttl",
    ),
    knob(
        "stall_limit",
        SettingKind::Time(|s, v| s.stall_limit = Some(v), |t| t.stall_limit),
        "Maximum time without progress of the application's runtime before renewals stop; default: ttl",
    ),
    knob(
        "load_timeout",
        SettingKind::Time(|s, v| s.load_timeout = v, |t| t.load_timeout),
        "Maximum time to load a shard; a load that takes longer has failed",
    ),
    knob(
        "load_retry_min",
        SettingKind::Time(|s, v| s.load_retry_min = v, |t| t.load_retry_min),
        "Wait after the first failed load; doubles after each failure",
    ),
    knob(
        "load_retry_max",
        SettingKind::Time(|s, v| s.load_retry_max = v, |t| t.load_retry_max),
        "Maximum wait after a failed load",
    ),
    knob(
        "load_attempts",
        SettingKind::Count(|s, v| s.load_attempts = v, |t| t.load_attempts),
        "Number of failed loads after which another node may load the shard",
    ),
    knob(
        "policy",
        SettingKind::PlanText(planning::policy),
        "Placement policy: sticky, rendezvous or jump",
    ),
    knob(
        "balance_by",
        SettingKind::PlanText(planning::measure),
        "Quantity that the sticky policy balances: shards or cost",
    ),
    knob(
        "planning_settle_time",
        SettingKind::PlanTime(|p, v| p.settle_time = v),
        "Time without nodes joining or leaving before the leader moves shards for balance",
    ),
    knob(
        "rejoin_after",
        SettingKind::PlanTime(|p, v| p.rejoin_after = v),
        "Time before a returning node is assigned shards; doubles after each absence",
    ),
    knob(
        "failover_after",
        SettingKind::PlanTime(|p, v| p.failover_after = v),
        "Time before the shards of an ended session are assigned to other nodes",
    ),
    knob(
        "cool_down",
        SettingKind::PlanTime(|p, v| p.cool_down = v),
        "Minimum time between two moves of the same shard for balance",
    ),
    knob(
        "band_shards",
        SettingKind::PlanCount(|p, v| p.band_shards = v),
        "Tolerated deviation of a node's number of shards from its target; beyond it, shards are moved for balance",
    ),
    knob(
        "band_cost_permille",
        SettingKind::PlanCount(|p, v| p.band_cost_permille = v),
        "Tolerated deviation of a node's total cost from its target, in parts per thousand; beyond it, shards are moved for balance",
    ),
    knob(
        "cost_floor",
        SettingKind::PlanCount(|p, v| p.cost_floor = v),
        "Cost added to the reported cost of every shard, in the same unit",
    ),
    knob(
        "cost_window",
        SettingKind::PlanTime(|p, v| p.cost_window = v),
        "Length of time over which reported costs are averaged",
    ),
    knob(
        "budget_total",
        SettingKind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.total)),
        "Maximum number of concurrent moves",
    ),
    knob(
        "budget_per_source",
        SettingKind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.per_source)),
        "Maximum number of concurrent moves from one node",
    ),
    knob(
        "budget_per_target",
        SettingKind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.per_target)),
        "Maximum number of concurrent moves to one node",
    ),
    knob(
        "zones",
        SettingKind::PlanText(planning::zones),
        "Zone rule: any, spread:PERCENT (maximum share of one zone) or prefer:ZONE,... (best first)",
    ),
    knob(
        "required_labels",
        SettingKind::PlanText(planning::required_labels),
        "Labels that a node needs to own shards, such as disk=ssd",
    ),
    knob(
        "worker_ownership",
        SettingKind::OnOff,
        "Let the worker own shards and poll only them, instead of polling random shards",
    ),
    knob(
        "worker_ownership_shards_per_worker",
        SettingKind::Limit,
        "Maximum number of shards that the worker polls per round; default: 16",
    ),
    knob(
        "worker_ownership_ttl_secs",
        SettingKind::Seconds,
        "Lifetime of the worker's session after a renewal; default: suggested by the store",
    ),
    knob(
        "worker_ownership_renew_secs",
        SettingKind::Seconds,
        "Interval between renewals of the worker's session; default: a sixth of the session's lifetime",
    ),
];
