//! Stores that do not let a node write.

use super::test_cluster::{TestCluster, ms};
use crate::machine::Refusal;

fn on_each_kind(check: impl Fn(TestCluster)) {
    check(TestCluster::new(4));
    check(TestCluster::leased(4));
}

#[test]
fn a_start_that_may_not_write_ends_with_the_stores_word() {
    on_each_kind(|mut bench| {
        let denied = Refusal::Denied("read only".to_owned());
        // The first write of all, which is the cluster's.
        bench.denied_puts.insert(0, usize::MAX);
        let first = bench.start("n1");
        bench.run(bench.ttl());
        assert_eq!(bench.refusal(first), Some(&denied));
        let n2 = bench.start("n2");
        bench.run(bench.ttl());
        assert_eq!(bench.serving(n2), 4);
        // The first write in a cluster that is there, which is the session's.
        bench.denied_puts.insert(2, usize::MAX);
        let late = bench.start("n3");
        bench.run(bench.ttl());
        assert_eq!(bench.refusal(late), Some(&denied));
        assert_eq!((bench.serving(n2), bench.overlaps()), (4, 0));
    });
}

#[test]
fn a_session_that_is_refused_once_is_tried_again() {
    on_each_kind(|mut bench| {
        bench.start("n1");
        bench.run(ms(100));
        bench.denied_puts.insert(1, 1);
        let n2 = bench.start("n2");
        bench.run(bench.ttl());
        assert_eq!(bench.refusal(n2), None);
        assert!(bench.started(n2));
    });
}

#[test]
fn a_node_that_runs_is_not_ended_by_a_refusal() {
    on_each_kind(|mut bench| {
        let n1 = bench.start("n1");
        bench.run(bench.ttl());
        bench.denied_puts.insert(n1, usize::MAX);
        let session = bench.node(n1).session().unwrap();
        bench.delete(crate::keys::Key::Session(session));
        bench.run(bench.ttl() * 8);
        assert_eq!((bench.refusal(n1), bench.serving(n1)), (None, 0));
        bench.denied_puts.clear();
        bench.run(bench.ttl() * 8);
        assert_eq!((bench.serving(n1), bench.overlaps()), (4, 0));
    });
}
