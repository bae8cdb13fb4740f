//! A counter per key in an axum service that embeds Tenure: each key has one owner, and requests for others are refused with
//! 421, so that a `tenure router` in front sends them on.
//!
//! ```text
//! cargo run -p tenure-server --example axum_counter -- sqlite:shop.db 9001
//! curl -X POST http://127.0.0.1:9001/apples
//! ```

use std::collections::HashMap;

use axum::extract::Path;
use axum::routing::get;
use axum::{Extension, Router};
use hyper::StatusCode;
use tenure::{Handler, Hashed, Node, Result, Shard};
use tenure_core::ids::KeyspaceName;
use tenure_server::{ADDRESS, GateLayer, KeyRule, RequestGrant};

/// Counts of one shard's keys.
struct Counters;

impl Handler for Counters {
    type State = HashMap<String, u64>;

    async fn load(&self, _: &Shard) -> Result<Self::State> {
        Ok(HashMap::new()) // a real service fences its database at `shard.epoch()`, then reads
    }
}

async fn count(
    Path(key): Path<String>,
    owned: Extension<RequestGrant<Counters>>,
) -> (StatusCode, String) {
    match owned.run(async |counts, _| counts.get(&key).copied()).await {
        Ok(count) => (StatusCode::OK, format!("{}\n", count.unwrap_or(0))),
        Err(lost) => (StatusCode::BAD_GATEWAY, lost.to_string()),
    }
}

async fn add(
    Path(key): Path<String>,
    owned: Extension<RequestGrant<Counters>>,
) -> (StatusCode, String) {
    let added = owned.run(async |counts, grant| {
        let count = counts.entry(key).or_default();
        *count += 1;
        format!("{count} at epoch {}\n", grant.epoch())
    });
    match added.await {
        Ok(text) => (StatusCode::OK, text),
        Err(lost) => (StatusCode::BAD_GATEWAY, lost.to_string()),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(store), Some(port)) = (args.next(), args.next()) else {
        return Err("usage: axum_counter STORE PORT".into());
    };
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let address = listener.local_addr()?;
    let node = Node::builder(store, "shop")
        .name(format!("axum-{}", address.port()))
        .address(ADDRESS, format!("http://{address}"))
        .keyspace("counters", Hashed(16), Counters)
        .start()
        .await?;
    let rule = KeyRule::new(KeyspaceName::new("counters")?, vec!["path:1".parse()?]);
    let app = Router::new()
        .route("/{key}", get(count).post(add))
        .layer(GateLayer::<Counters>::new(node.clone(), rule));
    eprintln!("listening at http://{address}");
    let stop = node.clone();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        let _ = tokio::signal::ctrl_c().await;
        // Close, finish, release: then the last answers are given, and the process ends.
        let _ = stop.stop().await;
    });
    Ok(serving.await?)
}
