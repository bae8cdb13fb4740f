//! Batches: many requests under way at once over one connection.

use futures_util::future::join_all;

use super::NatsStore;
use super::kv::LastKnown;
use crate::concurrent_batch::in_waves;
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Put, PutIf};

/// How many requests are under way at once. The server holds back who has many more.
const AT_ONCE: usize = 256;

impl NatsStore {
    pub(super) async fn read_many(
        &self,
        keys: Vec<String>,
    ) -> Vec<Result<Option<Entry>, StoreError>> {
        let mut all = Vec::with_capacity(keys.len());
        for part in keys.chunks(AT_ONCE) {
            let asked = join_all(part.iter().map(|key| self.last(key)));
            // One look at the leader is enough for all that it answered meanwhile.
            let (answers, checked) = tokio::join!(asked, self.check_leader());
            all.extend(answers.into_iter().map(|answer| {
                let last = answer?;
                checked.clone()?;
                Ok(match last {
                    LastKnown::Value(entry) => Some(entry),
                    LastKnown::Deleted(_) | LastKnown::Nothing => None,
                })
            }));
        }
        all
    }

    pub(super) async fn write_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        in_waves(AT_ONCE, puts, |put| &put.key, |put| self.write_one(put)).await
    }

    pub(super) async fn remove_many(
        &self,
        deletes: Vec<DeleteIf>,
    ) -> Vec<Result<Delete, StoreError>> {
        in_waves(
            AT_ONCE,
            deletes,
            |delete| &delete.key,
            |delete| self.remove_one(delete),
        )
        .await
    }
}
