//! Poolers in between.

use tenure_store::open;
use tenure_store::servers::postgres::{PgBouncer, Postgres};
use tenure_store::servers::proxy::TcpProxy;

use super::{create, refusal};

#[tokio::test]
async fn a_pooler_that_hands_sessions_round_is_refused_with_the_way_out() {
    let postgres = Postgres::start();
    for mode in ["transaction", "statement"] {
        let pooler = PgBouncer::start(&postgres, mode);
        // The first finds an empty pool, the second one that is warm.
        for _ in 0..2 {
            let reason = refusal(&postgres.url_at(pooler.port())).await;
            assert!(
                reason.contains("a pooler in transaction or statement mode"),
                "{mode}: {reason}"
            );
            assert!(reason.contains("session mode"), "{reason}");
        }
    }
}

#[tokio::test]
async fn a_pooler_in_session_mode_and_a_plain_proxy_are_taken() {
    let postgres = Postgres::start();
    let pooler = PgBouncer::start(&postgres, "session");
    let proxy = TcpProxy::start(postgres.address());
    for port in [pooler.port(), proxy.port()] {
        let store = open(&postgres.url_at(port)).await.unwrap();
        let from = store.revision().await.unwrap();
        let mut watch = store.watch("", from).await.unwrap();
        create(&*store, &format!("k{port}")).await;
        watch.next().await.unwrap();
    }
}
