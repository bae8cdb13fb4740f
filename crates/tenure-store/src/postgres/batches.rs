//! Batches and lists: many keys in one statement.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::ids::{Revision, Version};
use tokio_postgres::Row;

use super::client::{Params, StatementSession};
use super::{PostgresStore, keys};
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Expect, KeyPage, Listing, Put, PutIf};

/// How many keys one statement takes at most.
pub(super) const BATCH_KEYS: usize = 500;

impl PostgresStore {
    pub(super) async fn get_chunk(
        &self,
        keys: &[String],
    ) -> Result<BTreeMap<String, Entry>, StoreError> {
        let session = self.link.session().await?;
        let texts: Vec<String> = keys.iter().map(|key| keys::escape(key)).collect();
        let get_many = &session.statements.get_many;
        let rows = session.read("", get_many, &[&texts]).await?;
        let mut found = BTreeMap::new();
        for row in rows {
            let text: &str = row.try_get(0).map_err(|e| session.odd(&e))?;
            if let Some(key) = keys::unescape(text) {
                found.insert(key.clone(), entry(&session, key, &row, 1)?);
            }
        }
        Ok(found)
    }

    pub(super) async fn put_chunk(&self, puts: &[PutIf]) -> Result<Vec<Put>, StoreError> {
        let session = self.link.session().await?;
        let (mut texts, mut values, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for put in puts {
            expected.push(match &put.expect {
                Expect::Absent => None,
                Expect::Version(Version::Number(n)) => Some(n.cast_signed()),
                // Fits nothing, like any version that no key has.
                Expect::Version(Version::Text(_)) => Some(-1),
            });
            texts.push(keys::escape(&put.key));
            values.push(&*put.value);
        }
        let params: Params<'_> = &[&texts, &values, &expected];
        let rows = session.write("", &session.statements.put_many, params);
        let won = won(&session, &rows.await?)?;
        let answer = |text: &String| match won.get(text) {
            Some(version) => Put::Won(Version::Number(version.cast_unsigned())),
            None => Put::Lost,
        };
        Ok(texts.iter().map(answer).collect())
    }

    pub(super) async fn delete_chunk(
        &self,
        deletes: &[DeleteIf],
    ) -> Result<Vec<Delete>, StoreError> {
        let session = self.link.session().await?;
        let (mut texts, mut expected) = (Vec::new(), Vec::new());
        for delete in deletes {
            texts.push(keys::escape(&delete.key));
            expected.push(match delete.version {
                Version::Number(n) => n.cast_signed(),
                Version::Text(_) => -1,
            });
        }
        let params: Params<'_> = &[&texts, &expected];
        let rows = session.write("", &session.statements.delete_many, params);
        let won = won(&session, &rows.await?)?;
        let answer = |text: &String| match won.contains_key(text) {
            true => Delete::Won,
            false => Delete::Lost,
        };
        Ok(texts.iter().map(answer).collect())
    }

    pub(super) async fn discard_chunk(&self, keys: &[String]) -> Result<(), StoreError> {
        let session = self.link.session().await?;
        let texts: Vec<String> = keys.iter().map(|key| keys::escape(key)).collect();
        let params: Params<'_> = &[&texts];
        let discarded = session.write("", &session.statements.discard, params);
        discarded.await.map(drop)
    }

    /// A page of keys. One more than asked for is read, to know whether there are more.
    pub(super) async fn keys_page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<KeyPage, StoreError> {
        let session = self.link.session().await?;
        let from = keys::escape(prefix);
        let (to, after) = (keys::after(&from), after.map(keys::escape));
        let read = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
        let params: Params<'_> = &[&from, &after, &to, &read];
        let rows = session.read(prefix, &session.statements.keys, params);
        let mut keys = Vec::new();
        let rows = rows.await?;
        let more = rows.len() > limit;
        for row in rows.iter().take(limit) {
            let text: &str = row.try_get(0).map_err(|e| session.odd(&e))?;
            keys.extend(keys::unescape(text));
        }
        Ok(KeyPage { keys, more })
    }

    /// The rows of `LIST`: a first one that says where we are, then the keys.
    pub(super) fn listing(
        &self,
        session: &StatementSession,
        prefix: &str,
        rows: &[Row],
    ) -> Result<Listing, StoreError> {
        let odd = |e| session.odd(&e);
        let mut entries = Vec::with_capacity(rows.len());
        let mut revision = Revision(0);
        for row in rows {
            let Some(text) = row.try_get::<_, Option<&str>>(0).map_err(odd)? else {
                let (position, at) = (row.try_get(1).map_err(odd)?, row.try_get(2).map_err(odd)?);
                revision = self.noted(session, at, &String::from_utf8_lossy(position));
                continue;
            };
            match keys::unescape(text) {
                Some(key) => entries.push(entry(session, key, row, 1)?),
                None => {
                    tracing::warn!(
                        key = text,
                        prefix,
                        "row skipped: its key was not written by tenure"
                    );
                }
            }
        }
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Listing { entries, revision })
    }
}

/// An entry whose value and version are in a row from the column `at` on.
pub(super) fn entry(
    session: &StatementSession,
    key: String,
    row: &Row,
    at: usize,
) -> Result<Entry, StoreError> {
    let odd = |e| session.odd(&e);
    let value: &[u8] = row.try_get(at).map_err(odd)?;
    let version: i64 = row.try_get(at + 1).map_err(odd)?;
    Ok(Entry {
        key,
        value: value.into(),
        version: Version::Number(version.cast_unsigned()),
    })
}

/// The keys that a batch changed, with their versions.
fn won(session: &StatementSession, rows: &[Row]) -> Result<BTreeMap<String, i64>, StoreError> {
    let odd = |e| session.odd(&e);
    let pair = |row: &Row| Ok((row.try_get(0).map_err(odd)?, row.try_get(1).map_err(odd)?));
    rows.iter().map(pair).collect()
}

/// Cuts a batch so that no part names a key twice or is too long for one statement.
pub(super) fn distinct<Q>(questions: &[Q], key: fn(&Q) -> &str) -> Vec<&[Q]> {
    let mut parts = Vec::new();
    let mut rest = questions;
    while !rest.is_empty() {
        let mut seen = BTreeSet::new();
        let mut count = 0;
        while count < rest.len().min(BATCH_KEYS) && seen.insert(key(&rest[count])) {
            count += 1;
        }
        let (part, after) = rest.split_at(count);
        parts.push(part);
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_where_a_key_comes_again_and_where_it_is_long() {
        let cut = |keys: &[&str]| -> Vec<usize> {
            let puts: Vec<PutIf> = keys.iter().map(|k| PutIf::create(*k, *b"v")).collect();
            let parts = distinct(&puts, |p| &p.key);
            parts.iter().map(|part| part.len()).collect()
        };
        assert_eq!(cut(&[]), [0usize; 0]);
        assert_eq!(cut(&["a", "b", "a", "a", "b"]), [2, 1, 2]);
        let many: Vec<String> = (0..1200).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(cut(&many), [500, 500, 200]);
    }
}
