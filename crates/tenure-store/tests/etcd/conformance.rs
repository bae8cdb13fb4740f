//! The conformance suite, each check under a prefix of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::{StoreUnderTest, in_turn};
use tenure_store::servers::etcd::{Etcd, EtcdOptions, EtcdRelease};
use tenure_store::{Store, open};

struct Prefix(String);

#[async_trait]
impl StoreUnderTest for Prefix {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0).await.unwrap()
    }
}

async fn passes_on(what: &'static str, etcd: Etcd) {
    in_turn(async |check| {
        eprintln!("on {what}:");
        Box::new(Prefix(etcd.url(check))) as Box<dyn StoreUnderTest>
    })
    .await;
}

// Side by side: much of it is waiting for leases to run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_and_three_members_of_3_4_and_one_of_3_5_pass_the_suite() {
    let one = Etcd::start(EtcdRelease::V3_4);
    let three = EtcdOptions::new(EtcdRelease::V3_4).members(3).start();
    let newer = Etcd::start(EtcdRelease::V3_5);
    tokio::join!(
        passes_on("one member of 3.4", one),
        passes_on("three members of 3.4", three),
        passes_on("one member of 3.5", newer),
    );
}
