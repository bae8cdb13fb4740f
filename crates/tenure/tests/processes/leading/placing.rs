//! D8: where shards are, by what nodes say of themselves and by how their keyspace is planned.

use tenure::PlanningSettings;
use tenure::plan::{PolicyKind, ZoneRule};

use super::books::{books, pin};
use crate::logs::Holders;
use crate::test_cluster::{TestCluster, lively};
use crate::worker::Own;

fn weight(weight: u32) -> Own {
    Own {
        weight: Some(weight),
        ..Own::default()
    }
}

fn zone(zone: &str) -> Own {
    Own {
        zone: Some(zone.to_owned()),
        ..Own::default()
    }
}

/// How many shards each of these nodes has.
fn counts(held: &Holders, nodes: &[&str]) -> Vec<usize> {
    nodes.iter().map(|node| held.of(node).len()).collect()
}

/// The shards whose owner has changed.
fn moved(before: &Holders, after: &Holders) -> Vec<(String, String)> {
    let changed = |shard: &&String| before.0[*shard].node != after.0[*shard].node;
    let all = after.0.keys().filter(changed);
    all.map(|shard| (shard.clone(), after.0[shard].node.clone()))
        .collect()
}

pub(crate) fn weights_capacity_and_pins(site: TestCluster) {
    let _a = site.start_as("a", weight(100));
    let _b = site.start_as("b", weight(300));
    let by_weight = |held: &Holders| counts(held, &["a", "b"]) == [4, 12];
    let before = site.await_served("shares by weight", by_weight);
    let full = Own {
        capacity: Some(2),
        ..Own::default()
    };
    let _c = site.start_as("c", full);
    let with_c = |held: &Holders| counts(held, &["c"]) == [2];
    site.await_served("c is full", with_c);
    let after = site.await_settled(&["a", "b", "c"]);
    assert_eq!(moved(&before, &after).len(), 2, "{}", site.scene());
    // A pin costs one move there, and one back for balance.
    let books = books(&site);
    let of_b = |(_, record): &&(_, tenure_core::record::ShardRecord)| {
        record.owner().is_some_and(|o| o.node.as_str() == "b")
    };
    let (shard, _) = books
        .shards
        .iter()
        .find(|(_, known)| of_b(known))
        .expect("one of b");
    pin(&site, shard, "a");
    site.await_served("it is pinned", |held| {
        held.0[&shard.to_string()].node == "a"
    });
    let pinned = site.await_settled(&["a", "b", "c"]);
    assert!(moved(&after, &pinned).len() <= 2, "{}", site.scene());
    assert_eq!(pinned.of("c").len(), 2);
    site.assert_clean();
}

pub(crate) fn zones(place: impl Fn(u32) -> TestCluster) {
    let spread = PlanningSettings {
        zones: Some(ZoneRule::Spread { most_percent: 50 }),
        ..lively()
    };
    let site = place(8).with_plan(spread);
    let _nodes = [("a", "x"), ("b", "x"), ("c", "y")].map(|(n, z)| site.start_as(n, zone(z)));
    site.await_served("half of them in y", |held| {
        counts(held, &["a", "b", "c"]) == [2, 2, 4]
    });
    site.assert_clean();
    let prefer = PlanningSettings {
        zones: Some(ZoneRule::Prefer {
            zones: vec!["y".to_owned()],
        }),
        ..lively()
    };
    let site = place(8).with_plan(prefer);
    let _nodes = [("a", "x"), ("c", "y")].map(|(n, z)| site.start_as(n, zone(z)));
    site.await_served("all of them in y", |held| {
        counts(held, &["a", "c"]) == [0, 8]
    });
    site.assert_clean();
}

pub(crate) fn rendezvous_and_jump(place: impl Fn(u32) -> TestCluster) {
    for policy in [PolicyKind::Rendezvous, PolicyKind::Jump] {
        let plan = PlanningSettings {
            policy: Some(policy),
            ..lively()
        };
        let site = place(16).with_plan(plan);
        let _nodes = ["a", "b"].map(|node| site.start(node));
        let before = site.await_settled(&["a", "b"]);
        let _last = site.start("z");
        let after = site.await_settled(&["a", "b", "z"]);
        let moved = moved(&before, &after);
        assert!(moved.iter().all(|(_, to)| to == "z"), "{policy}: {moved:?}");
        assert_eq!(moved.len(), after.of("z").len(), "{policy}");
        site.assert_clean();
    }
}
