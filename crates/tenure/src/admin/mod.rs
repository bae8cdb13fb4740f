//! Administrative operations on a running cluster: the operations of the `tenure` command as an API.
//!
//! [`AdminClient`] reads a consistent [`Snapshot`] and writes requests into records; nodes and leader carry them out. Every
//! operation may be repeated, and repeating it changes nothing. A caller that disappears in the middle leaves a complete
//! request or none. Operations report their progress to a callback; `wait_until_*` methods wait for the effect.
//!
//! Operations that destroy information have two steps: a check, which shows what will happen, and the operation, which is
//! conditional on what the check has read.
//!
//! | file | content |
//! |---|---|
//! | `client.rs`, `waits.rs` | reads, conditional writes with read-back, the loop that changes a record; waits |
//! | `snapshot.rs`, `error.rs` | a consistent read; errors by what the caller does next |
//! | `nodes.rs`, `moves.rs` | cordon, drain, resume, stop; moves, pins, rebalance, pause of moves |
//! | `shards.rs`, `shard_repair.rs` | creation and deletion of named shards; repair |
//! | `keyspaces.rs`, `keyspace_creation.rs`, `generations.rs` | update and deletion; creation; generations |
//! | `clusters.rs`, `gc.rs`, `record_repair.rs` | list and deletion; garbage collection; repair of other records |

mod client;
mod clusters;
mod error;
mod gc;
mod generations;
mod keyspace_creation;
mod keyspaces;
mod moves;
mod nodes;
mod record_repair;
mod shard_repair;
mod shards;
mod snapshot;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::members;

pub use client::AdminClient;
pub use clusters::{ClusterSummary, StoppedCluster, cluster_summaries, clusters};
pub use error::AdminError;
pub use gc::{GcOutcome, GcRecord};
pub use generations::{BumpedGenerations, BumpedKeyspace};
pub use keyspace_creation::{CreationProgress, KeyspaceCreation, NewKeyspace};
pub use keyspaces::{KeyspaceDeletion, OwnedShards, PlanningUpdate};
pub use moves::{MoveStatus, PinUpdate};
pub use nodes::{NodeStatus, ResumedNode, StopRequest};
pub use record_repair::{RecordInspection, RecordRepair, RepairableRecord};
pub use shard_repair::{ShardInspection, ShardProblem, ShardRepair};
pub use shards::{MAX_META, NewShard, ShardWork};
pub use snapshot::{SessionState, Snapshot};
pub use tenure_core::ids::{ClusterName, KeyspaceName};
pub use tenure_core::members::{UnservedGroup, UnservedReason};
pub use tenure_core::plan::{StaleReason, StaleRecord};
pub use tenure_core::record::{
    AssignedBy, ClusterRecord, KeyspaceKind, KeyspaceRecord, NodeRecord, PlanningSettings,
    SessionRecord, ShardRecord,
};
pub use tenure_core::view::{KeyState, Versioned, View};

/// Maximum duration of one call to the store.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

impl AdminClient {
    /// Returns the shards that are not served and why, by keyspace: those that no node can be given, and those that the nodes
    /// report as not served for longer than three ttl. Quarantined shards are left out. Empty if all is well.
    pub async fn unserved(&self) -> Result<BTreeMap<KeyspaceName, Vec<UnservedGroup>>, AdminError> {
        let view = self.snapshot().await?.view;
        let ended = |session| view.sessions.get(&session).is_none_or(|s| !s.is_live());
        let each = view.keyspaces.iter().map(|(name, _)| {
            let blocked = members::blocked(&view, name);
            (name.clone(), members::stuck(&view, name, ended, blocked))
        });
        Ok(each.filter(|(_, stuck)| !stuck.is_empty()).collect())
    }
}
