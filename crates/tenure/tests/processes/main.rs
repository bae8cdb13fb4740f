//! What the node promises, with real processes over one SQLite file: killed, paused, restarted and shut out.
//!
//! Every worker is this very binary, started again with a role in its environment. Workers write down what they do in
//! the format of `tenure-judge`, which shares no code with them, and the judge says whether there were ever two owners.
//! Names in comments are acceptance cases.
#![cfg(all(feature = "sqlite", target_os = "linux"))]

mod chaos;
mod crash;
mod leading;
mod life;
mod logs;
mod moving;
mod names;
mod outage;
mod pause;
mod process;
mod test_cluster;
mod worker;

use leading::books;
use test_cluster::TestCluster;

/// Where every worker begins. Run as a test, it sees that a worker without a proper role says so instead of passing.
#[test]
fn this_binary_is_its_own_worker_and_refuses_a_role_that_it_does_not_know() {
    if let Some(role) = worker::role() {
        worker::become_worker(&role);
    }
    let site = TestCluster::new(1);
    let mut worker = site.spawn("a", "{\"role\":\"juggler\"}".to_owned());
    assert_eq!(worker.wait().code(), Some(worker::BAD_ROLE));
    let said = site.said("a");
    assert!(said.contains("unknown variant `juggler`"), "{said}");
}
