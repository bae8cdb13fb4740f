//! Batches: many keys at once, each for itself.

use super::{StoreUnderTest, create, update};
use crate::store::{Delete, DeleteIf, Put, PutIf};

/// One key's lost race says nothing about the others, and answers come in the order of the questions.
pub async fn a_batch_answers_each_key_by_itself(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let taken = create(&*store, "batch/taken", b"v").await;
    let puts = vec![
        PutIf::create("batch/new", *b"1"),
        PutIf::create("batch/taken", *b"2"),
        PutIf::update("batch/absent", *b"3", taken.clone()),
        PutIf::update("batch/taken", *b"4", taken.clone()),
    ];
    let answers = store.put_many(puts).await;
    let won: Vec<bool> = answers
        .iter()
        .map(|a| matches!(a, Ok(Put::Won(_))))
        .collect();
    assert_eq!(won, [true, false, false, true]);

    let keys = ["batch/taken", "batch/absent", "batch/new"];
    let entries = store.get_many(keys.map(str::to_owned).into()).await;
    let values: Vec<Option<Vec<u8>>> = entries
        .into_iter()
        .map(|e| e.unwrap().map(|e| e.value.to_vec()))
        .collect();
    assert_eq!(values, [Some(b"4".to_vec()), None, Some(b"1".to_vec())]);

    let Ok(Put::Won(new)) = &answers[0] else {
        panic!("it was created");
    };
    let deletes = vec![
        DeleteIf::new("batch/taken", taken),
        DeleteIf::new("batch/new", new.clone()),
        DeleteIf::new("batch/absent", new.clone()),
    ];
    let answers = store.delete_many(deletes).await;
    let wanted = [Delete::Lost, Delete::Won, Delete::Lost].map(Ok);
    assert_eq!(answers, wanted);
}

/// A whole keyspace is written, read and removed in one call each.
pub async fn a_batch_takes_five_thousand_keys(subject: &dyn StoreUnderTest) {
    const COUNT: usize = 5000;
    let store = subject.open().await;
    let key = |n: usize| format!("batch/{n:05}");
    let put = |n: usize| PutIf::create(key(n), n.to_string().into_bytes());
    let answers = store.put_many((0..COUNT).map(put).collect()).await;
    assert_eq!(answers.len(), COUNT);
    let listing = store.list("batch/").await.unwrap();
    assert_eq!(listing.entries.len(), COUNT);
    let mut deletes = Vec::with_capacity(COUNT);
    for (n, (answer, entry)) in answers.into_iter().zip(&listing.entries).enumerate() {
        assert_eq!(entry.key, key(n));
        assert_eq!(&*entry.value, n.to_string().as_bytes());
        assert_eq!(answer, Ok(Put::Won(entry.version.clone())));
        deletes.push(DeleteIf::new(key(n), entry.version.clone()));
    }
    let got = store.get_many((0..COUNT).map(key).collect()).await;
    assert!(got.iter().all(|e| matches!(e, Ok(Some(_)))));
    let deleted = store.delete_many(deletes).await;
    assert!(deleted.iter().all(|d| *d == Ok(Delete::Won)));
    assert!(store.list("batch/").await.unwrap().entries.is_empty());
}

/// Asking nothing is answered with nothing.
pub async fn an_empty_batch_is_answered(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    assert!(store.put_many(Vec::new()).await.is_empty());
    assert!(store.get_many(Vec::new()).await.is_empty());
    assert!(store.delete_many(Vec::new()).await.is_empty());
}

/// Keys are gone whatever was written to them last, absent ones are no trouble, and a version does not come again.
pub async fn discarding_removes_keys_whatever_their_version(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let keys = ["discard/a", "discard/b", "discard/absent", "discard/a"];
    let first = create(&*store, "discard/a", b"1").await;
    let second = update(&*store, "discard/a", b"2", &first).await;
    create(&*store, "discard/b", b"1").await;
    create(&*store, "discard/kept", b"1").await;
    let answers = store.discard(keys.map(str::to_owned).into()).await;
    assert_eq!(answers, [Ok(()), Ok(()), Ok(()), Ok(())]);
    let left = store.list("discard/").await.unwrap().entries;
    let left: Vec<&str> = left.iter().map(|e| &*e.key).collect();
    assert_eq!(left, ["discard/kept"]);
    assert_eq!(store.get("discard/a").await, Ok(None));

    let third = create(&*store, "discard/a", b"3").await;
    assert!(third != first && third != second, "{third:?}");
    let late = PutIf::update("discard/a", *b"late", second);
    assert_eq!(store.put_if(late).await, Ok(Put::Lost));
    assert!(store.discard(Vec::new()).await.is_empty());

    let many: Vec<String> = (0..1200).map(|n| format!("discard/many/{n}")).collect();
    let puts = many.iter().map(|key| PutIf::create(key, *b"v"));
    store.put_many(puts.collect()).await;
    let answers = store.discard(many).await;
    assert!(answers.iter().all(Result::is_ok) && answers.len() == 1200);
    let page = store.keys("discard/many/", None, 10).await.unwrap();
    assert!(page.keys.is_empty() && !page.more, "{page:?}");
}
