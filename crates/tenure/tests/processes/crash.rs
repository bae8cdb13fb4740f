//! Processes that die, and processes that leave.

use rustix::process::Signal;
use tenure_judge::LogEvent;

use crate::test_cluster::{LONG_TTL, SLACK, TTL, TestCluster, between};
use crate::worker::now;

// C3
#[test]
fn a_lone_node_killed_and_started_again_within_the_ttl_serves_the_same_shards_at_once() {
    killed_and_started_again(&["a"]);
}

// C3
#[test]
fn a_node_killed_and_started_again_beside_others_serves_the_same_shards_at_once() {
    killed_and_started_again(&["a", "b"]);
}

fn killed_and_started_again(nodes: &[&str]) {
    let site = TestCluster::new(8).with_ttl(LONG_TTL);
    let mut processes: Vec<_> = nodes.iter().map(|node| site.start(node)).collect();
    let before = site.await_settled(nodes);
    let killed = now();
    processes[0].kill();
    let a = site.start("a");
    let started = site.await_start("a", 2);
    assert_eq!(
        started.owned,
        before.of("a"),
        "at the return of the start\n{}",
        site.scene()
    );
    assert!(started.loaded.is_superset(&started.owned), "{started:?}");
    let after = site.await_served("a has them all", |held| {
        before
            .of("a")
            .iter()
            .all(|shard| held.0[shard].pid == a.pid())
    });
    for (shard, is) in &after.0 {
        let was = &before.0[shard];
        let expected = match was.node.as_str() {
            "a" => is.epoch > was.epoch,
            _ => is.owner() == was.owner(),
        };
        assert!(expected, "{shard}: {was:?}, then {is:?}");
    }
    let took = between(killed, after.last_start().max(started.t));
    println!("from the kill to served again: {took:?}, ttl {LONG_TTL:?}");
    assert!(took < LONG_TTL.mul_f64(0.8), "{took:?}\n{}", site.scene());
    site.assert_clean();
}

// B2
#[test]
fn the_shards_of_a_killed_node_are_served_by_another_within_the_promised_time() {
    let site = TestCluster::new(8);
    let (mut a, b) = (site.start("a"), site.start("b"));
    let before = site.await_settled(&["a", "b"]);
    let killed = now();
    a.kill();
    let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let took = between(killed, after.last_start());
    println!(
        "from the kill to a new owner: {took:?}, {:.2} × ttl",
        took.div_duration_f64(TTL)
    );
    assert!(
        took <= TTL.mul_f64(1.2) + SLACK,
        "{took:?}\n{}",
        site.scene()
    );
    for (shard, was) in &before.0 {
        let is = &after.0[shard];
        let expected = match was.node.as_str() {
            "a" => is.epoch > was.epoch,
            _ => is.owner() == was.owner(),
        };
        assert!(
            expected && is.pid == b.pid(),
            "{shard}: {was:?}, then {is:?}"
        );
    }
    site.assert_clean();
}

// A7, A9
#[test]
fn a_node_that_is_told_to_stop_ends_its_work_then_hands_over_at_once() {
    let site = TestCluster::new(8).with_ttl(LONG_TTL);
    let (mut a, b) = (site.start("a"), site.start("b"));
    let before = site.await_settled(&["a", "b"]);
    let told = now();
    a.signal(Signal::TERM);
    let after = site.await_served("b has them all", |held| held.nodes() == ["b"]);
    let took = between(told, after.last_start());
    println!("from SIGTERM to a new owner: {took:?}");
    assert!(took < LONG_TTL / 2, "{took:?}\n{}", site.scene());
    assert_eq!(a.wait().code(), Some(0), "{}", site.said("a"));
    for shard in before.of("a") {
        let (was, is) = (&before.0[&shard], &after.0[&shard]);
        assert!(is.epoch > was.epoch && is.pid == b.pid(), "{shard}");
        let end = site.look(|logs| {
            let mut ends = logs.lines.iter().filter(|l| l.ev == LogEvent::End);
            ends.find(|l| (&l.shard, l.epoch) == (&shard, was.epoch))
                .map(|l| l.t)
        });
        let end = end.expect("work that has ended before the shard is given away");
        assert!(
            told < end && end < is.start,
            "{shard}: {told} {end} {}",
            is.start
        );
    }
    site.assert_clean();
}
