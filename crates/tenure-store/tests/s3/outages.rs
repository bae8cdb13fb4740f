//! A service that was away is probed again before anything is written to it.

use std::time::Duration;

use tenure_store::s3::S3Store;
use tenure_store::servers::s3::S3Service;
use tenure_store::{Put, PutIf, Store, StoreError, open};

use super::imitation::{Fault, Imitation};
use super::{bounded, create, until_it_writes};

/// Writes of one probe.
const PROBE: u64 = 79;

async fn opened() -> (Imitation, S3Store) {
    let service = Imitation::start(Fault::None).await;
    let store = S3Store::open(&service.url("x")).await.unwrap();
    (service, store)
}

/// A second in which no call is answered.
async fn away(service: &Imitation, store: &S3Store) {
    service.become_faulty(Fault::Away);
    store.get("k").await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let e = store.put_if(PutIf::create("l", *b"v")).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
}

#[tokio::test]
async fn nothing_is_written_after_an_outage_before_the_service_has_passed_the_probe_again() {
    for fault in [
        Fault::IgnoresIfMatch,
        Fault::IgnoresIfNoneMatch,
        Fault::ChecksThenWrites,
    ] {
        let (service, store) = opened().await;
        let version = create(&store, "k").await;
        away(&service, &store).await;
        // It comes back as a service that lets more than one writer win.
        service.become_faulty(fault);
        let objects = |service: &Imitation| {
            let mut objects = service.objects();
            objects.retain(|name| !name.contains("probe/"));
            objects
        };
        let before = objects(&service);
        for n in 0..3 {
            let puts = [
                PutIf::update("k", format!("second {n}").into_bytes(), version.clone()),
                PutIf::create("l", *b"v"),
            ];
            for put in puts {
                let e = bounded(store.put_if(put)).await.unwrap_err();
                assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
                assert!(
                    e.to_string()
                        .contains("the test of its conditional writes has failed"),
                    "{e}"
                );
                assert!(e.to_string().contains("cannot be used"), "{e}");
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        assert_eq!(objects(&service), before, "nothing was written");
        // Reads go on, and so does everything once the service is right.
        let entry = store.get("k").await.unwrap().unwrap();
        assert_eq!(entry.version, version);
        service.become_faulty(Fault::None);
        let (took, failures) = until_it_writes(&store, "after").await;
        assert!(took < Duration::from_secs(3), "{took:?}: {failures:?}");
        let put = store.put_if(PutIf::update("k", *b"w", version)).await;
        assert!(matches!(put, Ok(Put::Won(_))), "{put:?}");
        assert_eq!(service.objects_of_the_probe(), 0);
    }
}

#[tokio::test]
async fn one_probe_follows_an_outage_and_the_write_that_causes_it_waits_for_it() {
    let (service, store) = opened().await;
    create(&store, "k").await;
    // A call that fails once is no outage.
    service.become_faulty(Fault::Away);
    store.get("k").await.unwrap_err();
    service.become_faulty(Fault::None);
    let before = store.requests().puts;
    create(&store, "m").await;
    assert_eq!(store.requests().puts, before + 1);
    away(&service, &store).await;
    service.become_faulty(Fault::None);
    let before = store.requests().puts;
    create(&store, "n").await;
    create(&store, "o").await;
    assert_eq!(store.requests().puts, before + PROBE + 2);
    // Connections of their own share what was found out.
    let dedicated = store.dedicated().unwrap();
    create(&*dedicated, "p").await;
    assert_eq!(store.requests().puts, before + PROBE + 3);
}

#[tokio::test]
async fn a_real_service_that_was_killed_and_started_again_is_probed_again() {
    let mut s3 = S3Service::start();
    let store = S3Store::open(&s3.url("shop")).await.unwrap();
    create(&store, "k").await;
    let before = store.requests().puts;
    s3.kill();
    // The first finds a dead connection, the second none.
    for _ in 0..2 {
        store.get("k").await.unwrap_err();
    }
    s3.restart();
    let (took, failures) = until_it_writes(&store, "after").await;
    let probed = store.requests().puts - before;
    assert!(probed > PROBE, "{probed} writes, {took:?}, {failures:?}");
    // Those who open it now find it right, too.
    open(&s3.url("shop")).await.unwrap();
}
