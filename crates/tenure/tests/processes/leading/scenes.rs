//! What happens to leaders and to those whom they plan for. Each scene is played on every store.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::PlanningSettings;

use super::books::{await_books, books, number, pin, told};
use crate::process::Process;
use crate::test_cluster::{SLACK, TestCluster, between, lively};
use crate::worker::{Own, now};

const PUBLISHED: &str = "plan published";

/// The plans of a node that moved something, as far as its log tells.
fn moving_plans(site: &TestCluster, node: &str) -> usize {
    let plans = told(site, node, PUBLISHED);
    plans
        .iter()
        .filter(|plan| number(plan, "moved") > 0)
        .count()
}

// D1
pub(crate) fn five_joins(site: TestCluster) {
    let calm = PlanningSettings {
        settle_time: Some(Duration::from_millis(1500)),
        ..lively()
    };
    let site = site.with_plan(calm);
    let mut nodes: Vec<Process> = ["a", "b"].map(|node| site.start(node)).into();
    let before = site.await_settled(&["a", "b"]);
    let leader = books(&site).leader().expect("a leader").to_owned();
    let plans = moving_plans(&site, &leader);
    nodes.extend(["c", "d", "e", "f", "g"].map(|node| site.start(node)));
    let all = ["a", "b", "c", "d", "e", "f", "g"];
    let after = site.await_settled(&all);
    assert_eq!(
        moving_plans(&site, &leader),
        plans + 1,
        "{}",
        site.said(&leader)
    );
    for (shard, is) in &after.0 {
        let (was, moved) = (&before.0[shard], is.node != before.0[shard].node);
        assert_eq!(
            is.epoch,
            was.epoch + u64::from(moved),
            "{shard}: {was:?}, then {is:?}"
        );
    }
    for node in all {
        assert_eq!(after.of(node).len(), 3, "{node}\n{}", site.scene());
    }
    // Then one leaves and another dies.
    let (mut leaves, mut dies) = (nodes.remove(5), nodes.remove(4));
    leaves.signal(Signal::TERM);
    dies.kill();
    assert_eq!(leaves.wait().code(), Some(0), "{}", site.said("f"));
    site.await_settled(&["a", "b", "c", "d", "g"]);
    let quiet = |books: &super::books::Books| ["e", "f"].iter().all(|n| books.naming(n).is_empty());
    await_books(&site, "nobody names those who are gone", quiet);
    site.assert_clean();
}

// E1, E2, E5
pub(crate) fn a_killed_leader(site: TestCluster, late: Duration) {
    let names = ["a", "b", "c"];
    let mut nodes: Vec<Process> = names.iter().map(|node| site.start(node)).collect();
    site.await_settled(&names);
    let before = books(&site);
    let dead = before.leader().expect("a leader").to_owned();
    let place = names.iter().position(|n| *n == dead).expect("one of them");
    let killed = now();
    nodes[place].kill();
    let next = await_books(&site, "another leads", |books| books.term() > before.term());
    let took = between(killed, now());
    println!(
        "from SIGKILL of a leader to another: {took:?}, ttl {:?}",
        site.ttl()
    );
    let promised = site.ttl().mul_f64(1.2) + late;
    assert!(took <= promised + SLACK, "{took:?}\n{}", site.scene());
    let rest: Vec<&str> = names.into_iter().filter(|n| *n != dead).collect();
    site.await_settled(&rest);
    let after = await_books(&site, "no record names it", |b| b.naming(&dead).is_empty());
    assert_eq!(after.term(), next.term(), "one change of leader");
    for (shard, was) in before.plans() {
        assert!(after.plans()[&shard] >= was, "{shard}");
    }
    let (was, is) = (before.last_plan(), after.last_plan());
    assert!(
        is.term > was.term && is.seq > was.seq,
        "{was:?}, then {is:?}"
    );
    let leader = after.leader().expect("a leader");
    let swept = told(&site, leader, "stale assignments removed");
    let deleted: u64 = swept.iter().map(|line| number(line, "deleted_count")).sum();
    assert!(deleted >= before.naming(&dead).len() as u64, "{swept:?}");
    for line in &swept {
        assert!(
            number(line, "version") > was.seq && number(line, "nodes") == 2,
            "{line:?}"
        );
    }
    let mut plans = told(&site, &dead, PUBLISHED);
    plans.extend(told(&site, leader, PUBLISHED));
    let versions: Vec<u64> = plans.iter().map(|plan| number(plan, "version")).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    site.assert_clean();
}

/// A cluster whose leader owns nothing: it was there before the nodes.
fn led_by_one_that_owns_nothing(site: &TestCluster) -> (Process, [Process; 2]) {
    let mut first = site.start("a");
    site.await_start("a", 1);
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0), "{}", site.said("a"));
    let leads_only = Own {
        leads_only: true,
        ..Own::default()
    };
    let p = site.start_as("p", leads_only);
    await_books(site, "p leads", |books| books.leader() == Some("p"));
    let nodes = ["a", "b"].map(|node| site.start(node));
    site.await_settled(&["a", "b"]);
    assert_eq!(books(site).leader(), Some("p"));
    (p, nodes)
}

// E2, E4
pub(crate) fn a_leader_that_slept(site: TestCluster) {
    let (p, _nodes) = led_by_one_that_owns_nothing(&site);
    let asleep = Instant::now();
    site.pause(&p);
    let led = |books: &super::books::Books| books.leader().is_some_and(|leader| leader != "p");
    let next = await_books(&site, "another leads", led);
    thread::sleep((site.ttl() * 3).saturating_sub(asleep.elapsed()));
    let (before, marks) = (site.await_settled(&["a", "b"]), books(&site).plans());
    p.signal(Signal::CONT);
    // Its old session has a tombstone, or nobody else could lead.
    await_books(&site, "p is back under another session", |books| {
        let mut live = books.sessions.values().filter(|s| s.is_live());
        live.any(|s| s.node.as_str() == "p")
    });
    thread::sleep(site.ttl());
    let (after, now) = (site.await_settled(&["a", "b"]), books(&site));
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    assert_eq!((now.term(), now.leader()), (next.term(), next.leader()));
    assert_eq!(now.plans(), marks);
    site.assert_clean();
}

// E6
pub(crate) fn a_leader_that_is_told_to_stop(site: TestCluster) {
    let (mut p, _nodes) = led_by_one_that_owns_nothing(&site);
    let before = books(&site);
    let (shard, _) = before
        .shards
        .iter()
        .find(|(_, (_, record))| record.owner().is_some_and(|o| o.node.as_str() == "a"))
        .expect("a shard of a");
    let told_at = now();
    p.signal(Signal::TERM);
    pin(&site, shard, "b");
    let planned = await_books(&site, "the next leader has planned", |books| {
        let (_, record) = &books.shards[shard];
        record.plan.term > before.term()
            && record.assigned.as_ref().is_some_and(|n| n.as_str() == "b")
    });
    let took = between(told_at, now());
    println!("from SIGTERM of a leader to the next one's plan: {took:?}");
    // Sooner than any lease could have run out.
    assert!(
        took < Duration::from_secs(1) + SLACK / 2 && took < site.ttl(),
        "{took:?}"
    );
    assert_eq!(p.wait().code(), Some(0), "{}", site.said("p"));
    let gone: Vec<&String> = before.keys.difference(&planned.keys).collect();
    assert!(gone.is_empty(), "deleted: {gone:?}");
    site.await_served("b has the pinned shard", |held| {
        held.0[&shard.to_string()].node == "b"
    });
    site.assert_clean();
}
