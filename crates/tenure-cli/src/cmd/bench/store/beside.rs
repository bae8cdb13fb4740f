//! What a real node makes of the calls, each measurement in turn with the bare calls that it cannot do without.

use std::sync::Arc;
use std::time::Instant;

use tenure::{Named, Node, Note, ShardStep};
use tenure_core::ids::{KeyspaceName, Nonce, SessionId, ShardId, ShardName};
use tenure_core::layout::{Key, prefix};
use tenure_core::record::{Head, Record, ShardRecord};
use tenure_store::{PutIf, Store, Version};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Bed;
use super::calls::{CALM, Leased, Watched, micros, timed, won};
use crate::cmd::bench::measure::Row;
use crate::cmd::bench::worker::{KEYSPACE, Nothing};
use crate::fail::Fail;
use crate::place::{random_id, within};

const AREA: &str = "a node beside them";

pub(super) async fn measure(bed: &Bed, repeat: u32) -> Result<Vec<Row>, Fail> {
    let node = Node::builder(&bed.url, bed.busy.as_str())
        .name("a")
        .ttl(bed.ttl)
        .keyspace(KEYSPACE, Named, Nothing)
        .start()
        .await
        .map_err(|e| Fail::no(e.to_string()))?;
    let rows = vec![
        claims(bed, &node, repeat).await?,
        renewals(bed, &node, repeat).await?,
    ];
    node.stop().await.map_err(|e| Fail::no(e.to_string()))?;
    Ok(rows)
}

/// From the write of a free shard by somebody else to its claim: the write, its way through the watch, one conditional
/// write. The node's own decisions are what comes on top.
async fn claims(bed: &Bed, node: &Node, repeat: u32) -> Result<Row, Fail> {
    let mut watched = Watched::begin(bed).await?;
    let writer = SessionId(random_id());
    let mut pairs = Vec::new();
    for n in 0..repeat {
        let (seen, swapped) = watched.put_seen().await?;
        let name = ShardName::new(format!("s{n}"))?;
        let shard = ShardId::new(KeyspaceName::new(KEYSPACE)?, name);
        let nonce = Nonce {
            writer,
            n: u64::from(n) + 1,
        };
        let record = Record::Shard(Arc::new(ShardRecord::new(Head::first(nonce), 1)));
        let put = PutIf::create(Key::Shard(shard.clone()).path(&bed.busy), record.encode());
        let mut notes = node.notes();
        tokio::time::sleep(CALM).await;
        let begun = Instant::now();
        won(within("writing", bed.store.put_if(put)).await??)?;
        let claimed = heard(&mut notes, |note| match note {
            Note::Shard(step) if step.step == ShardStep::Claimed && step.shard == shard => Some(()),
            _ => None,
        });
        within("waiting for a claim", claimed).await??;
        pairs.push((micros(begun.elapsed()), seen + swapped));
    }
    Ok(Row::beside(
        AREA,
        "free shard written → claimed by a node",
        "µs",
        "put → seen by a watch, compare-and-swap",
        pairs,
    )
    .aiming_at("≤ 1.2"))
}

/// Renewals as the node itself times them.
async fn renewals(bed: &Bed, node: &Node, repeat: u32) -> Result<Row, Fail> {
    // As a node does: renewals have a connection of their own.
    let store = bed.store.dedicated()?;
    let mut bare = Bare::new(bed, &*store).await?;
    // The first call on a new connection opens it.
    bare.call(&*store).await?;
    let mut notes = node.notes();
    let mut pairs = Vec::new();
    for _ in 0..repeat {
        let renewed = heard(&mut notes, |note| match note {
            Note::Renewed { took, .. } => Some(micros(*took)),
            _ => None,
        });
        let took = within("waiting for a renewal", renewed).await??;
        // Halfway to the next one: a renewal begins on a connection that has been idle, and so does this.
        tokio::time::sleep(bed.ttl / 12).await;
        pairs.push((took, bare.call(&*store).await?));
    }
    let name = match bare {
        Bare::Swap { .. } => "compare-and-swap of a record of its size",
        Bare::Lease(_) => "keep_alive",
    };
    Ok(Row::beside(AREA, "renewal of a node's lease", "µs", name, pairs).aiming_at("≤ 1.2"))
}

/// The one call that a renewal consists of.
enum Bare {
    Swap {
        key: String,
        value: Arc<[u8]>,
        version: Version,
    },
    Lease(Leased),
}

impl Bare {
    async fn new(bed: &Bed, store: &dyn Store) -> Result<Self, Fail> {
        let key = format!("{}renewed", prefix(&bed.bare));
        if let Some(leases) = store.leases() {
            return Ok(Self::Lease(Leased::grant(store, leases, key).await?));
        }
        let sessions = format!("{}sessions/", prefix(&bed.busy));
        let sessions = within("listing", store.list(&sessions)).await??.entries;
        let session = sessions.into_iter().next().ok_or_else(|| {
            Fail::no("the node has no session in the store; it was lost meanwhile")
        })?;
        let put = PutIf::create(&key, session.value.clone());
        Ok(Self::Swap {
            key,
            value: session.value,
            version: won(within("writing", store.put_if(put)).await??)?,
        })
    }

    /// Microseconds of one such call.
    async fn call(&mut self, store: &dyn Store) -> Result<f64, Fail> {
        match self {
            Self::Swap {
                key,
                value,
                version,
            } => {
                let put = PutIf::update(&*key, value.clone(), version.clone());
                let (took, put) = timed(store.put_if(put)).await?;
                *version = won(put?)?;
                Ok(took)
            }
            Self::Lease(leased) => {
                let leases = store.leases().ok_or_else(|| {
                    Fail::no("the store has lost its leases; it was exchanged meanwhile")
                })?;
                leased.keep_alive(leases).await
            }
        }
    }
}

/// Waits for something that the node says.
async fn heard<T>(
    notes: &mut Receiver<Arc<Note>>,
    wanted: impl Fn(&Note) -> Option<T>,
) -> Result<T, Fail> {
    loop {
        match notes.recv().await {
            Ok(note) => {
                if let Some(found) = wanted(&note) {
                    return Ok(found);
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return Err(Fail::no("the node has ended meanwhile")),
        }
    }
}
