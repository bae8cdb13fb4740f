//! Work that runs on one node of a cluster at a time: a keyspace of one shard whose loop is the work.

use std::future::Future;

use crate::grant::Grant;
use crate::handler::{Handler, Result, Shard, SharedState};

/// A handler without state that runs `work` while its shard is owned.
///
/// `work` begins when the shard is owned, never before; when `grant.cancelled()` resolves it has `kill_grace` to return
/// before it is dropped, and only then may another node own the shard.
pub struct Singleton<F> {
    work: F,
}

impl<F, A> Singleton<F>
where
    F: Fn(Grant) -> A + Send + Sync + 'static,
    A: Future<Output = Result<()>> + Send + 'static,
{
    /// A singleton that does `work`.
    pub fn new(work: F) -> Self {
        Self { work }
    }
}

impl<F, A> Handler for Singleton<F>
where
    F: Fn(Grant) -> A + Send + Sync + 'static,
    A: Future<Output = Result<()>> + Send + 'static,
{
    type State = ();

    async fn load(&self, _shard: &Shard) -> Result<()> {
        Ok(())
    }

    async fn run(&self, grant: Grant, _state: SharedState<()>) -> Result<()> {
        (self.work)(grant).await
    }
}
