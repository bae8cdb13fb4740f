//! Pages of keys, and removing keys without a trace.
//!
//! The leader of the bucket knows which subjects there are without reading a message. Some of them are marks of deletions: the
//! last message of each subject of the page says so. A key that is discarded leaves no mark, so that indexes, of which most
//! entries are gone soon, do not fill the bucket with marks.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::NatsStore;
use super::call::NatsRequest;
use super::jetstream::{self, StreamInfo};
use crate::error::StoreError;
use crate::store::KeyPage;

/// How many subjects are removed at once.
const AT_ONCE: usize = 256;

impl NatsStore {
    pub(super) async fn read_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let names = self.subjects(&self.keys.filters(prefix)[0]).await?;
        let mut keys: Vec<String> = names
            .iter()
            .filter_map(|name| self.keys.key(name))
            .collect();
        keys.retain(|key| key.starts_with(prefix) && after.is_none_or(|after| &**key > after));
        // The order of subjects is not the order of keys.
        keys.sort_unstable();
        let mut rest = keys.into_iter().peekable();
        let mut page = KeyPage::default();
        loop {
            page.more = rest.peek().is_some();
            let missing = limit - page.keys.len();
            let part: Vec<String> = rest.by_ref().take(missing).collect();
            if part.is_empty() {
                return Ok(page);
            }
            for got in self.read_many(part).await {
                page.keys.extend(got?.map(|entry| entry.key));
            }
        }
    }

    /// The subjects that fit a filter. They come in pages of the server's own size.
    async fn subjects(&self, filter: &str) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        loop {
            let asked = json!({ "subjects_filter": filter, "offset": names.len() });
            let subject = jetstream::about("STREAM.INFO", &self.keys.stream);
            let question = NatsRequest::reads(subject, &asked);
            let info: StreamInfo = self.client.demand(question).await?;
            info.in_touch(&self.keys.bucket)?;
            let found = info.state.subjects;
            if found.is_empty() {
                return Ok(names);
            }
            names.extend(found.into_keys());
            if names.len() >= info.total {
                return Ok(names);
            }
        }
    }

    pub(super) async fn discard_many(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::with_capacity(keys.len());
        for part in keys.chunks(AT_ONCE) {
            answers.extend(join_all(part.iter().map(|key| self.discard_one(key))).await);
        }
        answers
    }

    async fn discard_one(&self, key: &str) -> Result<(), StoreError> {
        let purge = json!({ "filter": self.keys.subject(key) });
        let asked = jetstream::about("STREAM.PURGE", &self.keys.stream);
        let answer: Value = self
            .client
            .demand(NatsRequest::writes(asked, &purge))
            .await?;
        drop(answer);
        Ok(())
    }
}
