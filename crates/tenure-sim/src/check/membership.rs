//! Shards belong to nodes that serve their keyspace, and cordoned nodes get no more of them.

use tenure_core::ids::NodeName;
use tenure_core::record::ShardRecord;

use super::{CheckResult, Violation};
use crate::clock::Instant;
use crate::run_config::RunConfig;

/// Checker of the membership of owners: the last owner of each shard, and since when nodes are cordoned, by number.
#[derive(Debug)]
pub(crate) struct MembershipChecker {
    owners: Vec<Option<NodeName>>,
    cordoned: Vec<Option<Instant>>,
}

impl MembershipChecker {
    pub(crate) fn new(shards: usize, nodes: usize) -> Self {
        Self {
            owners: vec![None; shards],
            cordoned: vec![None; nodes],
        }
    }

    /// The store was put back: these own the shards now, and these nodes are cordoned.
    pub(crate) fn restored(
        &mut self,
        at: Instant,
        owners: Vec<Option<NodeName>>,
        cordoned: &[bool],
    ) {
        self.owners = owners;
        for (node, cordoned) in cordoned.iter().enumerate() {
            self.node_written(at, node, *cordoned);
        }
    }

    /// A node's record says whether it is cordoned; one that is gone says nothing.
    pub(crate) fn node_written(&mut self, at: Instant, node: usize, cordoned: bool) {
        let since = &mut self.cordoned[node];
        *since = cordoned.then(|| since.unwrap_or(at));
    }

    /// A shard's record names these nodes now.
    pub(crate) fn shard_written(
        &mut self,
        at: Instant,
        shard: usize,
        record: &ShardRecord,
        plan: &RunConfig,
    ) -> CheckResult {
        let target = record.ownership.moving().map(|(mv, _)| &mv.to.node);
        let owner = record.owner().map(|owner| &owner.node);
        let keyspace = plan.keyspace_of(shard);
        for name in owner.into_iter().chain(target) {
            let node = plan.node_named(name);
            if node.is_some_and(|node| !plan.serves(node, keyspace)) {
                let what = format!("shard {shard} goes to {name}, which does not serve it");
                return Err(Violation::new("membership", at, what));
            }
        }
        let Some(owner) = owner else { return Ok(()) };
        let last = self.owners[shard].replace(owner.clone());
        let since = plan.node_named(owner).and_then(|node| self.cordoned[node]);
        if last.as_ref() == Some(owner) || since.is_none_or(|since| at < plan.cordon_by(since)) {
            return Ok(());
        }
        let what = format!("shard {shard} goes to {owner}, which is cordoned");
        Err(Violation::new("cordon", at, what))
    }
}
