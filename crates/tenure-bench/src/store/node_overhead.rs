//! Operations of a real node, each measurement in turn with the bare calls that it cannot do without.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::{AssignedBy, Named, Node, NodeEvent, ShardStep};
use tenure_core::ids::{KeyspaceName, Nonce, SessionId, ShardId, ShardName};
use tenure_core::keys::{Key, prefix};
use tenure_core::record::{Head, Record, ShardRecord};
use tenure_store::{PutIf, Store, Version};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::Bed;
use super::calls::{CALM, Leased, Watched, micros, timed, won};
use crate::exit::Exit;
use crate::measure::ReportRow;
use crate::store_access::{CALL_TIMEOUT, random_id, within};
use crate::worker::NoopHandler;

const AREA: &str = "a node compared with them";

/// How often a node is asked whether it has seen a write.
const LOOK: Duration = Duration::from_micros(20);

pub(crate) async fn measure(bed: &Bed, repeat: u32) -> Result<Vec<ReportRow>, Exit> {
    let mut rows = Vec::new();
    for mode in [AssignedBy::Rendezvous, AssignedBy::Leader] {
        let node = Node::builder(&bed.url, bed.busy.as_str())
            .name(mode.to_string())
            .ttl(bed.ttl)
            .assigned_by(mode)
            .keyspace(mode.to_string(), Named, NoopHandler)
            .start()
            .await
            .map_err(|e| Exit::failed(e.to_string()))?;
        rows.extend(claims(bed, &node, mode, repeat).await?);
        if mode == AssignedBy::Rendezvous {
            rows.push(renewals(bed, &node, repeat).await?);
        }
        node.stop().await.map_err(|e| Exit::failed(e.to_string()))?;
    }
    Ok(rows)
}

/// What became of one free shard.
struct Claimed {
    /// Microseconds until the node had seen it.
    seen: f64,
    /// Microseconds until it was the node's.
    claimed: f64,
}

/// From the write of a free shard by somebody else to its claim: the write, its way through the watch, one conditional
/// write, and before that another one where a leader plans. The node's own decisions are what comes on top.
async fn claims(
    bed: &Bed,
    node: &Node,
    mode: AssignedBy,
    repeat: u32,
) -> Result<Vec<ReportRow>, Exit> {
    let mut watched = Watched::begin(bed).await?;
    let (mut seen, mut claimed) = (Vec::new(), Vec::new());
    let led = mode == AssignedBy::Leader;
    let writes = if led { 2.0 } else { 1.0 };
    for n in 0..repeat {
        let (bare, swapped) = watched.put_seen().await?;
        let took = claim(bed, node, mode, n).await?;
        seen.push((took.seen, bare));
        claimed.push((took.claimed, bare + writes * swapped));
    }
    if led {
        let (case, calls) = (
            "free shard written → assigned by the leader and claimed",
            "put → seen by a watch, two compare-and-swaps",
        );
        return Ok(vec![
            ReportRow::beside(AREA, case, "µs", calls, claimed).aiming_at("≤ 1.2"),
        ]);
    }
    let (put, calls) = (
        "put → seen by a watch",
        "put → seen by a watch, compare-and-swap",
    );
    let rows = [
        ("shard written → seen by a node", put, seen),
        ("free shard written → claimed by a node", calls, claimed),
    ];
    let row =
        |(case, calls, pairs)| ReportRow::beside(AREA, case, "µs", calls, pairs).aiming_at("≤ 1.2");
    Ok(rows.into_iter().map(row).collect())
}

async fn claim(bed: &Bed, node: &Node, mode: AssignedBy, n: u32) -> Result<Claimed, Exit> {
    let keyspace = KeyspaceName::new(mode.to_string())?;
    let shard = ShardId::new(keyspace, ShardName::new(format!("s{n}"))?);
    let nonce = Nonce {
        writer: SessionId(random_id()),
        n: 1,
    };
    let record = Record::Shard(Arc::new(ShardRecord::new(Head::first(nonce), 1)));
    let put = PutIf::create(Key::Shard(shard.clone()).path(&bed.busy), record.encode());
    let mut notes = node.events();
    tokio::time::sleep(CALM).await;
    let begun = Instant::now();
    won(within("writing a record", bed.store.put_if(put)).await??)?;
    let seen = tokio::task::block_in_place(|| {
        while node.owner(&shard).is_none() && begun.elapsed() < CALL_TIMEOUT {
            std::thread::sleep(LOOK);
        }
        micros(begun.elapsed())
    });
    let claimed = heard(&mut notes, |note| match note {
        NodeEvent::Shard(step) if step.step == ShardStep::Claimed && step.shard == shard => {
            Some(micros(begun.elapsed()))
        }
        _ => None,
    });
    let claimed = within("waiting for a claim", claimed).await??;
    Ok(Claimed { seen, claimed })
}

/// Renewals as the node itself times them.
async fn renewals(bed: &Bed, node: &Node, repeat: u32) -> Result<ReportRow, Exit> {
    // As a node does: renewals have a connection of their own.
    let store = bed.store.dedicated()?;
    let mut bare = Bare::new(bed, &*store).await?;
    // The first call on a new connection opens it.
    bare.call(&*store).await?;
    let mut notes = node.events();
    let mut pairs = Vec::new();
    for _ in 0..repeat {
        let renewed = heard(&mut notes, |note| match note {
            NodeEvent::Renewed { took, .. } => Some(micros(*took)),
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
    Ok(ReportRow::beside(AREA, "renewal of a node's lease", "µs", name, pairs).aiming_at("≤ 1.2"))
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
    async fn new(bed: &Bed, store: &dyn Store) -> Result<Self, Exit> {
        let key = format!("{}renewed", prefix(&bed.bare));
        if let Some(leases) = store.leases() {
            return Ok(Self::Lease(Leased::grant(store, leases, key).await?));
        }
        let sessions = format!("{}sessions/", prefix(&bed.busy));
        let sessions = within("listing records", store.list(&sessions))
            .await??
            .entries;
        let session = sessions.into_iter().next().ok_or_else(|| {
            Exit::failed(
                "the session record of the benchmark's node is missing in the store; another \
                process deleted it; run the benchmark again",
            )
        })?;
        let put = PutIf::create(&key, session.value.clone());
        Ok(Self::Swap {
            key,
            value: session.value,
            version: won(within("writing a record", store.put_if(put)).await??)?,
        })
    }

    /// Microseconds of one such call.
    async fn call(&mut self, store: &dyn Store) -> Result<f64, Exit> {
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
                    Exit::failed(
                        "the store supports no leases any more, because it was replaced during the \
                        benchmark; run it again",
                    )
                })?;
                leased.keep_alive(leases).await
            }
        }
    }
}

/// Waits for something that the node says.
async fn heard<T>(
    notes: &mut Receiver<Arc<NodeEvent>>,
    wanted: impl Fn(&NodeEvent) -> Option<T>,
) -> Result<T, Exit> {
    loop {
        match notes.recv().await {
            Ok(note) => {
                if let Some(found) = wanted(&note) {
                    return Ok(found);
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => {
                return Err(Exit::failed(
                    "the benchmark's node stopped during the run; run the \
                benchmark again",
                ));
            }
        }
    }
}
