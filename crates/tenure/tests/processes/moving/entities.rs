//! Shards with active entities, with real processes: two nodes, routers and clients. An entity must not delay a move or a stop,
//! and every message that was accepted is received.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::clients::{Clients, Seen, audit, write_once};
use super::scenes::{SHARDS, router};
use crate::books::{Books, await_books, books, drain};
use crate::process::Process;
use crate::test_cluster::{SLACK, TestCluster};
use crate::worker::{Journal, Role};

const CLIENTS: usize = 8;

fn accounts() -> TestCluster {
    TestCluster::new(SHARDS).with_role(Role::Accounts)
}

/// Counts the shards that a node serves and that do not move.
fn served(books: &Books, node: &str) -> usize {
    let all = books.shards.values().map(|(_, record)| record);
    all.filter(|r| r.says_served() && r.owner().is_some_and(|o| o.node.as_str() == node))
        .count()
}

/// Waits until these nodes serve so many shards each.
fn await_shares(site: &TestCluster, shares: &[(&str, usize)]) {
    await_books(site, &format!("shares are {shares:?}"), |books| {
        shares.iter().all(|(node, n)| served(books, node) == *n)
    });
}

/// Stops a process and returns the time that it took.
fn stop(site: &TestCluster, mut process: Process) -> Duration {
    let begun = Instant::now();
    process.signal(Signal::TERM);
    let code = process.wait().code();
    assert_eq!(code, Some(0), "{}", site.said(&process.node));
    begun.elapsed()
}

fn key_of(shard: u32) -> String {
    let mut keys = (0..).map(|i| format!("key-{i}"));
    let is_in = |key: &String| tenure_core::hash::shard_index(key.as_bytes(), SHARDS) == shard;
    keys.find(is_in).expect("a key of every shard")
}

#[test]
fn no_accepted_message_is_lost_while_nodes_join_drain_and_restart() {
    let site = accounts();
    let all = SHARDS as usize;
    let a = site.start("a");
    await_shares(&site, &[("a", all)]);
    let routers = ["r1", "r2"].map(|name| router(&site, name));
    // One entity per shard is active in any case.
    for shard in 0..SHARDS {
        write_once(&site, "r1", &key_of(shard));
    }
    let clients = Clients::begin(&site, &["r1", "r2"], CLIENTS);
    clients.go_on(20);
    let b = site.start("b");
    await_shares(&site, &[("a", all / 2), ("b", all / 2)]);
    drain(&site, "b", true);
    await_shares(&site, &[("a", all), ("b", 0)]);
    drain(&site, "b", false);
    await_shares(&site, &[("a", all / 2), ("b", all / 2)]);
    let mut nodes = [("a", Some(a)), ("b", Some(b))];
    for (name, node) in &mut nodes {
        let took = stop(&site, node.take().expect("a running node"));
        println!("{name} stopped in {took:?}");
        assert_eq!(served(&books(&site), name), 0, "{name} has handed over");
        *node = Some(site.start(name));
        await_shares(&site, &[("a", all / 2), ("b", all / 2)]);
        clients.go_on(5);
    }
    let mut seen = clients.end();
    for client in &seen {
        assert!(
            client.failures.is_empty(),
            "{:?}\n{}",
            client.failures,
            site.scene()
        );
    }
    for process in nodes.into_iter().filter_map(|(_, node)| node) {
        stop(&site, process);
    }
    for process in routers {
        stop(&site, process);
    }
    seen.extend((0..SHARDS).map(|shard| Seen {
        key: key_of(shard),
        acknowledged: 1,
        failures: Vec::new(),
    }));
    // The entities are passivated: what they received is in the journal.
    audit(&site, &seen);
    let journal = Journal::open(&site.path("")).expect("the journal");
    for client in &seen {
        let last = journal.last(&client.key).expect("the journal");
        assert_eq!(last, client.acknowledged, "{}", client.key);
    }
    site.assert_traces_clean();
}

/// Times until a second node serves half of the shards, and until the first has stopped.
fn move_and_stop(active: bool) -> (Duration, Duration) {
    let site = accounts();
    let all = SHARDS as usize;
    let a = site.start("a");
    let _router = router(&site, "r1");
    await_shares(&site, &[("a", all)]);
    if active {
        for shard in 0..SHARDS {
            write_once(&site, "r1", &key_of(shard));
        }
    }
    let begun = Instant::now();
    let b = site.start("b");
    await_shares(&site, &[("b", all / 2)]);
    let moved = begun.elapsed();
    let stopped = stop(&site, a);
    await_shares(&site, &[("b", all)]);
    stop(&site, b);
    let journal = Journal::open(&site.path("")).expect("the journal");
    let written = journal.all().expect("the journal").len();
    assert_eq!(written, if active { all } else { 0 });
    (moved, stopped)
}

#[test]
fn moves_and_stops_of_processes_take_at_most_twice_as_long_with_active_entities() {
    let idle = move_and_stop(false);
    let active = move_and_stop(true);
    println!("moved and stopped after: idle {idle:?}, active {active:?}");
    assert!(active.0 <= idle.0 * 2 + SLACK, "{active:?}, {idle:?}");
    assert!(active.1 <= idle.1 * 2 + SLACK, "{active:?}, {idle:?}");
}
