//! etcd's leases, believed only where the cluster as a whole can be seen to stand behind the answer.
//!
//! Which leases exist is replicated like the keys. How long they still live is known to the leader alone, and one that was
//! deposed may not know it: it goes on answering for as long as it hangs, while the others have long let the lease run out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::ids::LeaseId;
use tokio_stream::StreamExt as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, IntoStreamingRequest as _, Status};
use tonic_prost::ProstCodec;

use super::EtcdStore;
use super::call::{self, AttemptError};
use super::connect::Link;
use super::proto::{
    GRANT, GrantRequest, GrantResponse, HasHeader as _, Header, KEEP_ALIVE, KeepAliveRequest,
    KeepAliveResponse, LEASES, LeasesRequest, LeasesResponse, RANGE, RangeResponse, TIME_TO_LIVE,
    TimeToLiveRequest, TimeToLiveResponse,
};
use crate::error::StoreError;
use crate::store::{LeaseState, Leases};

#[async_trait]
impl Leases for EtcdStore {
    async fn grant(&self, id: LeaseId, ttl: Duration) -> Result<Duration, StoreError> {
        // Whole seconds, and never fewer than asked for.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let question = GrantRequest {
            ttl: i64::try_from(seconds).unwrap_or(i64::MAX),
            id: id.0.cast_signed(),
        };
        let answer: GrantResponse = self.client.ask(GRANT, "", question).await?;
        Ok(seconds_of(answer.ttl))
    }

    /// A keep-alive counts only if a read that began after it finds the key, with the lease, under the same term: its header
    /// was made before the lease was renewed, so no other leader can have come in between.
    async fn keep_alive(&self, id: LeaseId, key: &str) -> Result<LeaseState, StoreError> {
        let kept = self.client.ask_by(
            KEEP_ALIVE,
            "",
            |link| async move { keep_alive(&link, id).await },
        );
        let (kept, _) = kept.await?;
        if kept.ttl <= 0 {
            return if self.is_alive(id).await? {
                Err(not_in_charge(
                    "an etcd member reported a live lease as expired",
                ))
            } else {
                Ok(LeaseState::Gone)
            };
        }
        let outer = self.keys.outer(key);
        let question = self.range_of(key);
        let read: RangeResponse = self.client.ask(RANGE, &outer, question).await?;
        same_reign(kept.header(), read.header())?;
        let attached = |kv: &super::proto::KeyValue| kv.lease == id.0.cast_signed();
        Ok(if read.kvs.first().is_some_and(attached) {
            LeaseState::Alive(seconds_of(kept.ttl))
        } else {
            LeaseState::Unattached
        })
    }

    /// The answer counts only under the term of a read that came before it. That a lease is gone must also be seen in the
    /// replicated state of a member that has caught up: a leader that is new may not have applied the grant yet.
    async fn is_alive(&self, id: LeaseId) -> Result<bool, StoreError> {
        let (before, link) = self.read_by_link().await?;
        let question = TimeToLiveRequest {
            id: id.0.cast_signed(),
        };
        let answer: TimeToLiveResponse = self.client.ask(TIME_TO_LIVE, "", question).await?;
        same_reign(before, answer.header())?;
        if answer.header().revision < before.revision {
            return Err(not_in_charge("an etcd response is older than the request"));
        }
        // A lease that ran out but was not revoked yet has a negative time too, yet it was granted one.
        if answer.ttl >= 0 || answer.granted_ttl > 0 {
            return Ok(true);
        }
        self.is_unknown_to(&link, before, id)
            .await
            .map(|gone| !gone)
    }
}

impl EtcdStore {
    /// A linearizable read, and the connection that it went over.
    async fn read_by_link(&self) -> Result<(Header, Arc<Link>), StoreError> {
        let root = self.keys.root.clone();
        let asked = self.client.ask_by(RANGE, &root, |link| {
            let question = self.range_of("");
            async move { call::unary::<RangeResponse>(&link, RANGE, question).await }
        });
        let (answer, link) = asked.await?;
        Ok((answer.header(), link))
    }

    /// Whether a member that had caught up by `before` does not know the lease. Asked over the same connection, so that it
    /// is the same member and has not been restarted since.
    async fn is_unknown_to(
        &self,
        link: &Arc<Link>,
        before: Header,
        id: LeaseId,
    ) -> Result<bool, StoreError> {
        let asked = self.client.ask_by(LEASES, "", |now| async move {
            if !Arc::ptr_eq(&now, link) {
                return Err(AttemptError::NotSent(
                    "the connection was replaced during the check of a lease".to_owned(),
                ));
            }
            match call::unary::<LeasesResponse>(&now, LEASES, LeasesRequest {}).await {
                // Servers that ask for more rights here wait for themselves before they say that a lease is gone.
                Err(AttemptError::Answer(status)) if status.code() == Code::PermissionDenied => {
                    Ok(None)
                }
                answer => answer.map(Some),
            }
        });
        let (answer, _) = asked.await?;
        let Some(answer) = answer else {
            return Ok(true);
        };
        if answer.header().member_id != before.member_id {
            return Err(not_in_charge("two etcd members responded instead of one"));
        }
        let known = answer.leases.iter().any(|l| l.id == id.0.cast_signed());
        if known {
            return Err(not_in_charge("the etcd leader is not up to date yet"));
        }
        Ok(true)
    }
}

/// Sends one keep-alive over a stream of its own.
async fn keep_alive(link: &Link, id: LeaseId) -> Result<KeepAliveResponse, AttemptError> {
    let mut grpc = call::ready(link).await?;
    let question = KeepAliveRequest {
        id: id.0.cast_signed(),
    };
    // Our side stays open until the answer has come: etcd drops what it is about to say to a stream that is closed.
    let asks = tokio_stream::once(question).chain(tokio_stream::pending());
    let request = call::dressed(link, asks.into_streaming_request());
    let path = PathAndQuery::from_static(KEEP_ALIVE.path);
    let answer = grpc.streaming(request, path, ProstCodec::default()).await;
    let mut stream = answer.map_err(AttemptError::Answer)?.into_inner();
    let first = stream.message().await.map_err(AttemptError::Answer)?;
    first.ok_or_else(|| {
        AttemptError::Answer(Status::unavailable(
            "the keep-alive stream ended without a response",
        ))
    })
}

/// Whether two answers were given under one leader of one cluster.
fn same_reign(one: Header, other: Header) -> Result<(), StoreError> {
    if one.cluster_id != other.cluster_id {
        return Err(not_in_charge(
            "the etcd endpoints belong to different clusters; correct the store URL",
        ));
    }
    if one.raft_term != other.raft_term {
        return Err(not_in_charge("the etcd leader changed during the check"));
    }
    Ok(())
}

fn not_in_charge(reason: &str) -> StoreError {
    StoreError::unavailable(format!(
        "the state of a lease in etcd cannot be confirmed: {reason}"
    ))
}

fn seconds_of(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}
