//! The conformance suite, each check in a bucket of its own.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_store::conformance::{StoreUnderTest, in_turn};
use tenure_store::servers::nats::{Nats, NatsOptions};
use tenure_store::{Store, open};

struct Bucket(String);

#[async_trait]
impl StoreUnderTest for Bucket {
    async fn open(&self) -> Arc<dyn Store> {
        open(&self.0).await.unwrap()
    }
}

async fn passes_on(nats: &Nats) {
    in_turn(async |check| Box::new(Bucket(nats.url(check))) as Box<dyn StoreUnderTest>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_passes_the_suite() {
    passes_on(&Nats::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_with_three_copies_pass_the_suite() {
    let nats = NatsOptions::new().members(3).start();
    passes_on(&nats).await;
    let info = "$JS.API.STREAM.INFO.KV_racing_creates_have_one_winner";
    let info = nats.ask(info, &serde_json::json!({}));
    assert_eq!(info["config"]["num_replicas"], 3);
}
