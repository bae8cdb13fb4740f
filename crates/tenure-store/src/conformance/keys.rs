//! Which keys and values a store must keep, and find again.

use super::{StoreUnderTest, create, update};
use crate::store::DeleteIf;

/// Keys that are easily confused with one another or with patterns.
const ODD: [&str; 18] = [
    "k",
    "k/",
    "k//",
    "K",
    "k ",
    "k%",
    "k_",
    "k*",
    "k?x=1",
    "k'; DROP TABLE kv; --",
    "k\"\\",
    "k\t\n\r",
    "k\u{0}",
    "k\u{0}x",
    "käse",
    "ka\u{308}se",
    "k/鍵/🗝",
    "k\u{10FFFF}",
];

/// Every key is itself and no other.
pub async fn odd_keys_are_kept_apart(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let mut versions = Vec::new();
    for key in ODD {
        versions.push(create(&*store, key, key.as_bytes()).await);
    }
    let again = subject.open().await;
    for (key, version) in ODD.iter().zip(&versions) {
        let entry = again.get(key).await.unwrap().expect(key);
        assert_eq!((&*entry.key, &*entry.value), (*key, key.as_bytes()));
        update(&*again, key, b"updated", version).await;
    }
    let mut sorted = ODD.to_vec();
    sorted.sort_unstable();
    let listed = store.list("").await.unwrap().entries;
    let listed: Vec<&str> = listed.iter().map(|e| &*e.key).collect();
    assert_eq!(listed, sorted);
}

/// Values come back byte for byte.
pub async fn values_are_any_bytes_up_to_64_kib(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let all: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..64 * 1024u32).map(|n| (n * 31 % 251) as u8).collect();
    let values: [&[u8]; 5] = [b"", b"\0", &all, &large, b"not \xff utf-8"];
    for (n, value) in values.iter().enumerate() {
        let key = format!("values/{n}");
        let version = create(&*store, &key, value).await;
        let entry = store.get(&key).await.unwrap().unwrap();
        assert_eq!(&*entry.value, *value);
        update(&*store, &key, value, &version).await;
    }
    let listed = store.list("values/").await.unwrap().entries;
    for (entry, value) in listed.iter().zip(values) {
        assert_eq!(&*entry.value, value);
    }
    assert_eq!(listed.len(), values.len());
}

/// A list holds the keys that start with its prefix, all of them and no other, in the order of their bytes.
pub async fn a_list_is_exact_and_in_order(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    for key in [
        "a/1", "a/10", "a/2", "a/é", "a0", "a", "A/1", "b/1", "a/2/x",
    ] {
        create(&*store, key, b"v").await;
    }
    for (prefix, wanted) in [
        ("a/", &["a/1", "a/10", "a/2", "a/2/x", "a/é"][..]),
        ("a/1", &["a/1", "a/10"]),
        ("a/2/", &["a/2/x"]),
        ("a/é", &["a/é"]),
        ("b", &["b/1"]),
        ("c", &[]),
        ("a%", &[]),
    ] {
        let listed = store.list(prefix).await.unwrap().entries;
        let listed: Vec<&str> = listed.iter().map(|e| &*e.key).collect();
        assert_eq!(listed, wanted, "prefix {prefix:?}");
    }
    assert_eq!(store.list("").await.unwrap().entries.len(), 9);
}

/// Pages of keys, one after the other, hold what a list does, each of them no more than it was asked for.
pub async fn pages_of_keys_are_exact_and_in_order(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let mut gone = Vec::new();
    for key in [
        "p/1", "p/10", "p/2", "p/é", "p0", "p", "P/1", "p/2/x", "p/3",
    ] {
        let version = create(&*store, key, b"v").await;
        if key == "p/3" || key == "p/10" {
            gone.push(DeleteIf::new(key, version));
        }
    }
    for delete in gone {
        store.delete_if(delete).await.unwrap();
    }
    for limit in [1, 2, 3, 100] {
        for prefix in ["p/", "p/2", "p", "", "q", "p/2/x/"] {
            let listed = store.list(prefix).await.unwrap().entries;
            let wanted: Vec<String> = listed.into_iter().map(|e| e.key).collect();
            let mut seen: Vec<String> = Vec::new();
            loop {
                let after = seen.last().cloned();
                let page = store.keys(prefix, after.as_deref(), limit).await.unwrap();
                assert!(page.keys.len() <= limit, "{page:?}");
                assert!(!page.more || page.keys.len() == limit, "{page:?}");
                seen.extend(page.keys);
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, wanted, "prefix {prefix:?}, {limit} at a time");
        }
    }
    // What comes after a key need not begin with one that exists, nor with the prefix.
    for (after, wanted) in [
        ("o", &["p/1", "p/2", "p/2/x", "p/é"][..]),
        ("p/1x", &["p/2", "p/2/x", "p/é"]),
        ("q", &[]),
    ] {
        let page = store.keys("p/", Some(after), 10).await.unwrap();
        assert_eq!(page.keys, wanted, "after {after:?}");
    }
}
