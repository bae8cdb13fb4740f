//! The conformance suite, each check under a prefix of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::{self, Subject};
use tenure_store::servers::etcd::{Etcd, Options, Release};
use tenure_store::{Store, open};

struct Prefix(String);

#[async_trait]
impl Subject for Prefix {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0).await.unwrap()
    }
}

async fn passes_on(etcd: Etcd) {
    conformance::in_turn(async |check| Box::new(Prefix(etcd.url(check))) as Box<dyn Subject>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_of_3_4_passes_the_suite() {
    passes_on(Etcd::start(Release::V3_4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_of_3_4_pass_the_suite() {
    passes_on(Options::new(Release::V3_4).members(3).start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_of_3_5_passes_the_suite() {
    passes_on(Etcd::start(Release::V3_5)).await;
}
