//! Number of store writes of moves: a fourth node joins three with 1,000 shards, while routers look on.
//!
//! Counted at the store: every record carries how often it was written. Renewals are far apart, so that hardly any fall into the time that is looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::router::{HoldLimits, Router};
use tenure::{AssignedBy, Hashed, Node, Settings};
use tenure_core::ids::{ClusterName, ShardId};
use tenure_core::keys::{Key, prefix};
use tenure_core::record::{Ownership, Record, Role};
use tenure_store::Store;

use super::Steal;
use super::unavailability::{Loads, clean};
use crate::exit::Exit;
use crate::store_access::{bad_store, random_id, within};
use crate::table::{Table, WIDTH};
use crate::worker::KEYSPACE;

const SHARDS: u32 = 1000;
/// Far beyond what the moves take.
const TIMEOUT: Duration = Duration::from_secs(120);
/// So long nothing moves when all is over.
const CALM: Duration = Duration::from_millis(700);

/// What moving a quarter of the shards took.
#[derive(Debug, Serialize)]
pub(crate) struct Writes {
    store: &'static str,
    assigned_by: AssignedBy,
    routers: u32,
    shards: u32,
    moves: u64,
    /// Writes to records of shards that moved.
    shard_writes: u64,
    /// Writes to sessions of routers.
    router_writes: u64,
    /// Writes to sessions of nodes, that of the one that joins not included.
    node_writes: u64,
    /// Writes to the session of the node that joins, from its start.
    joiner_writes: u64,
    per_move: f64,
    per_router: f64,
    /// From the start of the node that joins until nothing moves.
    took_ms: f64,
    /// Time that the host gave to others meanwhile.
    steal_percent: f64,
}

/// How often each record was written, and who has the shards.
struct Books {
    shards: BTreeMap<ShardId, (u64, Option<String>)>,
    routers: u64,
    nodes: BTreeMap<String, u64>,
    moving: usize,
    /// Time of the last change that was seen.
    changed: Instant,
}

/// A cluster on one store that all processes share: writes are counted, not timed.
struct Stage {
    store: Arc<dyn Store>,
    cluster: ClusterName,
    assigned_by: AssignedBy,
}

pub(crate) async fn count(url: &str, mode: AssignedBy, routers: u32) -> Result<Writes, Exit> {
    eprintln!("counting writes on {url}, assigned by {mode}, with {routers} routers …");
    let opened = within("opening the store", tenure_store::open(url)).await?;
    let stage = Stage {
        store: opened.map_err(bad_store)?,
        cluster: ClusterName::new(format!("bench-{:08x}", random_id() as u32))?,
        assigned_by: mode,
    };
    let counted = tokio::select! {
        counted = stage.play(routers) => counted,
        _ = tokio::signal::ctrl_c() => Err(Exit::failed("benchmark interrupted; it deletes the keys that it wrote in the store")),
    };
    clean(&stage.store, &stage.cluster).await?;
    counted
}

impl Stage {
    async fn play(&self, routers: u32) -> Result<Writes, Exit> {
        let mut nodes = Vec::new();
        for name in ["a", "b", "c"] {
            nodes.push(self.node(name).await?);
        }
        settled(self, 3).await?;
        let mut lookers = Vec::new();
        for n in 0..routers {
            let settings = settings();
            let router = Router::builder("memory:", self.cluster.as_str())
                .store(self.store.clone())
                .name(format!("r{n}"))
                .hold(HoldLimits {
                    age: settings.router_hold_timeout
                        + settings.drain_timeout
                        + settings.take_timeout,
                    ..HoldLimits::default()
                })
                .settings(settings);
            lookers.push(
                router
                    .start()
                    .await
                    .map_err(|e| Exit::failed(e.to_string()))?,
            );
        }
        let before = books(self).await?;
        let (begun, steal) = (Instant::now(), Steal::now());
        let fourth = self.node("d").await?;
        let after = settled(self, 4).await?;
        let steal_percent = steal.percent_since();
        let counted = self.compare(routers, &before, &after);
        nodes.push(fourth);
        for looker in lookers {
            looker
                .stop()
                .await
                .map_err(|e| Exit::failed(e.to_string()))?;
        }
        // What is written from here on is removed with the cluster: nobody need hand anything over.
        drop(nodes);
        Ok(Writes {
            took_ms: super::millis(after.changed - begun),
            steal_percent,
            ..counted
        })
    }

    fn compare(&self, routers: u32, before: &Books, after: &Books) -> Writes {
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
        let known = |name: &String| before.nodes.get(name).copied();
        let grown = after
            .nodes
            .iter()
            .filter_map(|(n, rev)| Some(rev - known(n)?));
        let joined = after.nodes.iter().filter(|(n, _)| known(n).is_none());
        Writes {
            store: self.store.info().kind,
            assigned_by: self.assigned_by,
            routers,
            shards: SHARDS,
            moves,
            shard_writes,
            router_writes,
            node_writes: grown.sum(),
            joiner_writes: joined.map(|(_, rev)| rev).sum(),
            per_move: shard_writes as f64 / (moves as f64).max(1.0),
            per_router: router_writes as f64 / f64::from(routers),
            took_ms: 0.0,
            steal_percent: 0.0,
        }
    }

    async fn node(&self, name: &str) -> Result<Node, Exit> {
        let node = Node::builder("memory:", self.cluster.as_str())
            .store(self.store.clone())
            .name(name)
            .settings(settings())
            .assigned_by(self.assigned_by)
            .plan(super::prompt())
            .keyspace(KEYSPACE, Hashed(SHARDS), Loads(Duration::from_millis(1)));
        node.start().await.map_err(|e| Exit::failed(e.to_string()))
    }
}

fn settings() -> Settings {
    Settings {
        // Renewals are far apart.
        ttl: Duration::from_secs(120),
        // In `rendezvous` keyspaces all that one node gives away goes at once.
        release_batch: SHARDS as usize,
        ..Settings::default()
    }
}

/// Waits until so many nodes serve all shards, and nothing has moved for a while.
async fn settled(stage: &Stage, nodes: usize) -> Result<Books, Exit> {
    let begun = Instant::now();
    let mut known = (Instant::now(), 0);
    loop {
        let mut books = books(stage).await?;
        let written = books.shards.values().map(|(rev, _)| rev).sum();
        if known.1 != written {
            known = (Instant::now(), written);
        }
        let mut owners: Vec<_> = books.shards.values().map(|(_, owner)| owner).collect();
        owners.sort();
        owners.dedup();
        let served = !owners.contains(&&None) && owners.len() == nodes && books.moving == 0;
        if served && books.shards.len() == SHARDS as usize && known.0.elapsed() > CALM {
            books.changed = known.0;
            return Ok(books);
        }
        if begun.elapsed() > TIMEOUT {
            return Err(Exit::failed(format!(
                "{nodes} nodes did not balance {SHARDS} shards within {TIMEOUT:?}; run the benchmark again"
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn books(stage: &Stage) -> Result<Books, Exit> {
    let cluster = &stage.cluster;
    let mut books = Books {
        shards: BTreeMap::new(),
        routers: 0,
        nodes: BTreeMap::new(),
        moving: 0,
        changed: Instant::now(),
    };
    for entry in stage.store.list(&prefix(cluster)).await?.entries {
        let Some(key) = Key::parse(cluster, &entry.key) else {
            continue;
        };
        match (&key, Record::decode(&key, &entry.value)) {
            (Key::Shard(id), Ok(Record::Shard(record))) => {
                let serving = match &record.ownership {
                    Ownership::Owned { by, serving: true } => Some(by.node.to_string()),
                    _ => None,
                };
                books.moving += usize::from(record.ownership.moving().is_some());
                books.shards.insert(id.clone(), (record.head.rev, serving));
            }
            (_, Ok(Record::Session(record))) if record.role == Role::Router => {
                books.routers += record.head.rev;
            }
            (_, Ok(Record::Session(record))) => {
                books.nodes.insert(record.node.to_string(), record.head.rev);
            }
            _ => {}
        }
    }
    Ok(books)
}

pub(crate) fn print(all: &[Writes], out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(
        out,
        "\nstore writes while a fourth node joins (aim: 4 per move, 1 per router and batch)\n"
    )?;
    let mut table = Table::new(&[
        "STORE",
        "MODE",
        "#ROUTERS",
        "#SHARDS",
        "#MOVES",
        "#WRITES TO SHARDS",
        "#PER MOVE",
        "#BY ROUTERS",
        "#PER ROUTER",
        "#BY THE NEW NODE",
        "#TOOK ms",
        "#STEAL %",
    ]);
    for w in all {
        table.row(vec![
            w.store.to_owned(),
            w.assigned_by.to_string(),
            w.routers.to_string(),
            w.shards.to_string(),
            w.moves.to_string(),
            w.shard_writes.to_string(),
            super::shown(w.per_move),
            w.router_writes.to_string(),
            super::shown(w.per_router),
            w.joiner_writes.to_string(),
            super::shown(w.took_ms),
            super::shown(w.steal_percent),
        ]);
    }
    write!(out, "{}", table.render(WIDTH))
}
