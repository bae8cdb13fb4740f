//! The conformance suite on every store that needs no server, bare and within the wrappers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tempfile::TempDir;
use tenure_store::conformance::StoreUnderTest;
use tenure_store::fault::{FaultConfig, FaultStore};
use tenure_store::memory::MemoryStore;
use tenure_store::observed_store::ObservedStore;
use tenure_store::{Store, open};

/// A store that is opened by URL, with what must outlive it.
struct ByUrl {
    url: String,
    _dir: Option<TempDir>,
}

impl ByUrl {
    fn memory() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            url: format!("memory:conformance-{n}"),
            _dir: None,
        }
    }

    fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            url: format!("sqlite:{}", dir.path().join("store.db").display()),
            _dir: Some(dir),
        }
    }
}

#[async_trait]
impl StoreUnderTest for ByUrl {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.url).await.unwrap()
    }
}

/// Within both wrappers, which must not change anything as long as they are told nothing.
struct Wrapped(ByUrl);

#[async_trait]
impl StoreUnderTest for Wrapped {
    async fn open(&self) -> Arc<dyn Store> {
        wrapped(self.0.open().await)
    }
}

fn wrapped(inner: Arc<dyn Store>) -> Arc<dyn Store> {
    let (faulty, _) = FaultStore::new(inner, FaultConfig::none(1));
    let (observed, _) = ObservedStore::new(Arc::new(faulty));
    Arc::new(observed)
}

/// A store in memory that keeps the time of leases itself.
struct Leased(MemoryStore);

#[async_trait]
impl StoreUnderTest for Leased {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

/// The same within both wrappers.
struct WrappedLeased(MemoryStore);

#[async_trait]
impl StoreUnderTest for WrappedLeased {
    async fn open(&self) -> Arc<dyn Store> {
        wrapped(Arc::new(self.0.clone()))
    }
}

mod memory {
    tenure_store::conformance_suite!(super::ByUrl::memory());
}

mod sqlite {
    tenure_store::conformance_suite!(super::ByUrl::sqlite());
}

mod wrapped {
    tenure_store::conformance_suite!(super::Wrapped(super::ByUrl::memory()));
}

mod leased {
    use tenure_store::memory::MemoryStore;
    tenure_store::conformance_suite!(super::Leased(MemoryStore::with_leases()));
}

mod wrapped_leased {
    use tenure_store::memory::MemoryStore;
    tenure_store::conformance_suite!(super::WrappedLeased(MemoryStore::with_leases()));
}
