//! Writes that land long after they were sent, when somebody has deleted what came of them meanwhile.
use super::test_cluster::{TestCluster, ms};
use crate::keys::Key;
use crate::record::Record;

#[test]
fn the_first_record_of_a_session_that_lands_late_does_not_end_it_before_its_deadline() {
    let mut bench = TestCluster::new(8);
    let nodes = ["n1", "n2"]
        .map(|name| bench.start_with(name, |config| config.boot_id = Some("here".to_owned())));
    bench.run(ms(5));
    let key = Key::Session(bench.node(nodes[0]).session().unwrap());
    let first = bench.raw(&key).record.unwrap();
    assert!(matches!(&first, Record::Session(s) if s.renewals == 0 && s.boot_clock.is_some()));
    bench.run(bench.ttl() * 3);
    assert!(bench.serving(nodes[0]) > 0);
    // The holder serves on until its own time is up, and hears of nothing.
    bench.cut.insert(nodes[0]);
    bench.deaf.insert(nodes[0]);
    bench.delete(key.clone());
    bench.raw_set(key, first);
    bench.run(bench.ttl() * 2);
    assert_eq!(bench.overlaps(), 0, "its deadline was that of its renewals");
    assert_eq!(bench.serving(nodes[1]), 8);
}

#[test]
fn a_record_that_was_put_back_is_found_by_the_next_list() {
    let mut bench = TestCluster::new(8);
    bench.start("n1");
    bench.run(ms(1000));
    let before: Vec<_> = bench
        .keys()
        .into_iter()
        .filter(|key| matches!(key, Key::Shard(_)))
        .map(|key| (bench.raw(&key).record.unwrap(), key))
        .collect();
    let n2 = bench.start("n2");
    bench.run(bench.ttl() * 4);
    let moved = bench.served_by(n2).into_iter().next().unwrap();
    // No watch tells of it, and its rev is below what both have seen.
    bench.deaf.extend([0, n2]);
    let key = Key::Shard(moved.clone());
    let (old, _) = before.into_iter().find(|(_, k)| *k == key).unwrap();
    let given_up = bench.shard(&moved).epoch;
    bench.raw_set(key, old);
    bench.run(bench.ttl() * 40);
    assert!(bench.shard(&moved).epoch >= given_up);
    assert!(bench.served_by(n2).contains(&moved));
    assert_eq!(
        bench.shard(&moved).owner().map(|o| o.session),
        bench.node(n2).session()
    );
}
