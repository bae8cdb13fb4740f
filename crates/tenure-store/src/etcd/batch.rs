//! Batches: as few transactions as etcd's limits allow, in which every key has its own condition.
//!
//! A transaction holds one smaller transaction per key. That costs the cluster one log entry for a hundred keys instead of a
//! hundred. Keys still stand for themselves: what one condition finds changes nothing for the others.
//!
//! etcd 3.4 checks neither rights nor quota of what stands in an inner transaction. So the outer one has a branch that is never
//! taken and names every key that is to be written: that, it does check.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::connect::Client;
use super::proto::{
    DeleteRequest, HasHeader as _, PutRequest, READ_TXN, Request, RequestOp, Response, Rpc, TXN,
    TxnRequest, TxnResponse,
};
use super::{EtcdStore, kv};
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Put, PutIf};

/// etcd takes 128 operations in a transaction, and counts the outer and the inner one of a key together.
const MOST_KEYS: usize = 120;
/// etcd takes 1.5 MiB in a request.
const MOST_BYTES: usize = 1 << 20;
/// What a key costs in a request beside key and value.
const OVERHEAD: usize = 64;
/// How many transactions are under way at once.
const AT_ONCE: usize = 4;

impl EtcdStore {
    pub(super) async fn read_many(
        &self,
        keys: Vec<String>,
    ) -> Vec<Result<Option<Entry>, StoreError>> {
        let ops = keys.iter().map(|key| {
            let range = Request::Range(self.range_of(key));
            Op::new(key, 0, Some((range, None)))
        });
        let answers = run(&self.client, READ_TXN, ops.collect()).await;
        let mut all = Vec::with_capacity(keys.len());
        for (key, answer) in keys.iter().zip(answers) {
            all.push(match answer {
                Got::Answered(Some(Response::Range(range)), _) => Ok(self.found(range)),
                Got::Answered(..) => Err(odd(key, READ_TXN)),
                Got::Failed(e) => Err(e),
                Got::Alone | Got::Hopeless => self.read_one(key).await,
            });
        }
        all
    }

    pub(super) async fn write_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        let ops = puts.iter().map(|put| {
            let checked = Request::Put(PutRequest {
                key: self.keys.outer(&put.key).into_bytes(),
                ..PutRequest::default()
            });
            let txn = self.put_txn(put.clone()).map(Request::Txn);
            Op::new(&put.key, put.value.len(), txn.map(|t| (t, Some(checked))))
        });
        let answers = run(&self.client, TXN, ops.collect()).await;
        let mut all = Vec::with_capacity(puts.len());
        for (put, answer) in puts.into_iter().zip(answers) {
            all.push(match answer {
                Got::Answered(Some(Response::Txn(txn)), revision) => {
                    Ok(kv::put_answer(txn.succeeded, revision))
                }
                Got::Answered(..) => Err(odd(&put.key, TXN)),
                Got::Failed(e) => Err(e),
                Got::Alone => self.write_one(put).await,
                Got::Hopeless => Ok(Put::Lost),
            });
        }
        all
    }

    pub(super) async fn remove_many(
        &self,
        deletes: Vec<DeleteIf>,
    ) -> Vec<Result<Delete, StoreError>> {
        let ops = deletes.iter().map(|delete| {
            let checked = Request::Delete(DeleteRequest {
                key: self.keys.outer(&delete.key).into_bytes(),
            });
            let txn = self.delete_txn(delete).map(Request::Txn);
            Op::new(&delete.key, 0, txn.map(|t| (t, Some(checked))))
        });
        let answers = run(&self.client, TXN, ops.collect()).await;
        let mut all = Vec::with_capacity(deletes.len());
        for (delete, answer) in deletes.into_iter().zip(answers) {
            all.push(match answer {
                Got::Answered(Some(Response::Txn(txn)), _) => Ok(kv::delete_answer(txn.succeeded)),
                Got::Answered(..) => Err(odd(&delete.key, TXN)),
                Got::Failed(e) => Err(e),
                Got::Alone => self.remove_one(delete).await,
                Got::Hopeless => Ok(Delete::Lost),
            });
        }
        all
    }
}

impl EtcdStore {
    pub(super) async fn discard_many(&self, keys: Vec<String>) -> Vec<Result<(), StoreError>> {
        let request = |key: &String| {
            Request::Delete(DeleteRequest {
                key: self.keys.outer(key).into_bytes(),
            })
        };
        let op = |key: &String| Op::new(key, 0, Some((request(key), None)));
        let answers = run(&self.client, TXN, keys.iter().map(op).collect()).await;
        let mut all = Vec::with_capacity(keys.len());
        for (key, answer) in keys.iter().zip(answers) {
            all.push(match answer {
                Got::Answered(..) => Ok(()),
                Got::Failed(e) => Err(e),
                Got::Alone | Got::Hopeless => {
                    let txn = TxnRequest {
                        success: vec![request(key).into()],
                        ..TxnRequest::default()
                    };
                    let asked = self.client.ask::<TxnResponse>(TXN, key, txn).await;
                    asked.map(drop)
                }
            });
        }
        all
    }
}

fn odd(key: &str, rpc: Rpc) -> StoreError {
    let reason = format!("etcd returned an unexpected response for key {key:?}");
    if rpc.writes {
        StoreError::unknown(reason)
    } else {
        StoreError::unavailable(reason)
    }
}

/// What is asked of one key.
struct Op {
    key: String,
    bytes: usize,
    request: Option<Asked>,
}

/// A request, and for writes what has its rights checked.
type Asked = (Request, Option<Request>);

impl Op {
    fn new(key: &str, value: usize, request: Option<Asked>) -> Self {
        Self {
            key: key.to_owned(),
            // The condition, the write and the branch that is never taken all name the key.
            bytes: 3 * key.len() + value + OVERHEAD,
            request,
        }
    }
}

/// What became of one key.
#[derive(Clone)]
enum Got {
    /// This answer, under the header of the whole.
    Answered(Option<Response>, super::proto::Header),
    /// The whole failed in a way that may be due to one key alone: nothing was done, ask for each by itself.
    Alone,
    /// It could not be asked, because its version is none of etcd's.
    Hopeless,
    Failed(StoreError),
}

/// Asks for all keys; answers come in the order of the questions.
async fn run(client: &Arc<Client>, rpc: Rpc, mut ops: Vec<Op>) -> Vec<Got> {
    let mut answers = vec![Got::Hopeless; ops.len()];
    for wave in waves(&ops) {
        let mut running = JoinSet::new();
        for group in groups(&ops, wave) {
            if running.len() == AT_ONCE {
                settle(&mut answers, running.join_next().await);
            }
            let (requests, checked): (Vec<Request>, Vec<Option<Request>>) =
                group.iter().filter_map(|n| ops[*n].request.take()).unzip();
            let txn = TxnRequest {
                compare: Vec::new(),
                success: requests.into_iter().map(RequestOp::from).collect(),
                failure: checked.into_iter().flatten().map(RequestOp::from).collect(),
            };
            let about = format!("{} and {} more", ops[group[0]].key, group.len() - 1);
            let client = client.clone();
            running.spawn(async move {
                let got = client.ask(rpc, &about, txn).await;
                (group, got)
            });
        }
        while let Some(done) = running.join_next().await {
            settle(&mut answers, Some(done));
        }
    }
    answers
}

type Done = (Vec<usize>, Result<TxnResponse, StoreError>);

fn settle(answers: &mut [Got], done: Option<Result<Done, tokio::task::JoinError>>) {
    // Tasks here are neither aborted nor do they panic.
    let Some(Ok((group, got))) = done else {
        return;
    };
    match got {
        Ok(answer) => {
            let header = answer.header();
            let responses = answer.responses.into_iter().map(|op| op.response);
            let responses = responses.chain(std::iter::repeat(None));
            for (n, response) in group.into_iter().zip(responses) {
                answers[n] = Got::Answered(response, header);
            }
        }
        Err(StoreError::Denied { .. }) => {
            for n in group {
                answers[n] = Got::Alone;
            }
        }
        Err(e) => {
            for n in group {
                answers[n] = Got::Failed(e.clone());
            }
        }
    }
}

/// Splits a batch so that no part names a key twice, which etcd refuses; the parts are done one after the other.
fn waves(ops: &[Op]) -> Vec<Vec<usize>> {
    let mut waves: Vec<Vec<usize>> = Vec::new();
    let mut named: HashMap<&str, usize> = HashMap::new();
    for (n, op) in ops.iter().enumerate() {
        if op.request.is_none() {
            continue;
        }
        let times = named.entry(&op.key).or_default();
        if waves.len() == *times {
            waves.push(Vec::new());
        }
        waves[*times].push(n);
        *times += 1;
    }
    waves
}

/// Splits a wave into groups that fit one transaction each.
fn groups(ops: &[Op], wave: Vec<usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut bytes = 0;
    for n in wave {
        bytes += ops[n].bytes;
        match groups.last_mut() {
            Some(group) if group.len() < MOST_KEYS && bytes <= MOST_BYTES => group.push(n),
            _ => {
                bytes = ops[n].bytes;
                groups.push(vec![n]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::proto::RangeRequest;

    fn op(key: &str, value: usize) -> Op {
        let request = Request::Range(RangeRequest::default());
        Op::new(key, value, Some((request, None)))
    }

    #[test]
    fn a_key_that_is_named_twice_waits_for_the_next_wave() {
        let mut ops: Vec<Op> = ["a", "b", "a", "c", "a", "b"].map(|k| op(k, 0)).into();
        assert_eq!(waves(&ops), [vec![0, 1, 3], vec![2, 5], vec![4]]);
        // What is not asked takes no place.
        ops[0].request = None;
        assert_eq!(waves(&ops), [vec![1, 2, 3], vec![4, 5]]);
    }

    #[test]
    fn a_group_holds_no_more_keys_and_bytes_than_fit() {
        let small: Vec<Op> = (0..1000).map(|n| op(&n.to_string(), 10)).collect();
        let sizes: Vec<usize> = groups(&small, (0..1000).collect())
            .iter()
            .map(Vec::len)
            .collect();
        assert_eq!(sizes, [120, 120, 120, 120, 120, 120, 120, 120, 40]);
        let large: Vec<Op> = (0..40).map(|n| op(&n.to_string(), 64 << 10)).collect();
        let groups = groups(&large, (0..40).collect());
        assert!(
            groups.iter().all(|g| g.len() == 15 || g.len() == 10),
            "{groups:?}"
        );
        assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 40);
    }
}
