//! A wrapper that makes any store fail on purpose: by seeded chance, by switch, or both.
//!
//! It fails in the ways that real stores do: refused before anything was applied, applied but the answer lost, slow, hung,
//! and hung with the write landing long after its caller gave up. All waiting is tokio's, so that it also runs in paused time.

mod control;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure_core::ids::{LeaseId, Revision};

use control::{DrawnFaults, SharedControl};
pub use control::{FaultConfig, FaultHandle};

use crate::error::StoreError;
use crate::operation::Op;
use crate::store::{
    Delete, DeleteIf, Entry, KeyPage, LeaseState, Leases, Listing, Put, PutIf, Store, StoreInfo,
    no_leases,
};
use crate::store_check::Finding;
use crate::watch::Watch;

/// A store that fails as told by its [`FaultHandle`]. Otherwise it is the store that it wraps.
#[derive(Clone)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    shared: Arc<SharedControl>,
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultStore").field(&self.inner).finish()
    }
}

impl FaultStore {
    /// Wraps `inner`. Stores made by `dedicated` share the handle.
    pub fn new(inner: Arc<dyn Store>, config: FaultConfig) -> (Self, FaultHandle) {
        let (shared, handle) = FaultHandle::new(config);
        (Self { inner, shared }, handle)
    }

    /// Another client of `inner` whose calls fail by the same handle: one switch for both ends of a link.
    pub fn sharing(inner: Arc<dyn Store>, handle: &FaultHandle) -> Self {
        let shared = handle.shared();
        Self { inner, shared }
    }

    /// Takes one call through the faults. A write that waits goes on alone if its caller gives up, as on a real wire.
    async fn one<T, F>(&self, op: Op, key: &str, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (shared, key) = (self.shared.clone(), key.to_owned());
        let draw = shared.draw();
        let waits = shared.would_wait(&draw);
        let work = async move {
            shared.reach(op, &draw).await?;
            shared.admit(op, &key, &draw)?;
            let answer = call.await;
            shared.reply(op, &draw).await?;
            answer
        };
        if op.has_effect() && waits {
            on_its_own(work, Err).await
        } else {
            work.await
        }
    }

    /// Takes a batch through the faults. The whole batch waits; each key fails by itself.
    async fn many<Q, T, F, G>(
        &self,
        op: Op,
        questions: Vec<Q>,
        key_of: fn(&Q) -> &str,
        call: G,
    ) -> Vec<Result<T, StoreError>>
    where
        Q: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Vec<Result<T, StoreError>>> + Send + 'static,
        G: FnOnce(Arc<dyn Store>, Vec<Q>) -> F + Send + 'static,
    {
        let (shared, inner) = (self.shared.clone(), self.inner.clone());
        let draws: Vec<DrawnFaults> = questions.iter().map(|_| shared.draw()).collect();
        let count = questions.len();
        let slowest = draws.iter().max_by_key(|d| d.delay).cloned();
        let Some(slowest) = slowest else {
            return Vec::new();
        };
        let waits = shared.would_wait(&slowest);
        let work = async move {
            if let Err(e) = shared.reach(op, &slowest).await {
                return refused(e, count);
            }
            let mut admitted = Vec::with_capacity(count);
            let mut gates = Vec::with_capacity(count);
            for (question, draw) in questions.into_iter().zip(&draws) {
                let gate = shared.admit(op, key_of(&question), draw);
                if gate.is_ok() {
                    admitted.push(question);
                }
                gates.push(gate);
            }
            let mut answers = call(inner, admitted).await.into_iter();
            let mut all = Vec::with_capacity(count);
            for (gate, draw) in gates.into_iter().zip(&draws) {
                all.push(match gate {
                    Err(e) => Err(e),
                    Ok(()) => {
                        let answer = answers.next();
                        let lost = StoreError::unknown("the batch returned too few results");
                        shared.lose(op, draw).and(answer.unwrap_or(Err(lost)))
                    }
                });
            }
            shared.reply_late().await;
            all
        };
        if op.has_effect() && waits {
            on_its_own(work, move |e| refused(e, count)).await
        } else {
            work.await
        }
    }
}

fn refused<T>(e: StoreError, count: usize) -> Vec<Result<T, StoreError>> {
    (0..count).map(|_| Err(e.clone())).collect()
}

async fn on_its_own<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    broken: impl FnOnce(StoreError) -> T,
) -> T {
    match tokio::spawn(work).await {
        Ok(answer) => answer,
        Err(e) => broken(StoreError::unknown(format!(
            "the background task of the store request panicked or was cancelled: {e}"
        ))),
    }
}

#[async_trait]
impl Store for FaultStore {
    fn info(&self) -> &StoreInfo {
        self.inner.info()
    }

    async fn identity(&self) -> Result<String, StoreError> {
        let inner = self.inner.clone();
        self.one(Op::Identity, "", async move { inner.identity().await })
            .await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let inner = self.inner.clone();
        self.one(Op::Revision, "", async move { inner.revision().await })
            .await
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let (inner, asked) = (self.inner.clone(), key.to_owned());
        self.one(Op::Get, key, async move { inner.get(&asked).await })
            .await
    }

    async fn get_many(&self, keys: Vec<String>) -> Vec<Result<Option<Entry>, StoreError>> {
        self.many(
            Op::Get,
            keys,
            |k| k,
            |inner, keys| async move { inner.get_many(keys).await },
        )
        .await
    }

    async fn put_if(&self, put: PutIf) -> Result<Put, StoreError> {
        let (inner, key) = (self.inner.clone(), put.key.clone());
        self.one(Op::Put, &key, async move { inner.put_if(put).await })
            .await
    }

    async fn put_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        self.many(
            Op::Put,
            puts,
            |p| &p.key,
            |inner, puts| async move { inner.put_many(puts).await },
        )
        .await
    }

    async fn delete_if(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let (inner, key) = (self.inner.clone(), delete.key.clone());
        self.one(
            Op::Delete,
            &key,
            async move { inner.delete_if(delete).await },
        )
        .await
    }

    async fn delete_many(&self, deletes: Vec<DeleteIf>) -> Vec<Result<Delete, StoreError>> {
        self.many(
            Op::Delete,
            deletes,
            |d| &d.key,
            |inner, deletes| async move { inner.delete_many(deletes).await },
        )
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        let (inner, asked) = (self.inner.clone(), prefix.to_owned());
        self.one(Op::List, prefix, async move { inner.list(&asked).await })
            .await
    }

    async fn keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let (inner, asked) = (self.inner.clone(), prefix.to_owned());
        let after = after.map(ToOwned::to_owned);
        self.one(Op::Keys, prefix, async move {
            inner.keys(&asked, after.as_deref(), limit).await
        })
        .await
    }

    async fn discard(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        self.many(
            Op::Discard,
            keys,
            |k| k,
            |inner, keys| async move { inner.discard(keys).await },
        )
        .await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        let (inner, asked) = (self.inner.clone(), prefix.to_owned());
        let cuts = self.shared.cuts();
        let watch = self
            .one(
                Op::Watch,
                prefix,
                async move { inner.watch(&asked, from).await },
            )
            .await?;
        Ok(watch::wrap(watch, self.shared.clone(), cuts))
    }

    async fn now(&self) -> Result<Option<SystemTime>, StoreError> {
        let inner = self.inner.clone();
        self.one(Op::Now, "", async move { inner.now().await })
            .await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.inner.examine().await
    }

    fn dedicated(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(Self {
            inner: self.inner.dedicated()?,
            shared: self.shared.clone(),
        }))
    }

    fn leases(&self) -> Option<&dyn Leases> {
        self.inner.leases().map(|_| self as &dyn Leases)
    }
}

#[async_trait]
impl Leases for FaultStore {
    async fn grant(&self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError> {
        let inner = self.inner.clone();
        self.one(Op::Grant, "", async move {
            let leases = inner.leases().ok_or_else(no_leases)?;
            leases.grant(id, ttl).await
        })
        .await
    }

    async fn keep_alive(&self, id: LeaseId, key: &str) -> Result<LeaseState, StoreError> {
        let (inner, asked) = (self.inner.clone(), key.to_owned());
        self.one(Op::KeepAlive, key, async move {
            let leases = inner.leases().ok_or_else(no_leases)?;
            leases.keep_alive(id, &asked).await
        })
        .await
    }

    async fn is_alive(&self, id: LeaseId) -> Result<bool, StoreError> {
        let inner = self.inner.clone();
        self.one(Op::AskLease, "", async move {
            let leases = inner.leases().ok_or_else(no_leases)?;
            leases.is_alive(id).await
        })
        .await
    }
}

#[cfg(test)]
mod tests;
