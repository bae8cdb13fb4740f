//! The conformance suite on a real server.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::StoreUnderTest;
use tenure_store::servers::postgres::Postgres;
use tenure_store::{Store, open};

struct Fresh(Postgres);

#[async_trait]
impl StoreUnderTest for Fresh {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0.url()).await.unwrap()
    }
}

tenure_store::conformance_suite!(Fresh(Postgres::start()));
