//! Clusters of a store: list and deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{ClusterName, SessionId, Version};
use tenure_core::keys;
use tenure_core::view::KeyState;
use tenure_store::{Delete, DeleteIf, Store};

use super::client::within;
use super::{AdminClient, AdminError, Snapshot};

/// Interval of the checks whether sessions are live.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Attempts of a deletion while other processes write new records.
const DELETE_ATTEMPTS: usize = 5;

/// A cluster of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSummary {
    /// Name of the cluster.
    pub name: ClusterName,
    /// Number of sessions without a tombstone.
    pub sessions: usize,
    /// Number of keyspaces that are not deleted.
    pub keyspaces: usize,
    /// Number of records.
    pub records: usize,
}

/// Proof that no session of a cluster is live, required by [`AdminClient::delete_cluster`].
#[derive(Debug)]
pub struct StoppedCluster {
    cluster: ClusterName,
}

impl StoppedCluster {
    /// Skips the proof. Nodes that run stop serving as soon as they notice the deletion.
    pub fn unchecked(cluster: ClusterName) -> Self {
        Self { cluster }
    }
}

/// Returns the names of all clusters of a store, in order.
pub async fn clusters(store: &dyn Store) -> Result<Vec<ClusterName>, AdminError> {
    let listing = within("listing records", store.list("")).await?;
    let all = listing.entries.iter();
    let mut names: Vec<ClusterName> = all.filter_map(|e| keys::cluster_of(&e.key)).collect();
    names.dedup();
    Ok(names)
}

/// Returns all clusters of a store, in order of their names.
pub async fn cluster_summaries(store: &Arc<dyn Store>) -> Result<Vec<ClusterSummary>, AdminError> {
    let mut summaries = Vec::new();
    for name in clusters(&**store).await? {
        let client = AdminClient::new(store.clone(), name.clone());
        let snapshot = client.snapshot().await?;
        summaries.push(ClusterSummary {
            name,
            sessions: live_sessions(&snapshot).len(),
            keyspaces: snapshot.keyspace_names().count(),
            records: snapshot.records(),
        });
    }
    Ok(summaries)
}

impl AdminClient {
    /// Proves that no node of the cluster runs: watches all sessions for the longest of their leases.
    ///
    /// A session that changes meanwhile is live, and the operation is refused. Before the watch, `watching` is called with the
    /// number of sessions and the duration.
    pub async fn prove_stopped(
        &self,
        watching: impl FnOnce(usize, Duration),
    ) -> Result<StoppedCluster, AdminError> {
        let snapshot = self.snapshot().await?;
        let before = live_sessions(&snapshot);
        let stopped = StoppedCluster::unchecked(self.cluster.clone());
        if before.is_empty() {
            return Ok(stopped);
        }
        let proof = self.proof_of(snapshot.longest_ttl());
        watching(before.len(), proof);
        let until = self.clock.now() + proof;
        while self.clock.now() < until {
            self.clock.sleep(POLL_INTERVAL).await;
            let now = self.snapshot().await?;
            for (session, version) in live_sessions(&now) {
                if before.get(&session) != Some(&version) {
                    let node = now.view.sessions.get(&session).map(|s| s.node.to_string());
                    return Err(AdminError::Refused(format!(
                        "session {session} of node {} is live; stop the nodes of cluster {} first, or pass --force",
                        node.unwrap_or_default(),
                        self.cluster
                    )));
                }
            }
        }
        Ok(stopped)
    }

    /// Deletes all records of the cluster, including those written meanwhile. Returns their number.
    ///
    /// Epochs start again at 1 if a cluster of this name is created later. Queues are deleted by `tenure_queue::delete_all`,
    /// which belongs before this call.
    pub async fn delete_cluster(&self, stopped: StoppedCluster) -> Result<usize, AdminError> {
        if stopped.cluster != self.cluster {
            return Err(AdminError::Invalid(format!(
                "the proof is for cluster {}, not for cluster {}",
                stopped.cluster, self.cluster
            )));
        }
        let prefix = keys::prefix(&self.cluster);
        let mut deleted = 0;
        for _ in 0..DELETE_ATTEMPTS {
            let listing = within("listing records", self.store.list(&prefix)).await?;
            if listing.entries.is_empty() {
                return Ok(deleted);
            }
            let deletes: Vec<DeleteIf> = listing
                .entries
                .iter()
                .map(|entry| DeleteIf::new(&entry.key, entry.version.clone()))
                .collect();
            let call = async { Ok(self.store.delete_many(deletes).await) };
            for answer in within("deleting records", call).await? {
                deleted += usize::from(answer? == Delete::Won);
            }
        }
        Err(AdminError::Refused(format!(
            "{deleted} records were deleted, but other processes keep writing new ones; stop the nodes of cluster {} and run \
             the command again",
            self.cluster
        )))
    }
}

/// Sessions without a tombstone, readable or not.
fn live_sessions(snapshot: &Snapshot) -> BTreeMap<SessionId, Version> {
    let all = snapshot.view.sessions.cells();
    all.filter_map(|(id, cell)| match cell {
        KeyState::Present(seen) if seen.record.is_live() => Some((*id, seen.version.clone())),
        KeyState::Damaged { version, .. } => Some((*id, version.clone())),
        _ => None,
    })
    .collect()
}
