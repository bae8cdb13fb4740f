//! Leases that a store keeps the time of. Each check passes by itself on a store that has none.

use std::time::Duration;

use tenure_core::ids::LeaseId;
use tokio::time::Instant;

use super::{StoreUnderTest, follow, won};
use crate::error::StoreError;
use crate::store::{DeleteIf, LeaseState, Leases, PutIf, Store};
use crate::watch::Change;

/// Grants the shortest lease that makes sense here, and says for how long it was granted.
async fn grant(store: &dyn Store, leases: &dyn Leases, id: LeaseId) -> Duration {
    let asked = store.info().min_ttl;
    let granted = leases.grant(id, asked).await.unwrap();
    assert!(granted >= asked, "granted {granted:?} instead of {asked:?}");
    granted
}

async fn put_under(store: &dyn Store, key: &str, id: LeaseId) -> crate::Version {
    let put = PutIf::create(key, *b"v").under(Some(id));
    won(store.put_if(put).await.unwrap())
}

/// Waits until the store itself says that the lease is over, and no longer than is decent.
async fn until_over(leases: &dyn Leases, id: LeaseId, ttl: Duration) -> Duration {
    let begun = Instant::now();
    while leases.is_alive(id).await.unwrap() {
        let waited = begun.elapsed();
        assert!(waited < 3 * ttl, "the lease still lives after {waited:?}");
        tokio::time::sleep(ttl / 20).await;
    }
    begun.elapsed()
}

/// A lease runs out, not before its time, and its key goes with it: for those who read and for those who watch.
pub async fn a_lease_that_is_not_kept_alive_takes_its_key_along(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let id = LeaseId(0x7e57_0001);
    let asked = Instant::now();
    let ttl = grant(&*store, leases, id).await;
    put_under(&*store, "leases/k", id).await;
    assert_eq!(leases.is_alive(id).await, Ok(true));
    let from = store.revision().await.unwrap();
    let mut watch = store.watch("leases/", from).await.unwrap();
    let gone = |c: &Change| matches!(c, Change::Deleted { key } if key == "leases/k");
    follow(&mut watch, |seen| seen.iter().any(gone)).await;
    assert!(asked.elapsed() >= ttl, "over after {:?}", asked.elapsed());
    assert_eq!(store.get("leases/k").await, Ok(None));
    assert!(store.revision().await.unwrap() > from);
    until_over(leases, id, ttl).await;
}

/// A lease that is kept alive outlasts its time, and its key with it, without a single write.
pub async fn a_lease_that_is_kept_alive_keeps_its_key(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let id = LeaseId(0x7e57_0002);
    let ttl = grant(&*store, leases, id).await;
    let version = put_under(&*store, "leases/k", id).await;
    let before = store.revision().await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < ttl * 2 {
        let kept = leases.keep_alive(id, "leases/k").await;
        assert_eq!(kept, Ok(LeaseState::Alive(ttl)));
        tokio::time::sleep(ttl / 4).await;
    }
    assert_eq!(leases.is_alive(id).await, Ok(true));
    let entry = store.get("leases/k").await.unwrap().expect("it stays");
    assert_eq!(entry.version, version);
    assert_eq!(store.revision().await, Ok(before));
}

/// A key that was written again without the lease stays when the lease goes; one that was written again with it goes.
pub async fn a_key_written_again_without_the_lease_stays(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let id = LeaseId(0x7e57_0003);
    let ttl = grant(&*store, leases, id).await;
    for (key, lease) in [("leases/with", Some(id)), ("leases/without", None)] {
        let version = put_under(&*store, key, id).await;
        let again = PutIf::update(key, *b"w", version).under(lease);
        won(store.put_if(again).await.unwrap());
    }
    let attached = leases.keep_alive(id, "leases/with").await;
    assert_eq!(attached, Ok(LeaseState::Alive(ttl)));
    let detached = leases.keep_alive(id, "leases/without").await;
    assert_eq!(detached, Ok(LeaseState::Unattached));
    until_over(leases, id, ttl).await;
    assert_eq!(store.get("leases/with").await, Ok(None));
    assert!(store.get("leases/without").await.unwrap().is_some());
}

/// A lease that is over stays over: nothing keeps it alive, and nothing is written under it.
pub async fn a_lease_that_is_over_is_gone(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let (id, never) = (LeaseId(0x7e57_0004), LeaseId(0x7e57_0005));
    let ttl = grant(&*store, leases, id).await;
    until_over(leases, id, ttl).await;
    for id in [id, never] {
        assert_eq!(leases.is_alive(id).await, Ok(false));
        let kept = leases.keep_alive(id, "leases/k").await;
        assert_eq!(kept, Ok(LeaseState::Gone));
        let put = PutIf::create("leases/k", *b"v").under(Some(id));
        let refused = store.put_if(put).await;
        assert!(matches!(refused, Err(StoreError::Denied { .. })));
        assert_eq!(store.get("leases/k").await, Ok(None));
    }
}

/// A lease that lives is told apart from a key that is attached to it.
pub async fn a_key_that_is_not_attached_is_loose(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let (id, other) = (LeaseId(0x7e57_0006), LeaseId(0x7e57_0007));
    let ttl = grant(&*store, leases, id).await;
    grant(&*store, leases, other).await;
    let kept = leases.keep_alive(id, "leases/k").await;
    assert_eq!(kept, Ok(LeaseState::Unattached), "never written");
    let version = put_under(&*store, "leases/k", id).await;
    let kept = leases.keep_alive(id, "leases/k").await;
    assert_eq!(kept, Ok(LeaseState::Alive(ttl)));
    let delete = DeleteIf::new("leases/k", version);
    store.delete_if(delete).await.unwrap();
    let kept = leases.keep_alive(id, "leases/k").await;
    assert_eq!(kept, Ok(LeaseState::Unattached), "removed");
    put_under(&*store, "leases/k", other).await;
    let kept = leases.keep_alive(id, "leases/k").await;
    assert_eq!(kept, Ok(LeaseState::Unattached), "somebody else's");
}

/// Two who draw the same id do not share a lease.
pub async fn an_id_that_is_taken_is_refused(subject: &dyn StoreUnderTest) {
    let store = subject.open().await;
    let Some(leases) = store.leases() else { return };
    let id = LeaseId(0x7e57_0008);
    let ttl = grant(&*store, leases, id).await;
    let again = leases.grant(id, ttl).await;
    assert!(matches!(again, Err(StoreError::Denied { .. })), "{again:?}");
    assert_eq!(leases.is_alive(id).await, Ok(true));
}
