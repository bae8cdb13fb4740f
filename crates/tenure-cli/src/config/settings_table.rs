//! Every setting there is, in one table: the names in the file, and by rule those of flags and environment variables.

use std::time::Duration;

use tenure_core::record::PlanningSettings;
use tenure_core::settings::{Settings, Timing};

use super::planning;

/// One setting. `renew_interval` in the file is `--renew-interval` as a flag and `TENURE_RENEW_INTERVAL` in the environment.
pub(crate) struct Knob {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

/// What a setting is, and for those of [`Settings`] where it goes to and how its checked value is read back.
pub(crate) enum Kind {
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

impl Knob {
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
        matches!(self.kind, Kind::Url | Kind::Cluster | Kind::Filter)
    }

    /// Whether processes offer it as a flag. Rare settings are set by file, environment or `--set`.
    pub(crate) fn is_common(&self) -> bool {
        const TIMES: [&str; 3] = ["ttl", "drain_timeout", "load_timeout"];
        match self.kind {
            Kind::Time(..) | Kind::Count(..) | Kind::Switch(..) => TIMES.contains(&self.name),
            _ => true,
        }
    }

    /// Whether it says how a leader plans for a keyspace.
    pub(crate) fn is_plan(&self) -> bool {
        matches!(
            self.kind,
            Kind::PlanTime(_) | Kind::PlanCount(_) | Kind::PlanText(_)
        )
    }

    /// Whether it says how a worker of a queue comes by shards.
    pub(crate) fn is_leasing(&self) -> bool {
        self.name.starts_with(super::leasing::PREFIX)
    }

    /// Whether it matters to a worker of a queue.
    pub(crate) fn is_workers(&self) -> bool {
        self.is_leasing() || matches!(self.name, "node" | "data" | "metrics")
    }

    /// Whether it matters to a process that only leads.
    pub(crate) fn is_leaders(&self) -> bool {
        const OTHERS: [&str; 9] = [
            "kill_grace",
            "zone",
            "rejoin",
            "join",
            "release_batch",
            "rebalance_debounce",
            "drain_timeout",
            "freeze_timeout",
            "take_timeout",
        ];
        let of_shards = self.name.starts_with("acquire_") || self.name.starts_with("load_");
        let of_owners = matches!(self.kind, Kind::Weight | Kind::Limit | Kind::Labels);
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
        const MOVES: [&str; 3] = ["drain_timeout", "freeze_timeout", "take_timeout"];
        const OTHERS: [&str; 2] = ["data", "trace"];
        let matters = self.is_leaders() && !OTHERS.contains(&self.name);
        matters || MOVES.contains(&self.name)
    }

    /// What stands for the value in `--help`.
    pub(crate) fn value_name(&self) -> &'static str {
        match self.kind {
            Kind::Time(..) | Kind::PlanTime(_) => "DURATION",
            Kind::Count(..) | Kind::Weight | Kind::Limit | Kind::PlanCount(_) => "NUMBER",
            Kind::Seconds => "SECONDS",
            Kind::Labels => "NAME=VALUE,…",
            Kind::PlanText(_) => "RULE",
            Kind::Switch(..) | Kind::YesNo | Kind::OnOff => "true|false",
            Kind::Rejoin => "auto|manual",
            Kind::Url => "URL",
            Kind::Cluster | Kind::Node => "NAME",
            Kind::Text => "TEXT",
            Kind::Directory => "DIR",
            Kind::File => "FILE",
            Kind::Address => "ADDR",
            Kind::Filter => "FILTER",
        }
    }

    /// The value when nothing says otherwise and it is not a time or limit; `None`: there is none.
    pub(crate) fn default_text(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Weight => Some("100"),
            Kind::Filter => Some("warn"),
            Kind::Rejoin => Some("auto"),
            Kind::YesNo => Some("false"),
            Kind::OnOff => Some("true"),
            _ if self.is_plan() => planning::default_text(self.name),
            _ => None,
        }
    }
}

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name == name)
}

const fn knob(name: &'static str, kind: Kind, help: &'static str) -> Knob {
    Knob { name, kind, help }
}

/// All settings, in the order in which they are shown.
pub(crate) const KNOBS: &[Knob] = &[
    knob(
        "store",
        Kind::Url,
        "where ownership is written down, such as sqlite:shop.db",
    ),
    knob("cluster", Kind::Cluster, "the cluster's name"),
    knob("node", Kind::Node, "the node's stable name"),
    knob(
        "zone",
        Kind::Text,
        "the failure domain that the node runs in",
    ),
    knob(
        "weight",
        Kind::Weight,
        "the node's part of the shards in relation to others; 100 is usual",
    ),
    knob(
        "capacity",
        Kind::Limit,
        "the most shards that the node can have",
    ),
    knob(
        "labels",
        Kind::Labels,
        "what the node says of itself, such as disk=ssd,arch=arm; keyspaces may require it",
    ),
    knob(
        "data",
        Kind::Directory,
        "the node's own directory, for taking its shards back after a restart",
    ),
    knob(
        "rejoin",
        Kind::Rejoin,
        "how the node comes back if its session ran out while others lived: auto, or manual (drained until activated)",
    ),
    knob(
        "join",
        Kind::YesNo,
        "whether its first start only joins, and takes no shards until `tenure node resume`",
    ),
    knob(
        "metrics",
        Kind::Address,
        "where to serve metrics and probes, such as :9464 (loopback) or 0.0.0.0:9464",
    ),
    knob(
        "trace",
        Kind::File,
        "write every step of the node down here, for `tenure sim validate`",
    ),
    knob(
        "log",
        Kind::Filter,
        "what to log, such as info or tenure=debug",
    ),
    knob(
        "ttl",
        Kind::Time(|s, v| s.ttl = v, |t| t.ttl),
        "how long a session is good after a confirmed renewal",
    ),
    knob(
        "renew_interval",
        Kind::Time(|s, v| s.renew_interval = Some(v), |t| t.renew_interval),
        "how often the session is renewed; default: a sixth of the ttl",
    ),
    knob(
        "renew_retry_interval",
        Kind::Time(
            |s, v| s.renew_retry_interval = Some(v),
            |t| t.renew_retry_interval,
        ),
        "how long after a failed renewal the next try comes; default, and most: a twentieth of the ttl",
    ),
    knob(
        "request_timeout",
        Kind::Time(|s, v| s.request_timeout = Some(v), |t| t.request_timeout),
        "how long any one request to the store may take; default: a twelfth of the ttl",
    ),
    knob(
        "lease_detach_margin",
        Kind::Time(
            |s, v| s.lease_detach_margin = Some(v),
            |t| t.lease_detach_margin,
        ),
        "how long before the deadline gates close; default: a quarter of the ttl",
    ),
    knob(
        "kill_grace",
        Kind::Time(|s, v| s.kill_grace = Some(v), |t| t.kill_grace),
        "how long it may take to stop work that is cancelled; default: an eighth of the ttl",
    ),
    knob(
        "clock_drift_max_permille",
        Kind::Count(
            |s, v| s.clock_drift_max_permille = v,
            |t| t.clock_drift_max_permille,
        ),
        "by how much the rates of two clocks may differ, in parts per thousand",
    ),
    knob(
        "detachment_recover_window",
        Kind::Time(
            |s, v| s.detachment_recover_window = Some(v),
            |t| t.detachment_recover_window,
        ),
        "how long renewals must succeed again before a detached node takes up its shards; default: a third of the ttl",
    ),
    knob(
        "acquire_retry_interval",
        Kind::Time(
            |s, v| s.claim_retry_interval = v,
            |t| t.claim_retry_interval,
        ),
        "how often assigned shards that are held elsewhere are looked at again",
    ),
    knob(
        "acquire_retry_window",
        Kind::Time(|s, v| s.claim_retry_window = v, |t| t.claim_retry_window),
        "for how long they are; 0ms: on watch and tick only",
    ),
    knob(
        "acquire_watch_enabled",
        Kind::Switch(|s, v| s.claim_watch_enabled = v, |t| t.claim_watch_enabled),
        "whether a change seen by the watch leads to a claim at once",
    ),
    knob(
        "rebalance_debounce",
        Kind::Time(
            |s, v| s.assignment_settle_time = v,
            |t| t.assignment_settle_time,
        ),
        "how long the set of nodes must be unchanged before shards are given away for balance",
    ),
    knob(
        "release_batch",
        Kind::Count(
            |s, v| s.release_batch = v as usize,
            |t| u32::try_from(t.release_batch).unwrap_or(u32::MAX),
        ),
        "how many shards may be given away at the same time",
    ),
    knob(
        "drain_timeout",
        Kind::Time(|s, v| s.drain_timeout = v, |t| t.drain_timeout),
        "how long what is in flight may take to finish before it is cancelled",
    ),
    knob(
        "freeze_timeout",
        Kind::Time(|s, v| s.router_hold_timeout = v, |t| t.router_hold_timeout),
        "how long a move waits for routers to hold what comes for the shard",
    ),
    knob(
        "take_timeout",
        Kind::Time(|s, v| s.take_timeout = v, |t| t.take_timeout),
        "how long a move waits, once the shard is sealed, for its new owner",
    ),
    knob(
        "move_retry_max",
        Kind::Time(|s, v| s.move_retry_max = v, |t| t.move_retry_max),
        "the longest wait before a move that was called off is tried again",
    ),
    knob(
        "tick_interval",
        Kind::Time(|s, v| s.tick_interval = Some(v), |t| t.tick_interval),
        "how often everything is looked at even if nothing was heard; default: four times the ttl",
    ),
    knob(
        "relist_interval",
        Kind::Time(|s, v| s.relist_interval = Some(v), |t| t.relist_interval),
        "how often everything is read anew although nothing seems amiss; default: 24 times the ttl",
    ),
    knob(
        "stall_limit",
        Kind::Time(|s, v| s.stall_limit = Some(v), |t| t.stall_limit),
        "how long the application may show no sign of life before renewals stop; default: the ttl",
    ),
    knob(
        "load_timeout",
        Kind::Time(|s, v| s.load_timeout = v, |t| t.load_timeout),
        "how long a load may take before it counts as failed",
    ),
    knob(
        "load_retry_min",
        Kind::Time(|s, v| s.load_retry_min = v, |t| t.load_retry_min),
        "the first wait after a failed load; doubles with each",
    ),
    knob(
        "load_retry_max",
        Kind::Time(|s, v| s.load_retry_max = v, |t| t.load_retry_max),
        "the longest wait after a failed load",
    ),
    knob(
        "load_attempts",
        Kind::Count(|s, v| s.load_attempts = v, |t| t.load_attempts),
        "how many loads are tried before the shard goes to another node",
    ),
    knob(
        "policy",
        Kind::PlanText(planning::policy),
        "how a leader gives shards to nodes: sticky, rendezvous or jump",
    ),
    knob(
        "measure",
        Kind::PlanText(planning::measure),
        "what sticky evens out: shards or load",
    ),
    knob(
        "debounce",
        Kind::PlanTime(|p, v| p.settle_time = v),
        "how long the nodes must be the same before a leader moves shards for balance",
    ),
    knob(
        "rejoin_after",
        Kind::PlanTime(|p, v| p.rejoin_after = v),
        "how long a node that has come back waits for its share; doubles with each absence",
    ),
    knob(
        "failover_after",
        Kind::PlanTime(|p, v| p.failover_after = v),
        "how long a shard waits for an owner whose session has ended",
    ),
    knob(
        "cool_down",
        Kind::PlanTime(|p, v| p.cool_down = v),
        "how long after a move a shard is not moved for balance",
    ),
    knob(
        "band_shards",
        Kind::PlanCount(|p, v| p.band_shards = v),
        "how many shards a node may be off its share before balance begins",
    ),
    knob(
        "band_load_permille",
        Kind::PlanCount(|p, v| p.band_cost_permille = v),
        "how far, in thousandths, a node's load may be off its share before balance begins",
    ),
    knob(
        "load_floor",
        Kind::PlanCount(|p, v| p.cost_floor = v),
        "what every shard counts for besides its load, in the same unit",
    ),
    knob(
        "load_window",
        Kind::PlanTime(|p, v| p.cost_window = v),
        "over which time reported load is smoothed",
    ),
    knob(
        "budget_total",
        Kind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.total)),
        "how many moves may be under way at a time",
    ),
    knob(
        "budget_per_source",
        Kind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.per_source)),
        "how many of them away from one node",
    ),
    knob(
        "budget_per_target",
        Kind::PlanCount(|p, v| planning::budget(p, v, |b| &mut b.per_target)),
        "how many of them towards one node",
    ),
    knob(
        "zones",
        Kind::PlanText(planning::zones),
        "how zones matter: any, spread:PERCENT (no zone has more), or prefer:ZONE,… (best first)",
    ),
    knob(
        "required_labels",
        Kind::PlanText(planning::required_labels),
        "what a node must say of itself to have shards, such as disk=ssd",
    ),
    knob(
        "shard_leasing",
        Kind::OnOff,
        "whether a worker of a queue owns shards and polls them alone; otherwise it looks into random ones",
    ),
    knob(
        "shard_leasing_shards_per_worker",
        Kind::Limit,
        "into how many shards such a worker looks at most in one round; default: 16",
    ),
    knob(
        "shard_leasing_ttl_secs",
        Kind::Seconds,
        "how long the lease of such a worker is good after a renewal; default: as the store suggests",
    ),
    knob(
        "shard_leasing_renew_secs",
        Kind::Seconds,
        "how often that lease is renewed; default: a sixth of it",
    ),
];
