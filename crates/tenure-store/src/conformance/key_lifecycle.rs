//! The life of a key, and what the store says of itself.

use std::collections::HashSet;
use std::time::Duration;

use super::{StoreUnderTest, create, update};
use crate::store::{Delete, DeleteIf, Entry, Put, PutIf};

/// What one connection wrote, another reads at once.
pub async fn a_value_is_read_back_by_every_connection(subject: &dyn StoreUnderTest) {
    let (a, b) = (subject.open().await, subject.open().await);
    let mut version = create(&*a, "life/k", b"0").await;
    for n in 1..50u8 {
        version = update(&*a, "life/k", &[n], &version).await;
        let expected = Entry {
            key: "life/k".to_owned(),
            value: [n].as_slice().into(),
            version: version.clone(),
        };
        assert_eq!(b.get("life/k").await, Ok(Some(expected.clone())));
        assert_eq!(b.list("life/").await.unwrap().entries, [expected]);
    }
    assert_eq!(b.get("life/none").await, Ok(None));
}

/// A create finds an existing key, and leaves it as it is.
pub async fn a_create_of_an_existing_key_loses(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let version = create(&*store, "life/k", b"first").await;
    let second = store.put_if(PutIf::create("life/k", *b"second")).await;
    assert_eq!(second, Ok(Put::Lost));
    let entry = store.get("life/k").await.unwrap().unwrap();
    assert_eq!((&*entry.value, entry.version), (&b"first"[..], version));
}

/// An update knows that its version is no longer the present one, even if the value is the same again.
pub async fn an_update_at_an_old_version_loses(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let first = create(&*store, "life/k", b"a").await;
    let second = update(&*store, "life/k", b"b", &first).await;
    let third = update(&*store, "life/k", b"a", &second).await;
    assert_eq!(HashSet::from([&first, &second, &third]).len(), 3);
    for old in [first, second] {
        let late = PutIf::update("life/k", *b"late", old);
        assert_eq!(store.put_if(late).await, Ok(Put::Lost));
    }
    let entry = store.get("life/k").await.unwrap().unwrap();
    assert_eq!((&*entry.value, entry.version), (&b"a"[..], third));
}

/// An update does not create.
pub async fn an_update_of_an_absent_key_loses(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let version = create(&*store, "life/other", b"v").await;
    let put = PutIf::update("life/absent", *b"v", version);
    assert_eq!(store.put_if(put).await, Ok(Put::Lost));
    assert_eq!(store.get("life/absent").await, Ok(None));
}

/// A delete removes the version that it names or nothing.
pub async fn a_delete_at_an_old_version_loses(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let first = create(&*store, "life/k", b"a").await;
    let second = update(&*store, "life/k", b"b", &first).await;
    let late = DeleteIf::new("life/k", first);
    assert_eq!(store.delete_if(late).await, Ok(Delete::Lost));
    assert!(store.get("life/k").await.unwrap().is_some());
    let delete = DeleteIf::new("life/k", second);
    assert_eq!(store.delete_if(delete.clone()).await, Ok(Delete::Won));
    assert_eq!(store.get("life/k").await, Ok(None));
    assert_eq!(store.delete_if(delete).await, Ok(Delete::Lost));
}

/// A key that comes back has a new version, and nobody's old one fits.
pub async fn delete_and_recreate_never_reuse_a_version(subject: &dyn StoreUnderTest) {
    let (a, b) = (subject.open().await, subject.open().await);
    let mut seen = HashSet::new();
    let mut oldest = None;
    for round in 0..20 {
        let store = if round % 2 == 0 { &a } else { &b };
        let created = create(&**store, "life/k", b"same").await;
        let updated = update(&**store, "life/k", b"same", &created).await;
        assert!(seen.insert(created.clone()) && seen.insert(updated.clone()));
        let old = oldest.get_or_insert(created).clone();
        if round > 0 {
            let late = PutIf::update("life/k", *b"late", old);
            assert_eq!(store.put_if(late).await, Ok(Put::Lost));
        }
        let delete = DeleteIf::new("life/k", updated);
        assert_eq!(store.delete_if(delete).await, Ok(Delete::Won));
    }
}

/// The revision grows with each write, by whomever, and with nothing else. Only one opened store's are compared.
pub async fn the_revision_moves_on_writes_and_not_on_reads(subject: &dyn StoreUnderTest) {
    let (a, b) = (subject.open().await, subject.open().await);
    let mut last = a.revision().await.unwrap();
    let version = create(&*a, "life/k", b"v").await;
    let steps = [
        a.revision().await.unwrap(),
        {
            let version = update(&*b, "life/k", b"w", &version).await;
            let revision = a.dedicated().unwrap().revision().await.unwrap();
            let delete = DeleteIf::new("life/k", version);
            a.delete_if(delete).await.unwrap();
            revision
        },
        a.revision().await.unwrap(),
    ];
    for step in steps {
        assert!(step > last, "{step:?} after {last:?}");
        last = step;
    }
    a.get("life/k").await.unwrap();
    a.list("").await.unwrap();
    a.get_many(vec!["life/k".to_owned()]).await;
    a.identity().await.unwrap();
    assert_eq!(a.list("").await.unwrap().revision, last);
    let lost = PutIf::update("life/k", *b"x", version);
    assert_eq!(a.put_if(lost).await, Ok(Put::Lost));
    assert_eq!(a.revision().await, Ok(last));
}

/// The identity belongs to the contents, not to the connection.
pub async fn the_identity_survives_reopening(subject: &dyn StoreUnderTest) {
    let first = subject.open().await;
    let identity = first.identity().await.unwrap();
    assert!(!identity.is_empty());
    create(&*first, "life/k", b"v").await;
    drop(first);
    let again = subject.open().await;
    assert_eq!(again.identity().await.as_ref(), Ok(&identity));
    assert!(again.get("life/k").await.unwrap().is_some());
    let dedicated = again.dedicated().unwrap();
    assert_eq!(dedicated.identity().await, Ok(identity));
}

/// What the store says of itself can be used as it is.
pub async fn the_facts_about_the_store_make_sense(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let info = store.info();
    assert!(!info.kind.is_empty());
    assert!(info.url.contains(':'), "{}", info.url);
    assert!(Duration::ZERO < info.min_ttl && info.min_ttl <= info.default_ttl);
    if let Some(now) = store.now().await.unwrap() {
        let later = store.now().await.unwrap().unwrap();
        let apart = later.duration_since(now).unwrap_or_default();
        assert!(apart < Duration::from_secs(60));
    }
}

/// Calls that are given up, at once or a little later, leave a store that answers truly.
pub async fn a_dropped_call_does_not_wedge_the_store(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    for n in 0..60u64 {
        let key = format!("life/{n}");
        let patience = Duration::from_micros(n * 20);
        let put = store.put_if(PutIf::create(&key, *b"v"));
        let put = tokio::time::timeout(patience, put).await;
        let list = tokio::time::timeout(patience, store.list("life/")).await;
        drop(list);
        let batch = (0..20).map(|i| PutIf::create(format!("{key}/{i}"), *b"v"));
        let many = store.put_many(batch.collect());
        drop(tokio::time::timeout(patience, many).await);
        if let Ok(answer) = put {
            assert!(matches!(answer, Ok(Put::Won(_))), "{answer:?}");
            assert!(store.get(&key).await.unwrap().is_some());
        }
    }
    // Whatever landed, each key can be settled by reading.
    for n in 0..60u64 {
        let key = format!("life/{n}");
        let put = match store.get(&key).await.unwrap() {
            Some(entry) => PutIf::update(&key, *b"w", entry.version),
            None => PutIf::create(&key, *b"w"),
        };
        let answer = store.put_if(put).await.unwrap();
        assert!(matches!(answer, Put::Won(_)), "{key}");
    }
}

/// A dedicated connection reads and writes the same keys.
pub async fn a_dedicated_connection_sees_the_same_store(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let dedicated = store.dedicated().unwrap();
    let version = create(&*dedicated, "life/k", b"v").await;
    let entry = store.get("life/k").await.unwrap().unwrap();
    assert_eq!(entry.version, version);
    update(&*store, "life/k", b"w", &version).await;
    drop(store);
    let entry = dedicated.get("life/k").await.unwrap().unwrap();
    assert_eq!(&*entry.value, b"w");
}
