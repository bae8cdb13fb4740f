//! Every metric moves.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::ids::{Epoch, KeyspaceName, NodeName, Revision, SessionId};
use tenure_core::keys::Key;
use tenure_core::members::UnservedReason;
use tenure_core::reason::Reason;
use tenure_core::record::{EndReason, PlanId, RecordError};

use super::*;

fn shard() -> ShardId {
    "orders/1".parse().unwrap()
}

fn step(step: ShardStep) -> NodeEvent {
    NodeEvent::Shard(ShardEvent {
        time: Time(1),
        shard: shard(),
        step,
        from: None,
        to: None,
        epoch: Epoch::first(1),
        session: SessionId(1),
        reason: Reason::Free,
    })
}

fn lease(from: LeasePhase, to: LeasePhase) -> NodeEvent {
    NodeEvent::Lease { from, to }
}

fn failed(streak: u32) -> NodeEvent {
    let error = "away".to_owned();
    NodeEvent::RenewalFailed { streak, error }
}

fn renewed() -> NodeEvent {
    NodeEvent::Renewed {
        took: Duration::from_millis(250),
        left: Duration::from_secs(2),
    }
}

fn every_note() -> Vec<NodeEvent> {
    vec![
        step(ShardStep::Serving),
        lease(LeasePhase::Degraded, LeasePhase::Detached),
        renewed(),
        failed(2),
        NodeEvent::RuntimeBlocked {
            since: Duration::from_secs(1),
        },
        NodeEvent::SessionLost {
            session: SessionId(1),
            reason: Reason::SessionEnded,
        },
        NodeEvent::SessionEnded {
            session: SessionId(1),
            node: NodeName::new("n").unwrap(),
            reason: EndReason::Expired,
        },
        NodeEvent::ModeChanged {
            mode: NodeMode::Active,
        },
        NodeEvent::ClaimRetry { shards: 1 },
        NodeEvent::ClaimRetryExhausted { shards: 1 },
        NodeEvent::RecordUnreadable {
            key: Key::Cluster,
            damage: RecordError::Newer(2),
        },
        NodeEvent::RecordMissing { key: Key::Cluster },
        NodeEvent::StoreReplaced {
            problem: "other store".to_owned(),
        },
        NodeEvent::ClockJump {
            gap: Duration::from_secs(1),
        },
        NodeEvent::WouldDo {
            shard: shard(),
            step: ShardStep::Claimed,
            reason: Reason::Free,
        },
        NodeEvent::LoadFailed {
            shard: shard(),
            epoch: Epoch::first(1),
            attempt: 1,
            error: "disk".to_owned(),
        },
        NodeEvent::TombstoneRemoved { key: Key::Cluster },
        NodeEvent::LeadershipAcquired { term: 2 },
        NodeEvent::Planned {
            keyspace: KeyspaceName::new("orders").unwrap(),
            plan: PlanId { term: 2, seq: 7 },
            nodes: 3,
            assigned: 1,
            moved: 2,
            aborted: 3,
            deferred: Some((4, "planning_settle_time".to_owned())),
        },
        NodeEvent::PlanProblem {
            keyspace: KeyspaceName::new("orders").unwrap(),
            problem: "no node".to_owned(),
        },
        NodeEvent::StaleAssignmentsRemoved {
            keys: vec![Key::Cluster, Key::Leader],
            plan: PlanId { term: 2, seq: 7 },
            nodes: 3,
        },
        NodeEvent::SealFailed {
            shard: shard(),
            epoch: Epoch::first(1),
            attempt: 1,
            error: "full".to_owned(),
        },
        NodeEvent::GcFailed {
            key: Key::Cluster,
            error: "away".to_owned(),
        },
        NodeEvent::CancelOverdue {
            shard: shard(),
            epoch: Epoch::first(1),
        },
    ]
}

/// What of the rendering differs from that of a node that has just begun.
fn moved(metrics: &Metrics) -> BTreeSet<String> {
    let fresh = Metrics::new(Clock::boot()).render();
    let fresh: BTreeSet<&str> = fresh.lines().collect();
    let text = metrics.render();
    text.lines()
        .filter(|line| !fresh.contains(line))
        .map(|line| line.split(['{', ' ']).next().unwrap().to_owned())
        .collect()
}

#[test]
fn every_metric_moves_and_none_before_its_time() {
    let metrics = Metrics::new(Clock::boot());
    assert_eq!(moved(&metrics), BTreeSet::new());
    for note in every_note() {
        let before = metrics.render();
        metrics.note(&note);
        assert_ne!(metrics.render(), before, "{note:?}");
    }
    metrics.deadline(Clock::boot().now() + Duration::from_secs(9));
    metrics.refused(RejectReason::NotReady);
    metrics.watch_gap();
    metrics.held();
    metrics.held();
    metrics.released(Duration::from_secs(1));
    metrics.flushed();
    metrics.hopped();
    metrics.overflowed();
    metrics.expired();
    metrics.published();
    metrics.waiting(&ShardWaitStats {
        unclaimed: 1,
        unclaimed_for: Duration::from_secs(1),
        held_elsewhere: 2,
        held_elsewhere_for: Duration::from_secs(2),
        unserved: [(UnservedReason::NoNode, 3)].into(),
    });
    metrics.store_request("list", &Reply::Revision(Revision(1)));
    let all: BTreeSet<String> = ALL.iter().map(|m| m.name.to_owned()).collect();
    assert_eq!(moved(&metrics), all);
}

#[test]
fn every_metric_is_described_and_named_as_counters_and_gauges_are() {
    let text = Metrics::new(Clock::boot()).render();
    for metric in ALL {
        assert!(metric.name.starts_with("tenure_"), "{metric:?}");
        let total = metric.name.ends_with("_total");
        assert_eq!(total, metric.kind == "counter", "{metric:?}");
        assert!(text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind)));
    }
}

#[test]
fn the_detached_gauge_and_the_failure_streak_go_up_and_down_again() {
    let metrics = Metrics::new(Clock::boot());
    metrics.note(&failed(1));
    metrics.note(&failed(2));
    metrics.note(&lease(LeasePhase::Degraded, LeasePhase::Detached));
    assert_eq!(metrics.value("tenure_detached", ""), 1.0);
    assert_eq!(metrics.value(STREAK.name, ""), 2.0);
    metrics.note(&renewed());
    metrics.note(&lease(LeasePhase::Detached, LeasePhase::Recovering));
    assert_eq!(metrics.value("tenure_detached", ""), 1.0);
    metrics.note(&lease(LeasePhase::Recovering, LeasePhase::Attached));
    assert_eq!(metrics.value("tenure_detached", ""), 0.0);
    assert_eq!(metrics.value(STREAK.name, ""), 0.0);
    assert_eq!(metrics.value(FAILURES.name, ""), 2.0);
    assert_eq!(metrics.value(SUCCESSES.name, ""), 1.0);
}

#[test]
fn a_new_session_is_not_detached() {
    let metrics = Metrics::new(Clock::boot());
    metrics.note(&lease(LeasePhase::Degraded, LeasePhase::Detached));
    let mode = tenure_core::record::NodeMode::Active;
    metrics.note(&NodeEvent::Registered {
        session: SessionId(2),
        mode,
    });
    assert_eq!(metrics.value("tenure_detached", ""), 0.0);
}

#[test]
fn a_shard_is_counted_in_one_state_at_a_time() {
    let metrics = Metrics::new(Clock::boot());
    let count = |state: &str| metrics.value("tenure_shards", &labels(&[("state", state)]));
    metrics.note(&step(ShardStep::Loading));
    assert_eq!((count("loading"), count("serving")), (1.0, 0.0));
    metrics.note(&step(ShardStep::Serving));
    assert_eq!((count("loading"), count("serving")), (0.0, 1.0));
    metrics.note(&step(ShardStep::Draining));
    metrics.note(&step(ShardStep::Stopped));
    metrics.note(&step(ShardStep::Released));
    assert_eq!((count("draining"), count("serving")), (0.0, 0.0));
}

#[test]
fn the_deadline_lag_is_what_is_left_of_the_lease() {
    let metrics = Metrics::new(Clock::boot());
    metrics.deadline(metrics.clock.now() + Duration::from_secs(10));
    metrics.render();
    let lag = metrics.value(LAG.name, "");
    assert!((9.0..=10.0).contains(&lag), "{lag}");
}
