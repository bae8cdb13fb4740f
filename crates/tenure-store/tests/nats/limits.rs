//! What NATS does not take: too much in one value, too much in all.

use tenure_store::servers::nats::{Nats, NatsOptions};
use tenure_store::{DeleteIf, Put, PutIf, StoreError, open};

use super::denial;

#[tokio::test]
async fn a_full_store_is_told_with_the_way_out_and_reads_go_on() {
    let nats = NatsOptions::new().storage("max_file_store: 4MB").start();
    let store = open(&nats.url("shop")).await.unwrap();
    let mut won = Vec::new();
    let e = loop {
        let put = PutIf::create(format!("big/{}", won.len()), vec![b'x'; 64 << 10]);
        match store.put_if(put).await {
            Ok(Put::Won(version)) => won.push(version),
            Ok(Put::Lost) => panic!("nobody else writes"),
            Err(e) => break e,
        }
        assert!(won.len() < 200, "4 MB are full at some point");
    };
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
    assert!(e.to_string().contains("max_file_store"), "{e}");
    // Nothing was written, and reads go on.
    let refused = format!("big/{}", won.len());
    assert_eq!(store.get(&refused).await, Ok(None));
    assert_eq!(store.list("").await.unwrap().entries.len(), won.len());
}

#[tokio::test]
async fn a_value_that_is_too_large_is_refused_by_name_and_its_neighbours_are_written() {
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    let mut puts = vec![PutIf::create("huge", vec![0; 3 << 20])];
    puts.extend((0..3).map(|n| PutIf::create(format!("k/{n}"), *b"v")));
    let answers = store.put_many(puts).await;
    let reason = denial(answers[0].clone());
    assert!(
        reason.contains("$KV.shop.huge") && reason.contains("max_payload"),
        "{reason}"
    );
    assert!(answers[1..].iter().all(|a| matches!(a, Ok(Put::Won(_)))));
}

#[tokio::test]
async fn a_batch_that_names_a_key_twice_applies_both_in_order() {
    let nats = Nats::start();
    let store = open(&nats.url("shop")).await.unwrap();
    let puts = vec![
        PutIf::create("k", *b"first"),
        PutIf::create("k", *b"second"),
    ];
    let answers = store.put_many(puts).await;
    let Ok(Put::Won(version)) = &answers[0] else {
        panic!("{answers:?}");
    };
    assert_eq!(answers[1], Ok(Put::Lost));
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!(&*entry.value, b"first");
    let deletes = vec![DeleteIf::new("k", version.clone()); 2];
    let answers = store.delete_many(deletes).await;
    assert_eq!(answers[1], Ok(tenure_store::Delete::Lost));
}
