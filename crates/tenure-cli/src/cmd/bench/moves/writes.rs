//! How many store writes moves take: a fourth node joins three with 1,000 shards, while routers look on.
//!
//! Counted at the store: every record carries how often it was written. The memory store serves, for writes are counted and
//! not timed. Renewals are far apart, so that hardly any fall into the time that is looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::router::{HoldLimits, Router};
use tenure::{Hashed, KeyspaceMode, Node, Settings};
use tenure_core::ids::{ClusterName, ShardId};
use tenure_core::layout::{Key, prefix};
use tenure_core::record::{Record, Role, Tenancy};
use tenure_store::Store;
use tenure_store::memory::MemoryStore;

use super::blackout::Loads;
use crate::cmd::bench::worker::{CLUSTER, KEYSPACE};
use crate::fail::Fail;
use crate::table::{Table, WIDTH};

const SHARDS: u32 = 1000;
/// Far beyond what the moves take.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long nothing moves when all is over.
const CALM: Duration = Duration::from_millis(700);

/// What moving a quarter of the shards took.
#[derive(Debug, Serialize)]
pub(super) struct Writes {
    routers: u32,
    shards: u32,
    moves: u64,
    /// Writes to records of shards that moved.
    shard_writes: u64,
    /// Writes to sessions of routers.
    router_writes: u64,
    per_move: f64,
    per_router: f64,
}

/// How often each record was written, and who has the shards.
struct Books {
    shards: BTreeMap<ShardId, (u64, Option<String>)>,
    routers: u64,
    moving: usize,
}

pub(super) async fn count(routers: u32) -> Result<Writes, Fail> {
    eprintln!("counting writes with {routers} routers …");
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(node(&store, name).await?);
    }
    settled(&store, 3).await?;
    let mut lookers = Vec::new();
    for n in 0..routers {
        let settings = settings();
        let router = Router::builder("memory:", CLUSTER)
            .store(store.clone())
            .name(format!("r{n}"))
            .hold(HoldLimits {
                age: settings.freeze_timeout + settings.drain_timeout + settings.take_timeout,
                ..HoldLimits::default()
            })
            .settings(settings);
        lookers.push(router.start().await.map_err(|e| Fail::no(e.to_string()))?);
    }
    let before = books(&store).await?;
    let _fourth = node(&store, "d").await?;
    let after = settled(&store, 4).await?;
    let (mut moves, mut shard_writes) = (0, 0);
    for (id, (rev, owner)) in &after.shards {
        let (was, owned) = before
            .shards
            .get(id)
            .map_or((0, &None), |(rev, owner)| (*rev, owner));
        if owned != owner {
            moves += 1;
            shard_writes += rev - was;
        }
    }
    let router_writes = after.routers - before.routers;
    Ok(Writes {
        routers,
        shards: SHARDS,
        moves,
        shard_writes,
        router_writes,
        per_move: shard_writes as f64 / (moves as f64).max(1.0),
        per_router: router_writes as f64 / f64::from(routers),
    })
}

fn settings() -> Settings {
    Settings {
        ttl: Duration::from_secs(120),
        // All that one node gives away goes at once.
        release_batch: SHARDS as usize,
        ..Settings::default()
    }
}

async fn node(store: &Arc<dyn Store>, name: &str) -> Result<Node, Fail> {
    let node = Node::builder("memory:", CLUSTER)
        .store(store.clone())
        .name(name)
        .settings(settings())
        .mode(KeyspaceMode::Symmetric)
        .keyspace(KEYSPACE, Hashed(SHARDS), Loads(Duration::from_millis(1)));
    node.start().await.map_err(|e| Fail::no(e.to_string()))
}

/// Waits until so many nodes serve all shards, and nothing has moved for a while.
async fn settled(store: &Arc<dyn Store>, nodes: usize) -> Result<Books, Fail> {
    let begun = Instant::now();
    let mut known = (Instant::now(), 0);
    loop {
        let books = books(store).await?;
        let written = books.shards.values().map(|(rev, _)| rev).sum();
        if known.1 != written {
            known = (Instant::now(), written);
        }
        let mut owners: Vec<_> = books.shards.values().map(|(_, owner)| owner).collect();
        owners.sort();
        owners.dedup();
        let served = !owners.contains(&&None) && owners.len() == nodes && books.moving == 0;
        if served && books.shards.len() == SHARDS as usize && known.0.elapsed() > CALM {
            return Ok(books);
        }
        if begun.elapsed() > PATIENCE {
            return Err(Fail::no(format!(
                "{nodes} nodes did not share {SHARDS} shards within {PATIENCE:?}"
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn books(store: &Arc<dyn Store>) -> Result<Books, Fail> {
    let cluster = ClusterName::new(CLUSTER)?;
    let mut books = Books {
        shards: BTreeMap::new(),
        routers: 0,
        moving: 0,
    };
    for entry in store.list(&prefix(&cluster)).await?.entries {
        let Some(key) = Key::parse(&cluster, &entry.key) else {
            continue;
        };
        match (&key, Record::decode(&key, &entry.value)) {
            (Key::Shard(id), Ok(Record::Shard(record))) => {
                let serving = match &record.tenancy {
                    Tenancy::Held { by, serving: true } => Some(by.node.to_string()),
                    _ => None,
                };
                books.moving += usize::from(record.tenancy.moving().is_some());
                books.shards.insert(id.clone(), (record.head.rev, serving));
            }
            (_, Ok(Record::Session(record))) if record.role == Role::Router => {
                books.routers += record.head.rev;
            }
            _ => {}
        }
    }
    Ok(books)
}

pub(super) fn print(all: &[Writes], out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(
        out,
        "\nstore writes when a fourth node joins three (aim: 4 per move, 1 per router and batch)\n"
    )?;
    let mut table = Table::new(&[
        "#ROUTERS",
        "#SHARDS",
        "#MOVES",
        "#WRITES TO SHARDS",
        "#PER MOVE",
        "#BY ROUTERS",
        "#PER ROUTER",
    ]);
    for w in all {
        table.row(vec![
            w.routers.to_string(),
            w.shards.to_string(),
            w.moves.to_string(),
            w.shard_writes.to_string(),
            super::shown(w.per_move),
            w.router_writes.to_string(),
            super::shown(w.per_router),
        ]);
    }
    write!(out, "{}", table.render(WIDTH))
}
