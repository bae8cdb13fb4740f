//! Node names and data directories: who may be whom.

use std::fs;
use std::path::Path;

use crate::test_cluster::{SLACK, TTL, TestCluster, between};
use crate::worker::{NOT_STARTED, now};

#[test]
fn a_second_process_with_the_name_of_a_live_one_waits_and_is_refused() {
    let site = TestCluster::new(4);
    let _first = site.start("a");
    let before = site.await_settled(&["a"]);
    refused_as_a(&site, "other");
    let after = site.await_settled(&["a"]);
    assert_eq!(after.owners(), before.owners(), "{}", site.scene());
    let verdict = site.assert_clean();
    assert_eq!(verdict.resumed, 0, "the first has never paused");
}

#[test]
fn a_data_directory_in_use_is_refused_at_once() {
    let site = TestCluster::new(4);
    let first = site.start("a");
    let before = site.await_settled(&["a"]);
    let mut second = site.start_with("b", "a");
    assert_eq!(second.wait().code(), Some(NOT_STARTED));
    let said = site.said("a");
    let expected = format!("is in use by process {}", first.pid());
    assert!(said.contains(&expected), "{said}");
    assert_eq!(site.await_settled(&["a"]).owners(), before.owners());
    site.assert_clean();
}

#[test]
fn a_copied_data_directory_proves_nobody_dead() {
    let site = TestCluster::new(4);
    let mut first = site.start("a");
    let before = site.await_settled(&["a"]);
    copy(&site.path("a.d"), &site.path("copy.d"));
    refused_as_a(&site, "copy");
    assert_eq!(site.await_settled(&["a"]).owners(), before.owners());
    // Now it is dead, but a copy cannot know: its node waits for the ttl like any other.
    copy(&site.path("a.d"), &site.path("late.d"));
    let killed = now();
    first.kill();
    let second = site.start_with("a", "late");
    let after = site.await_served("the second has them all", |held| {
        held.0.values().all(|h| h.pid == second.pid())
    });
    let took = between(killed, after.last_start());
    println!("from the kill to served with a copy: {took:?}, ttl {TTL:?}");
    assert!(took > TTL.mul_f64(0.7), "{took:?}\n{}", site.scene());
    assert!(
        took <= TTL.mul_f64(1.2) + SLACK,
        "{took:?}\n{}",
        site.scene()
    );
    site.assert_clean();
}

/// A process that calls itself `a` with a data directory of its own waits, says so, and is refused.
fn refused_as_a(site: &TestCluster, data_dir: &str) {
    let start = now();
    let mut second = site.start_with("a", data_dir);
    assert_eq!(second.wait().code(), Some(NOT_STARTED), "{}", site.scene());
    let took = between(start, now());
    println!("refused after {took:?}, ttl {TTL:?}");
    assert!(took >= TTL && took <= TTL.mul_f64(1.2) + SLACK, "{took:?}");
    let said = site.said(data_dir);
    assert!(
        said.contains("not started: the cluster rejected the node: the node name is in use"),
        "{said}"
    );
    assert!(said.contains("waiting"), "{said}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a data directory") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
}
