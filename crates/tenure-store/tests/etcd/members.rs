//! Three members of which some fail.

use std::time::Duration;

use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease};
use tenure_store::{LeaseId, LeaseState, PutIf, WatchEnd, open};

use super::{bounded, create, until_it_writes};

fn three() -> Etcd {
    // Quicker to elect than as it comes, by half.
    let options = EtcdOptions::new(EtcdRelease::V3_4).members(3);
    let options = options.arg("--heartbeat-interval=50");
    options.arg("--election-timeout=500").start()
}

#[tokio::test]
async fn a_member_that_hangs_is_left_for_the_next_one() {
    let etcd = three();
    let leader = etcd.leader();
    let followers: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    let (a, b) = (followers[0], followers[1]);
    let url = format!("etcd://{},{}/shop", etcd.endpoint(a), etcd.endpoint(b));
    // Opened while one of them hangs, it is with the other.
    etcd.freeze(a);
    let store = open(&url).await.unwrap();
    create(&*store, "opened").await;
    etcd.thaw(a);
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("", from).await.unwrap();
    etcd.freeze(b);
    let (took, failures) = until_it_writes(&*store, "k").await;
    assert!(!failures.is_empty(), "it was with the one that hangs");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
    etcd.thaw(b);
}

#[tokio::test]
async fn writes_go_on_when_the_leader_is_killed_and_no_confirmed_one_is_lost() {
    let mut etcd = three();
    let store = open(&etcd.url("shop")).await.unwrap();
    let leases = store.leases().unwrap();
    let id = LeaseId(0x1eade4);
    let ttl = leases.grant(id, Duration::from_secs(20)).await.unwrap();
    let put = PutIf::create("leased", *b"v").under(Some(id));
    store.put_if(put).await.unwrap();
    for n in 0..20 {
        create(&*store, &format!("before/{n}")).await;
    }
    etcd.kill(etcd.leader());
    let (took, _) = until_it_writes(&*store, "after").await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    let listed = bounded(store.list("before/")).await.unwrap();
    assert_eq!(listed.entries.len(), 20);
    assert_eq!(
        bounded(leases.keep_alive(id, "leased")).await,
        Ok(LeaseState::Alive(ttl))
    );
}

#[tokio::test]
async fn a_member_without_a_leader_is_told_as_such_and_writes_nothing() {
    let mut etcd = three();
    let store = open(&etcd.url("shop")).await.unwrap();
    let leader = etcd.leader();
    let last = (leader + 1) % 3;
    let beside = format!("etcd://{}/shop", etcd.endpoint(last));
    let beside = open(&beside).await.unwrap();
    create(&*store, "k").await;
    let from = beside.revision().await.unwrap();
    let mut watch = beside.watch("", from).await.unwrap();
    for n in (0..3).filter(|n| *n != last) {
        etcd.kill(n);
    }
    let end = bounded(watch.next()).await;
    assert!(matches!(end, Err(WatchEnd::Closed { .. })), "{end:?}");
    let said = loop {
        let e = bounded(store.put_if(PutIf::create("l", *b"v"))).await;
        let e = e.expect_err("one of three is too few");
        if e.wrote_nothing() && e.to_string().contains("no leader") {
            break e.to_string();
        }
    };
    assert!(said.contains("too few members"), "{said}");
    etcd.restart(leader);
    until_it_writes(&*store, "after").await;
    assert_eq!(store.get("l").await, Ok(None));
}
