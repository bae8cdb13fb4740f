//! Reading and writing single keys, and reading all keys of a prefix.

use tenure_core::ids::{Revision, Version};

use super::proto::{
    Compare, DeleteRequest, HasHeader as _, Header, KeyValue, PutRequest, RANGE, RangeRequest,
    RangeResponse, Request, TXN, TxnRequest, TxnResponse,
};
use super::{EtcdStore, Keys};
use crate::error::StoreError;
use crate::store::{self, Delete, DeleteIf, Entry, Expect, Listing, Put, PutIf};

/// How many keys the first page of a list holds.
const FIRST_PAGE: i64 = 1000;
/// How many bytes the other pages should hold, by what the keys before them weighed.
const PAGE_BYTES: usize = 4 << 20;
const LARGEST_PAGE: usize = 50_000;
/// How often a list begins anew because its revision was compacted away under it.
const LIST_ATTEMPTS: usize = 3;

impl EtcdStore {
    /// Who is in charge at what revision: the header of a linearizable read of nothing.
    pub(super) async fn read_header(&self) -> Result<Header, StoreError> {
        let request = RangeRequest {
            key: self.keys.root.clone().into_bytes(),
            limit: 1,
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.client.ask(RANGE, &self.keys.root, request).await?;
        Ok(answer.header())
    }

    pub(super) async fn read_one(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let outer = self.keys.outer(key);
        let request = self.range_of(key);
        let answer: RangeResponse = self.client.ask(RANGE, &outer, request).await?;
        Ok(self.found(answer))
    }

    pub(super) async fn write_one(&self, put: PutIf) -> Result<Put, StoreError> {
        let outer = self.keys.outer(&put.key);
        let Some(txn) = self.put_txn(put) else {
            return Ok(Put::Lost);
        };
        let answer: TxnResponse = self.client.ask(TXN, &outer, txn).await?;
        Ok(put_answer(answer.succeeded, answer.header()))
    }

    pub(super) async fn remove_one(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let outer = self.keys.outer(&delete.key);
        let Some(txn) = self.delete_txn(&delete) else {
            return Ok(Delete::Lost);
        };
        let answer: TxnResponse = self.client.ask(TXN, &outer, txn).await?;
        Ok(delete_answer(answer.succeeded))
    }

    /// A question for one key.
    pub(super) fn range_of(&self, key: &str) -> RangeRequest {
        RangeRequest {
            key: self.keys.outer(key).into_bytes(),
            ..RangeRequest::default()
        }
    }

    /// What a question for one key found.
    pub(super) fn found(&self, answer: RangeResponse) -> Option<Entry> {
        answer.kvs.into_iter().find_map(|kv| self.keys.entry(kv))
    }

    /// The write, or nothing if its version cannot be one of ours.
    pub(super) fn put_txn(&self, put: PutIf) -> Option<TxnRequest> {
        let key = self.keys.outer(&put.key).into_bytes();
        let expected = match put.expect {
            Expect::Absent => 0,
            Expect::Version(version) => revision_of(&version)?,
        };
        let write = PutRequest {
            key: key.clone(),
            value: put.value.to_vec(),
            lease: put.lease.map_or(0, |id| id.0.cast_signed()),
        };
        Some(conditional(key, expected, Request::Put(write)))
    }

    /// The removal, or nothing if its version cannot be one of ours.
    pub(super) fn delete_txn(&self, delete: &DeleteIf) -> Option<TxnRequest> {
        let key = self.keys.outer(&delete.key).into_bytes();
        let expected = revision_of(&delete.version)?;
        let remove = DeleteRequest { key: key.clone() };
        Some(conditional(key, expected, Request::Delete(remove)))
    }

    /// All keys of a prefix, page by page, as they were when the first page was read.
    pub(super) async fn list_all(&self, prefix: &str) -> Result<Listing, StoreError> {
        let outer = self.keys.outer(prefix);
        for _ in 0..LIST_ATTEMPTS {
            if let Some(listing) = self.list_at_once(&outer).await? {
                return Ok(listing);
            }
        }
        Err(StoreError::unavailable(format!(
            "listing {outer:?}: etcd is compacted faster than the list can be read; compact less often"
        )))
    }

    /// One page of the keys of a prefix. etcd answers in the order of bytes.
    pub(super) async fn read_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<store::KeyPage, StoreError> {
        let outer = self.keys.outer(prefix);
        if limit == 0 {
            return Ok(store::KeyPage {
                keys: Vec::new(),
                more: true,
            });
        }
        let mut from = outer.as_bytes().to_vec();
        if let Some(after) = after {
            let mut next = self.keys.outer(after).into_bytes();
            next.push(0);
            from = from.max(next);
        }
        let end = Keys::end_of(&outer);
        if from >= end {
            return Ok(store::KeyPage::default());
        }
        let request = RangeRequest {
            key: from,
            range_end: end,
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            keys_only: true,
            ..RangeRequest::default()
        };
        let page: RangeResponse = self.client.ask(RANGE, &outer, request).await?;
        let keys = page
            .kvs
            .into_iter()
            .filter_map(|kv| self.keys.inner(kv.key));
        Ok(store::KeyPage {
            keys: keys.collect(),
            more: page.more,
        })
    }

    /// The list, or nothing if its revision was compacted away before the last page.
    async fn list_at_once(&self, outer: &str) -> Result<Option<Listing>, StoreError> {
        let mut request = RangeRequest {
            key: outer.as_bytes().to_vec(),
            range_end: Keys::end_of(outer),
            limit: FIRST_PAGE,
            ..RangeRequest::default()
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        loop {
            let page: RangeResponse = match self.client.ask(RANGE, outer, request.clone()).await {
                Ok(page) => page,
                Err(e) if request.revision > 0 && e.to_string().contains("compacted") => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            };
            if request.revision == 0 {
                request.revision = page.header().revision;
            }
            let next = page.more.then(|| page.kvs.last()).flatten().map(after);
            bytes += page.kvs.iter().map(weight).sum::<usize>();
            entries.extend(page.kvs.into_iter().filter_map(|kv| self.keys.entry(kv)));
            let Some(next) = next else {
                return Ok(Some(Listing {
                    entries,
                    revision: Revision(unsigned(request.revision)),
                }));
            };
            request.key = next;
            let each = bytes / entries.len().max(1);
            let fit = (PAGE_BYTES / each.max(1)).clamp(1, LARGEST_PAGE);
            request.limit = i64::try_from(fit).unwrap_or(FIRST_PAGE);
        }
    }
}

impl Keys {
    /// A key as the server has it, unless it is none of ours.
    pub(super) fn entry(&self, kv: KeyValue) -> Option<Entry> {
        Some(Entry {
            key: self.inner(kv.key)?,
            value: kv.value.into(),
            version: Version::Number(unsigned(kv.mod_revision)),
        })
    }
}

fn conditional(key: Vec<u8>, expected: i64, then: Request) -> TxnRequest {
    TxnRequest {
        compare: vec![Compare::mod_revision_is(key, expected)],
        success: vec![then.into()],
        failure: Vec::new(),
    }
}

pub(super) fn put_answer(won: bool, header: Header) -> Put {
    if won {
        Put::Won(Version::Number(unsigned(header.revision)))
    } else {
        Put::Lost
    }
}

pub(super) fn delete_answer(won: bool) -> Delete {
    if won { Delete::Won } else { Delete::Lost }
}

/// The revision that a version stands for. No key has revision 0: to etcd that means that there is none.
fn revision_of(version: &Version) -> Option<i64> {
    match version {
        Version::Number(n) => i64::try_from(*n).ok().filter(|n| *n > 0),
        Version::Text(_) => None,
    }
}

/// etcd's revisions are signed and never negative.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// The first key that could follow this one.
fn after(kv: &KeyValue) -> Vec<u8> {
    let mut key = kv.key.clone();
    key.push(0);
    key
}

fn weight(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len()
}
