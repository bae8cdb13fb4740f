//! Leases in memory: as etcd has them, on tokio's clock.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::ids::LeaseId;
use tokio::time::Instant;

use super::{MemoryStore, State};
use crate::error::StoreError;
use crate::store::{LeaseState, Leases};

/// A lease that has not run out, and the keys that go with it.
#[derive(Debug)]
pub(super) struct MemoryLease {
    ttl: Duration,
    until: Instant,
    keys: BTreeSet<String>,
}

impl State {
    /// Ends the leases whose time has run out and removes their keys. Says whether a key went.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.revision;
        let over: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            let keys = self.leases.remove(&id).map(|lease| lease.keys);
            for key in keys.into_iter().flatten() {
                self.set(key, None, None);
            }
        }
        self.revision != before
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.until).min()
    }

    /// Takes `key` from the lease that it had and gives it to `lease`.
    pub(super) fn attach(&mut self, key: &str, lease: Option<LeaseId>) {
        let had = self.slots.get(key).and_then(|slot| slot.lease);
        if let Some(had) = had.and_then(|id| self.leases.get_mut(&id)) {
            had.keys.remove(key);
        }
        if let Some(lease) = lease.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.to_owned());
        }
    }

    fn grant(&mut self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError> {
        if self.leases.contains_key(&id) {
            return Err(StoreError::denied(format!("lease {id} already exists")));
        }
        let lease = MemoryLease {
            ttl,
            until: Instant::now() + ttl,
            keys: BTreeSet::new(),
        };
        self.leases.insert(id, lease);
        Ok(ttl)
    }

    fn keep_alive(&mut self, id: LeaseId, key: &str) -> LeaseState {
        let Some(lease) = self.leases.get_mut(&id) else {
            return LeaseState::Gone;
        };
        lease.until = Instant::now() + lease.ttl;
        if lease.keys.contains(key) {
            LeaseState::Alive(lease.ttl)
        } else {
            LeaseState::Unattached
        }
    }
}

/// A write whose lease is over, or never was.
pub(super) fn unknown(id: LeaseId, key: &str) -> StoreError {
    StoreError::denied(format!(
        "key {key:?} was not written: its lease {id} does not exist, or has expired"
    ))
}

/// Waits until the time has come, or for ever if there is none.
pub(super) async fn ran_out(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn grant(&self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError> {
        let granted = self.shared.lock().grant(id, ttl);
        // Watches wait for the first lease to run out, which this may be.
        self.shared.moved.send_modify(|_| ());
        granted
    }

    async fn keep_alive(&self, id: LeaseId, key: &str) -> Result<LeaseState, StoreError> {
        Ok(self.shared.lock().keep_alive(id, key))
    }

    async fn is_alive(&self, id: LeaseId) -> Result<bool, StoreError> {
        Ok(self.shared.lock().leases.contains_key(&id))
    }
}
