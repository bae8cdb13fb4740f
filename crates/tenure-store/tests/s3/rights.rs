//! Keys and buckets that are not what they should be.

use tenure_store::servers::s3::{BUCKET, OPERATOR, S3Service, S3ServiceKind, S3User};
use tenure_store::{PutIf, open, open_existing};

use super::{bounded, create, denial};

const LOOKER: S3User = S3User {
    key: "looker",
    secret: "looker-hunter2",
    rights: &["Read", "List"],
};

#[tokio::test]
async fn who_may_only_read_is_told_so_and_may_look() {
    let s3 = S3Service::start_with(S3ServiceKind::Seaweed, &[OPERATOR, LOOKER]);
    let url = s3.url_as(s3.port(), "shop", LOOKER.key);
    let store = open(&s3.url("shop")).await.unwrap();
    create(&*store, "before").await;

    let reason = denial(bounded(open(&url)).await);
    assert!(
        reason.contains("denies this access key to write"),
        "{reason}"
    );
    let looker = open_existing(&url).await.unwrap();
    assert_eq!(looker.list("").await.unwrap().entries.len(), 1);
    let reason = denial(looker.put_if(PutIf::create("k", *b"v")).await);
    assert!(reason.contains("docs/stores/s3.md"), "{reason}");
    looker.examine().await.unwrap();
    let told = format!("{looker:?} {:?} {reason}", looker.info());
    assert!(!told.contains("hunter2"), "{told}");
    assert_eq!(store.get("k").await, Ok(None));
}

#[tokio::test]
async fn wrong_keys_and_missing_buckets_are_told_apart() {
    let s3 = S3Service::start();
    let url = s3.url("shop");
    let reason = denial(bounded(open(&url.replace(BUCKET, "elsewhere"))).await);
    assert!(
        reason.contains("bucket \"elsewhere\" does not exist"),
        "{reason}"
    );
    let reason = denial(bounded(open_existing(&url)).await);
    assert!(reason.contains("there is no store at"), "{reason}");

    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    for (key, secret) in [(OPERATOR.key, "hunter2"), ("nobody", "hunter2")] {
        let text = format!("[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n");
        std::fs::write(&keys, text).unwrap();
        let base = url.split("&credentials").next().unwrap();
        let reason = denial(bounded(open(&format!("{base}&credentials={}", keys.display()))).await);
        assert!(reason.contains("rejects this access key"), "{reason}");
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}

#[tokio::test]
async fn what_a_bucket_says_of_itself_is_looked_at() {
    let s3 = S3Service::start();
    let store = open(&s3.url("shop")).await.unwrap();
    let findings = store.examine().await.unwrap();
    let about: Vec<&str> = findings.iter().map(|f| f.about).collect();
    let wanted = [
        "service",
        "conditional writes",
        "latency",
        "signatures",
        "versioning",
        "object lock",
        "lifecycle",
    ];
    assert_eq!(about, wanted);
    let conditions = &findings[1].found;
    assert!(
        conditions.contains("one of the concurrent writers succeeded"),
        "{conditions}"
    );
}
