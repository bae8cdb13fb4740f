//! The conformance suite, each check under a prefix of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::{StoreUnderTest, in_turn_but};
use tenure_store::servers::s3::{OPERATOR, S3Service, S3ServiceKind};
use tenure_store::{Store, open};

struct Prefix(String);

#[async_trait]
impl StoreUnderTest for Prefix {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0).await.unwrap()
    }
}

async fn passes_on(s3: &S3Service, left_out: &'static [&'static str]) {
    in_turn_but(left_out, async |check| {
        Box::new(Prefix(s3.url(check))) as Box<dyn StoreUnderTest>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seaweedfs_passes_the_suite() {
    passes_on(&S3Service::start(), &[]).await;
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn moto_passes_the_suite() {
        let moto = S3Service::start_with(S3ServiceKind::Moto, &[OPERATOR]);
        // It takes a few milliseconds for each of twenty thousand requests.
        passes_on(&moto, &["a_batch_takes_five_thousand_keys"]).await;
    }
}
