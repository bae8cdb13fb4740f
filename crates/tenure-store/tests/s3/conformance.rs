//! The conformance suite, each check under a prefix of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::{Subject, in_turn_but};
use tenure_store::servers::s3::{Kind, OPERATOR, S3};
use tenure_store::{Store, open};

struct Prefix(String);

#[async_trait]
impl Subject for Prefix {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0).await.unwrap()
    }
}

async fn passes_on(s3: &S3, left_out: &'static [&'static str]) {
    in_turn_but(left_out, async |check| {
        Box::new(Prefix(s3.url(check))) as Box<dyn Subject>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seaweedfs_passes_the_suite() {
    passes_on(&S3::start(), &[]).await;
}

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn moto_passes_the_suite() {
        let moto = S3::start_with(Kind::Moto, &[OPERATOR]);
        // It takes a few milliseconds for each of twenty thousand requests.
        passes_on(&moto, &["a_batch_takes_five_thousand_keys"]).await;
    }
}
