//! Owning shards through a node of Tenure's.

use std::sync::Arc;

use tenure::{Grant, Handler, Result, Shard, SharedState};

use super::context::WorkerContext;

/// The handler of a queue's keyspace: a shard that is owned is polled, and nothing else.
pub(super) struct WorkerShardHandler(pub(super) Arc<WorkerContext>);

impl Handler for WorkerShardHandler {
    type State = ();

    async fn load(&self, _: &Shard) -> Result<()> {
        Ok(())
    }

    async fn run(&self, grant: Grant, _: SharedState<()>) -> Result<()> {
        let shard = grant.shard().shard.as_str().parse()?;
        // Dropped with this future too, if the shard is lost: no claim follows.
        let _owned = self.0.own(shard, grant.clone());
        grant.cancelled().await;
        Ok(())
    }
}
