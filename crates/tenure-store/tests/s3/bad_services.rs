//! Services that must not be used: real ones, and imitations of what others get wrong.

use tenure_store::s3::S3Store;
use tenure_store::servers::s3::{OPERATOR, S3Service, S3ServiceKind};
use tenure_store::{PutIf, StoreError, open, open_existing};

use super::imitation::{Fault, Imitation};
use super::{bounded, create, denial};

#[tokio::test]
async fn rclone_which_accepts_every_write_is_refused() {
    let s3 = S3Service::start_with(S3ServiceKind::Rclone, &[OPERATOR]);
    let reason = denial(bounded(open(&s3.url("x"))).await);
    assert!(
        reason.contains("concurrent writers with If-None-Match: *"),
        "{reason}"
    );
    assert!(reason.contains("docs/stores/s3.md"), "{reason}");
    // Nothing was made, so those who only look do not take it for a store either.
    denial(bounded(open_existing(&s3.url("x"))).await);
}

#[tokio::test]
async fn services_that_ignore_or_lose_conditions_are_refused() {
    for (fault, wanted) in [
        (Fault::IgnoresIfNoneMatch, "with If-None-Match: *"),
        (Fault::IgnoresIfMatch, "If-Match"),
        (Fault::ChecksThenWrites, "instead of one"),
        (
            Fault::MatchesNothing,
            "If-Match with the ETag of the object",
        ),
        (
            Fault::MatchesAnything,
            "If-Match with the ETag of an older version",
        ),
        (
            Fault::CreatesOnUpdate,
            "creates an object that does not exist",
        ),
    ] {
        let service = Imitation::start(fault).await;
        let reason = denial(bounded(open(&service.url("x"))).await);
        assert!(reason.contains(wanted), "{fault:?}: {reason}");
        assert!(reason.contains(&service.address()), "{reason}");
    }
}

#[tokio::test]
async fn a_service_that_is_right_is_used_however_it_writes_etags() {
    for fault in [
        Fault::None,
        Fault::BareEtags,
        Fault::IgnoresConditionsOfRemovals,
    ] {
        let service = Imitation::start(fault).await;
        let store = bounded(open(&service.url("x"))).await.unwrap();
        let version = create(&*store, "k").await;
        // Those who only look have not raced anybody, and know how ETags are written all the same.
        let looker = open_existing(&service.url("x")).await.unwrap();
        let put = PutIf::update("k", *b"w", version);
        assert!(
            matches!(looker.put_if(put).await, Ok(tenure_store::Put::Won(_))),
            "{fault:?}"
        );
        assert_eq!(service.objects_of_the_probe(), 0, "{fault:?}");
    }
}

#[tokio::test]
async fn the_trial_of_a_service_takes_a_known_number_of_requests() {
    let service = Imitation::start(Fault::None).await;
    let store = S3Store::open(&service.url("x")).await.unwrap();
    let asked = store.requests();
    assert_eq!((asked.puts, asked.gets), (80, 8));
    assert_eq!((asked.lists, asked.deletes), (1, 7));
    let looker = S3Store::open_existing(&service.url("x")).await.unwrap();
    let asked = looker.requests();
    assert_eq!((asked.class_a(), asked.class_b()), (0, 1));
}

#[tokio::test]
async fn a_clock_that_the_service_refuses_is_corrected_by_the_services_own() {
    let service = Imitation::start(Fault::ClockIsHoursAhead).await;
    let store = bounded(open(&service.url("x"))).await.unwrap();
    create(&*store, "k").await;
    let now = store.now().await.unwrap().expect("it has a clock");
    let ahead = now.duration_since(std::time::SystemTime::now()).unwrap();
    assert!(
        ahead > std::time::Duration::from_secs(4 * 3600),
        "{ahead:?}"
    );
    let findings = store.examine().await.unwrap();
    let clock = findings.iter().find(|f| f.about == "signatures").unwrap();
    assert!(clock.found.contains("behind"), "{clock:?}");
}

#[tokio::test]
async fn refusals_name_what_to_change() {
    for (fault, wanted) in [
        (Fault::AlwaysSkewed, "set its clock"),
        (Fault::WrongRegion, "set AWS_REGION=eu-central-1"),
        (Fault::Redirects, "eu-central-1"),
        (Fault::NoBucket, "bucket \"shop\" does not exist"),
        (Fault::BadKey, "rejects this access key"),
        (Fault::Forbidden, "denies this access key to read"),
        (Fault::NotImplemented, "NotImplemented"),
    ] {
        let service = Imitation::start(fault).await;
        let reason = denial(bounded(open(&service.url("x"))).await);
        assert!(reason.contains(wanted), "{fault:?}: {reason}");
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[tokio::test]
async fn what_a_busy_service_says_of_a_write_is_not_taken_for_a_lost_race() {
    for (fault, wrote_nothing) in [
        (Fault::ConflictsOnWrites, false),
        (Fault::FailsWrites, false),
        (Fault::SlowsDownWrites, true),
        (Fault::TimesOutWrites, false),
    ] {
        let service = Imitation::start(Fault::None).await;
        let store = open(&service.url("x")).await.unwrap();
        let version = create(&*store, "k").await;
        service.become_faulty(fault);
        let puts = [
            PutIf::update("k", *b"w", version),
            PutIf::create("l", *b"w"),
        ];
        for put in puts {
            let e = bounded(store.put_if(put)).await.unwrap_err();
            assert_eq!(e.wrote_nothing(), wrote_nothing, "{fault:?}: {e:?}");
            assert!(!matches!(e, StoreError::Denied { .. }), "{fault:?}: {e:?}");
        }
    }
}

#[tokio::test]
async fn a_write_that_was_answered_with_a_conflict_and_stands_there_was_won() {
    let service = Imitation::start(Fault::None).await;
    let store = open(&service.url("x")).await.unwrap();
    service.become_faulty(Fault::ConflictsAfterWriting);
    let version = create(&*store, "k").await;
    let entry = store.get("k").await.unwrap().unwrap();
    assert_eq!(entry.version, version);
}
