//! What etcd does not take: too much in one value, too much in all.

use std::time::Duration;

use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease};
use tenure_store::{LeaseId, LeaseState, Put, PutIf, StoreError, open};

use super::denial;

#[tokio::test]
async fn a_full_database_is_told_with_the_way_out_and_recovers() {
    let options = EtcdOptions::new(EtcdRelease::V3_4);
    let etcd = options.arg("--quota-backend-bytes=8388608").start();
    let store = open(&etcd.url("shop")).await.unwrap();
    let leases = store.leases().unwrap();
    let id = LeaseId(0x5face);
    leases.grant(id, Duration::from_secs(60)).await.unwrap();
    let put = PutIf::create("session", *b"v").under(Some(id));
    store.put_if(put).await.unwrap();
    let mut e = None;
    for n in 0..400 {
        let put = PutIf::create(format!("big/{n}"), vec![b'x'; 64 << 10]);
        if let Err(full) = store.put_if(put).await {
            e = Some(full);
            break;
        }
    }
    let e = e.expect("8 MiB are full at some point");
    // The write that crosses the line is applied although it is refused.
    assert!(matches!(e, StoreError::Unknown { .. }), "{e:?}");
    for way_out in ["NOSPACE", "compact", "defragment", "alarm disarm"] {
        assert!(e.to_string().contains(way_out), "{e}");
    }
    // Whoever is there stays: reads and leases go on.
    assert!(store.get("session").await.unwrap().is_some());
    let kept = leases.keep_alive(id, "session").await;
    assert!(matches!(kept, Ok(LeaseState::Alive(_))), "{kept:?}");

    etcd.ctl(&["del", "--prefix", "shop/big/"]);
    let now = store.revision().await.unwrap().0.to_string();
    etcd.ctl(&["compact", "--physical", &now]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    let put = store.put_if(PutIf::create("after", *b"v")).await;
    assert!(matches!(put, Ok(Put::Won(_))), "{put:?}");
}

#[tokio::test]
async fn a_value_that_is_too_large_is_refused_by_name_and_its_neighbours_are_written() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&etcd.url("shop")).await.unwrap();
    for size in [1600 << 10, 3 << 20] {
        let put = PutIf::create("huge", vec![0; size]);
        let reason = denial(store.put_if(put).await);
        assert!(reason.contains("\"shop/huge\""), "{reason}");
        assert!(reason.contains("--max-request-bytes"), "{reason}");
    }
    let mut puts = vec![PutIf::create("huge", vec![0; 3 << 20])];
    puts.extend((0..3).map(|n| PutIf::create(format!("k/{n}"), *b"v")));
    let answers = store.put_many(puts).await;
    denial(answers[0].clone());
    assert!(answers[1..].iter().all(|a| matches!(a, Ok(Put::Won(_)))));
}

#[tokio::test]
async fn a_batch_with_one_lease_that_is_gone_writes_the_others() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&etcd.url("shop")).await.unwrap();
    let mut puts: Vec<PutIf> = (0..5)
        .map(|n| PutIf::create(format!("k/{n}"), *b"v"))
        .collect();
    puts[2].lease = Some(LeaseId(0x90e));
    let answers = store.put_many(puts).await;
    for (n, answer) in answers.into_iter().enumerate() {
        if n == 2 {
            assert!(denial(answer).contains("lease"));
        } else {
            assert!(matches!(answer, Ok(Put::Won(_))), "{answer:?}");
        }
    }
    assert_eq!(store.list("k/").await.unwrap().entries.len(), 4);
}

#[tokio::test]
async fn a_batch_that_names_a_key_twice_applies_both_in_order() {
    let etcd = Etcd::start(EtcdRelease::V3_4);
    let store = open(&etcd.url("shop")).await.unwrap();
    let puts = vec![
        PutIf::create("k", *b"first"),
        PutIf::create("k", *b"second"),
    ];
    let answers = store.put_many(puts).await;
    assert!(matches!(answers[0], Ok(Put::Won(_))), "{answers:?}");
    assert_eq!(answers[1], Ok(Put::Lost));
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!(&*entry.value, b"first");
}
