//! Shards that others have: when they are waited for, and how soon they are taken.

use super::test_cluster::{TestCluster, ms};
use crate::keys::Key;
use crate::machine::{Action, Request};
use crate::node::NodeConfig;
use crate::record::AssignedBy;

fn reads_of_shards(bench: &TestCluster, i: usize) -> usize {
    let read = |a: &&Action| {
        matches!(
            a,
            Action::Store {
                request: Request::Get(Key::Shard(_)),
                ..
            }
        )
    };
    bench.log(i).iter().filter(read).count()
}

#[test]
fn where_a_leader_plans_nobody_waits_for_what_a_live_node_has() {
    for mut bench in [TestCluster::new(16), TestCluster::leased(16)] {
        bench.mode(AssignedBy::Leader);
        let nodes = ["n1", "n2", "n3"].map(|name| bench.start(name));
        // Much longer than a shard is left to a leader.
        bench.run_roughly(bench.ttl() * 20);
        let reads = nodes.map(|i| reads_of_shards(&bench, i));
        bench.run_roughly(bench.ttl() * 20);
        assert_eq!(
            nodes.map(|i| bench.node(i).waiting().held_elsewhere),
            [0; 3]
        );
        assert_eq!(nodes.map(|i| reads_of_shards(&bench, i)), reads);
        assert_eq!(nodes.iter().map(|i| bench.serving(*i)).sum::<usize>(), 16);
    }
}

/// A node has waited for long for a shard that another keeps, and reads it no more. That one dies, and somebody else says so.
#[test]
fn without_the_watch_a_dead_nodes_shard_is_taken_on_a_retry_however_long_it_was_waited_for() {
    let mut waited = 0;
    for wait in 0..24 {
        let mut bench = TestCluster::new(1);
        let deaf = |config: &mut NodeConfig| config.timing.claim_watch_enabled = false;
        let nodes = ["n1", "n2"].map(|name| bench.start_with(name, deaf));
        bench.run(ms(20_000));
        bench.pause_moves(Some(None));
        let third = bench.start_with(&format!("m{wait}"), deaf);
        bench.run(ms(20_000) + ms(450) * wait);
        if bench.node(third).waiting().held_elsewhere == 0 {
            // It would not have the shard anyway.
            continue;
        }
        waited += 1;
        let owner = nodes.into_iter().find(|i| bench.serving(*i) == 1).unwrap();
        let dead = bench.node(owner).session().unwrap();
        bench.kill(owner);
        while bench.session(dead).ended.is_none() {
            bench.run(ms(1));
        }
        let ended_by = bench.session(dead).ended.map(|ended| ended.by);
        assert_ne!(ended_by, bench.node(third).session());
        bench.run(ms(250));
        assert_eq!(bench.serving(third), 1, "after {wait}");
    }
    assert!(waited > 4, "{waited}");
}
