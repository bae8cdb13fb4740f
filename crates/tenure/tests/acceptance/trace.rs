//! What a node writes down of itself, and what it does if it cannot.

use tenure::StartError;
use tenure_sim::validate::validate;

use super::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn what_two_nodes_wrote_down_is_run_again_with_the_same_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let (world, handler) = (TestCluster::new(), Counter::default());
    let path = |name: &str| dir.path().join(name);
    let start = |name: &str| started(world.node(name, &handler).0.trace(path(name)));
    let a = start("a").await.unwrap();
    let b = start("b").await.unwrap();
    until("both own something", async || {
        !a.owned().is_empty() && !b.owned().is_empty()
    })
    .await;
    // One leaves, one is gone all of a sudden, and one comes back with the same file.
    a.stop().await.unwrap();
    owns(&b, 4).await;
    drop(b);
    let a = start("a").await.unwrap();
    owns(&a, 4).await;
    a.stop().await.unwrap();
    let report = validate([path("a"), path("b")]).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.processes, report.nodes.len()), (3, 2));
    assert_eq!((report.cut_off, report.replayed), (0, report.steps));
    assert_eq!(report.failovers, 4, "{report:#?}");
    assert!(report.openings >= 8, "{report:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_costs_the_trace_and_nothing_else() {
    let (world, handler) = (TestCluster::new(), Counter::default());
    let builder = world.node("a", &handler).0.trace("/dev/full");
    let a = started(builder).await.unwrap();
    owns(&a, 4).await;
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(a.owned().len(), 4);
    a.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_trace_that_cannot_be_begun_is_refused_before_anything_is_owned() {
    let (world, handler) = (TestCluster::new(), Counter::default());
    let builder = world.node("a", &handler).0.trace("/nowhere/trace");
    let Err(StartError::Trace(error)) = started(builder).await else {
        panic!("there is no such directory");
    };
    let said = error.to_string();
    assert!(
        said.starts_with("trace file /nowhere/trace cannot be written: "),
        "{said}"
    );
    assert_eq!(handler.journal.lines(), Vec::<String>::new());
}
