use std::time::Duration;

use super::*;
use crate::memory::MemoryStore;
use crate::watch::WatchEnd;

fn faulty(config: FaultConfig) -> (MemoryStore, FaultStore, FaultHandle) {
    let inner = MemoryStore::new();
    let (store, handle) = FaultStore::new(Arc::new(inner.clone()), config);
    (inner, store, handle)
}

fn mixed(seed: u64) -> FaultConfig {
    FaultConfig {
        seed,
        unavailable_permille: 200,
        lost_reply_permille: 200,
        delay_permille: 300,
        delay_max: Duration::from_millis(50),
        watch_cut_permille: 100,
    }
}

/// What 300 writes meet, and when.
async fn transcript(seed: u64) -> Vec<String> {
    let (inner, store, _) = faulty(mixed(seed));
    let begun = tokio::time::Instant::now();
    let mut lines = Vec::new();
    for n in 0..300 {
        let key = format!("k/{n}");
        let answer = store.put_if(PutIf::create(&key, *b"v")).await;
        let landed = inner.get(&key).await.unwrap().is_some();
        lines.push(format!("{:?} {answer:?} {landed}", begun.elapsed()));
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_course_of_faults_and_another_seed_another() {
    let first = transcript(7).await;
    assert_eq!(first, transcript(7).await);
    assert_ne!(first, transcript(8).await);
    for fault in ["rejected", "reply lost", "Won"] {
        assert!(first.iter().any(|l| l.contains(fault)), "no {fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_writes_never_land_and_lost_replies_always_do() {
    for line in transcript(3).await {
        if line.contains("Unavailable") {
            assert!(line.ends_with("false"), "{line}");
        } else {
            assert!(line.ends_with("true"), "{line}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_refuses_every_call_until_healed() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    faults.outage();
    let refused = store.put_if(PutIf::create("k", *b"v")).await.unwrap_err();
    assert!(refused.wrote_nothing());
    assert!(store.list("").await.is_err());
    assert!(store.dedicated().unwrap().revision().await.is_err());
    let batch = store.put_many(vec![PutIf::create("k", *b"v")]).await;
    assert!(batch[0].is_err());
    assert!(inner.get("k").await.unwrap().is_none());
    faults.heal();
    assert!(store.list("").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hung_write_lands_on_healing_though_its_caller_gave_up() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    faults.hang();
    let write = store.put_if(PutIf::create("k", *b"v"));
    let given_up = tokio::time::timeout(Duration::from_secs(1), write).await;
    given_up.unwrap_err();
    assert!(inner.get("k").await.unwrap().is_none());
    let mut watch = inner.watch("", Revision(0)).await.unwrap();
    faults.heal();
    let landed = tokio::time::timeout(Duration::from_secs(1), watch.next()).await;
    let landed = landed.expect("the write lands").unwrap();
    assert_eq!(landed.changes[0].key(), "k");
}

#[tokio::test(start_paused = true)]
async fn a_hung_write_that_is_cut_off_is_unknown_to_its_caller() {
    let (_, store, faults) = faulty(FaultConfig::none(1));
    faults.hang();
    let writer = tokio::spawn(async move { store.put_if(PutIf::create("k", *b"v")).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    faults.outage();
    let answer = writer.await.unwrap();
    assert!(matches!(answer, Err(StoreError::Unknown { .. })));
}

#[tokio::test(start_paused = true)]
async fn slow_replies_come_after_the_write_and_slow_calls_before_it() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    let patience = Duration::from_millis(10);
    faults.slow_replies(Duration::from_secs(1));
    let write = store.put_if(PutIf::create("late answer", *b"v"));
    tokio::time::timeout(patience, write).await.unwrap_err();
    assert!(inner.get("late answer").await.unwrap().is_some());

    faults.heal();
    faults.slow(Duration::from_secs(1));
    let write = store.put_if(PutIf::create("late write", *b"v"));
    tokio::time::timeout(patience, write).await.unwrap_err();
    assert!(inner.get("late write").await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(inner.get("late write").await.unwrap().is_some());
}

#[tokio::test]
async fn lost_replies_are_unknown_and_the_write_is_there() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    faults.lose_replies(1000);
    let answer = store.put_if(PutIf::create("k", *b"v")).await;
    assert!(matches!(answer, Err(StoreError::Unknown { .. })));
    assert!(inner.get("k").await.unwrap().is_some());
}

#[tokio::test]
async fn a_batch_fails_key_by_key() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    faults.fail_where(|op, key| op == Op::Put && key.ends_with("bad"));
    let puts = ["a", "bad", "c"].map(|key| PutIf::create(key, *b"v"));
    let answers = store.put_many(puts.into()).await;
    let won: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(won, [true, false, true]);
    assert_eq!(inner.list("").await.unwrap().entries.len(), 2);
    assert!(store.get("bad").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_be_cut_muted_and_late() {
    let (inner, store, faults) = faulty(FaultConfig::none(1));
    let mut watch = store.watch("", Revision(0)).await.unwrap();

    faults.mute_watch();
    inner.put_if(PutIf::create("a", *b"v")).await.unwrap();
    let patience = Duration::from_secs(1);
    tokio::time::timeout(patience, watch.next())
        .await
        .unwrap_err();
    faults.heal();
    assert_eq!(watch.next().await.unwrap().changes[0].key(), "a");

    faults.slow(Duration::from_secs(5));
    inner.put_if(PutIf::create("b", *b"v")).await.unwrap();
    let before = tokio::time::Instant::now();
    tokio::time::timeout(patience, watch.next())
        .await
        .unwrap_err();
    assert_eq!(watch.next().await.unwrap().changes[0].key(), "b");
    assert!(before.elapsed() >= Duration::from_secs(5));

    faults.cut_watch();
    let end = watch.next().await.unwrap_err();
    assert!(matches!(end, WatchEnd::Closed { .. }), "{end}");
    assert!(store.watch("", Revision(0)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hung_keep_alive_still_counts_on_healing_though_its_caller_gave_up() {
    let inner = MemoryStore::with_leases();
    let (store, faults) = FaultStore::new(Arc::new(inner.clone()), FaultConfig::none(1));
    let (leases, id) = (store.leases().unwrap(), LeaseId(1));
    leases.grant(id, Duration::from_secs(10)).await.unwrap();
    faults.hang();
    let kept = leases.keep_alive(id, "k");
    let patience = Duration::from_secs(9);
    tokio::time::timeout(patience, kept).await.unwrap_err();
    faults.heal();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(leases.is_alive(id).await, Ok(true));
    faults.outage();
    assert!(leases.is_alive(id).await.unwrap_err().wrote_nothing());
}
