//! Leases as a server tells of them that is no longer in charge (A13).
//!
//! A leader whose disk stalls goes on answering keep-alives from memory while the others have chosen another. What it says on
//! the wire is imitated here: no real server can be made to hang in that very place at will.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tenure_core::ids::LeaseId;
use tokio::net::TcpListener;

use super::EtcdStore;
use super::proto::*;
use crate::error::StoreError;
use crate::store::{LeaseState, Leases as _};

const ID: LeaseId = LeaseId(77);

/// What the server says next.
#[derive(Clone, Copy)]
struct Says {
    /// The term in the header of what it says of leases.
    lease_term: u64,
    /// The term in the header of a read.
    read_term: u64,
    /// The cluster of the read.
    read_cluster: u64,
    /// The lease that the key is attached to, if there is a key.
    attached: Option<i64>,
    /// The time that the lease still has; nothing if it is not known.
    ttl: Option<i64>,
    /// Whether the member's own replicated state has the lease.
    replicated: bool,
    /// The revision in the header of what it says of a lease.
    lease_revision: i64,
}

const IN_CHARGE: Says = Says {
    lease_term: 5,
    read_term: 5,
    read_cluster: 1,
    attached: Some(77),
    ttl: Some(2),
    replicated: true,
    lease_revision: 9,
};

fn header(raft_term: u64, cluster_id: u64, revision: i64) -> Option<Header> {
    Some(Header {
        cluster_id,
        member_id: 1,
        revision,
        raft_term,
    })
}

fn answer(says: Says, path: &str) -> Vec<u8> {
    let lease_header = header(says.lease_term, 1, says.lease_revision);
    let read_header = header(says.read_term, says.read_cluster, 9);
    match path {
        p if p == STATUS.path => StatusResponse {
            header: read_header,
            leader: 1,
            is_learner: false,
            ..StatusResponse::default()
        }
        .encode_to_vec(),
        p if p == RANGE.path => RangeResponse {
            header: read_header,
            kvs: says
                .attached
                .map(|lease| KeyValue {
                    key: b"shop/k".to_vec(),
                    mod_revision: 3,
                    value: b"v".to_vec(),
                    lease,
                })
                .into_iter()
                .collect(),
            more: false,
        }
        .encode_to_vec(),
        p if p == KEEP_ALIVE.path => KeepAliveResponse {
            header: lease_header,
            ttl: says.ttl.unwrap_or(0),
        }
        .encode_to_vec(),
        p if p == TIME_TO_LIVE.path => TimeToLiveResponse {
            header: lease_header,
            ttl: says.ttl.unwrap_or(-1),
            granted_ttl: says.ttl.map_or(0, |_| 2),
        }
        .encode_to_vec(),
        p if p == LEASES.path => LeasesResponse {
            header: lease_header,
            leases: says
                .replicated
                .then_some(LeaseStatus { id: 77 })
                .into_iter()
                .collect(),
        }
        .encode_to_vec(),
        other => panic!("nobody asks for {other}"),
    }
}

/// One message and the good end of a call.
fn reply(
    message: Vec<u8>,
) -> hyper::Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [Frame::data(Bytes::from(framed)), Frame::trailers(trailers)];
    let body = http_body_util::StreamBody::new(tokio_stream::iter(frames.map(Ok)));
    hyper::Response::builder()
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap()
}

/// A server that says as it is told, and a store that asks it.
async fn imitation() -> (Arc<Mutex<Says>>, EtcdStore) {
    let says = Arc::new(Mutex::new(IN_CHARGE));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let told = says.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let told = told.clone();
            let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                let told = told.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    // A stream stays open on the asker's side: its first message is enough.
                    let _ = request.into_body().frame().await;
                    let message = answer(*told.lock().unwrap(), &path);
                    Ok::<_, Infallible>(reply(message))
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let store = EtcdStore::open(&format!("etcd://{address}/shop"))
        .await
        .unwrap();
    (says, store)
}

fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    match answer {
        Err(StoreError::Unavailable { reason }) => {
            assert!(reason.contains("cannot be confirmed"), "{reason}");
        }
        other => panic!("should not count, but: {other:?}"),
    }
}

#[tokio::test]
async fn a_keep_alive_counts_only_if_a_read_after_it_is_of_the_same_term() {
    let (says, store) = imitation().await;
    let alive = LeaseState::Alive(std::time::Duration::from_secs(2));
    assert_eq!(store.keep_alive(ID, "k").await, Ok(alive));
    // Deposed: the others have a new term, the old leader still says that all is well.
    says.lock().unwrap().read_term = 6;
    refused(store.keep_alive(ID, "k").await);
    // The one that was asked is with the new leader.
    says.lock().unwrap().lease_term = 6;
    assert_eq!(store.keep_alive(ID, "k").await, Ok(alive));
    says.lock().unwrap().read_cluster = 2;
    refused(store.keep_alive(ID, "k").await);
}

#[tokio::test]
async fn a_keep_alive_counts_only_if_the_key_is_there_under_the_lease() {
    let (says, store) = imitation().await;
    says.lock().unwrap().attached = None;
    assert_eq!(store.keep_alive(ID, "k").await, Ok(LeaseState::Unattached));
    for other in [0, 78] {
        says.lock().unwrap().attached = Some(other);
        assert_eq!(store.keep_alive(ID, "k").await, Ok(LeaseState::Unattached));
    }
}

#[tokio::test]
async fn a_lease_is_said_to_live_or_to_be_gone_only_by_who_is_in_charge() {
    let (says, store) = imitation().await;
    assert_eq!(store.is_alive(ID).await, Ok(true));
    says.lock().unwrap().read_term = 6;
    refused(store.is_alive(ID).await);
    *says.lock().unwrap() = Says {
        lease_revision: 8,
        ..IN_CHARGE
    };
    refused(store.is_alive(ID).await);

    let gone = Says {
        ttl: None,
        attached: None,
        replicated: false,
        ..IN_CHARGE
    };
    *says.lock().unwrap() = gone;
    assert_eq!(store.is_alive(ID).await, Ok(false));
    assert_eq!(store.keep_alive(ID, "k").await, Ok(LeaseState::Gone));
    *says.lock().unwrap() = Says {
        read_term: 6,
        ..gone
    };
    refused(store.is_alive(ID).await);
    refused(store.keep_alive(ID, "k").await);
}

#[tokio::test]
async fn a_lease_is_not_gone_because_a_new_leader_does_not_know_it_yet() {
    let (says, store) = imitation().await;
    *says.lock().unwrap() = Says {
        ttl: None,
        ..IN_CHARGE
    };
    refused(store.is_alive(ID).await);
    refused(store.keep_alive(ID, "k").await);
}

#[tokio::test]
async fn a_lease_that_ran_out_but_was_not_revoked_yet_is_still_there() {
    let (says, store) = imitation().await;
    says.lock().unwrap().ttl = Some(-1);
    assert_eq!(store.is_alive(ID).await, Ok(true));
}
