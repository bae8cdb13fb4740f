//! Watches: a stream of changes from a revision on.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::ids::Revision;
use tokio_stream::StreamExt as _;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{IntoStreamingRequest as _, Status, Streaming};
use tonic_prost::ProstCodec;

use super::call::{self, AttemptError};
use super::connect::Link;
use super::errors;
use super::proto::{Event, WATCH, WatchCreate, WatchRequest, WatchRequestKind, WatchResponse};
use super::{EtcdStore, Keys, kv};
use crate::error::StoreError;
use crate::watch::{Change, ChangeBatch, Watch, WatchEnd, WatchSource};

impl EtcdStore {
    pub(super) async fn watch_from(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<Watch, StoreError> {
        let outer = self.keys.outer(prefix);
        // Also sees to it that the token is fresh: to a watch, etcd calls a stale one a missing permission.
        let now = kv::unsigned(self.read_header().await?.revision);
        if now < from.0 {
            // The history that the caller knows is not the one of this cluster.
            return Ok(Watch::new(Ended(WatchEnd::Gap)));
        }
        let create = WatchCreate {
            key: outer.as_bytes().to_vec(),
            range_end: Keys::end_of(&outer),
            start_revision: i64::try_from(from.0 + 1).unwrap_or(i64::MAX),
            fragment: true,
        };
        let opened = self.client.ask_by(WATCH, &outer, |link| {
            let create = create.clone();
            async move { open(&link, create).await }
        });
        let ((first, stream), link) = opened.await?;
        let end = end_of(&first);
        if let Some(end) = end {
            return match end {
                WatchEnd::Closed { reason } if reason.contains("permission denied") => {
                    let about = errors::CallContext {
                        endpoint: &link.endpoint,
                        key: &outer,
                        writes: false,
                    };
                    let denied = Status::permission_denied("etcdserver: permission denied");
                    Err(errors::explain(about, &denied))
                }
                WatchEnd::Closed { reason } => Err(StoreError::unavailable(reason)),
                gap @ WatchEnd::Gap => Ok(Watch::new(Ended(gap))),
            };
        }
        Ok(Watch::new(EtcdWatch {
            stream,
            link,
            keys: self.keys.clone(),
            upto: from,
        }))
    }
}

/// Opens a stream of its own and waits for the word that the watch has begun.
async fn open(
    link: &Link,
    create: WatchCreate,
) -> Result<(WatchResponse, Streaming<WatchResponse>), AttemptError> {
    let mut grpc = call::ready(link).await?;
    let create = WatchRequest {
        ask: Some(WatchRequestKind::Create(create)),
    };
    // The watch lasts as long as our side of the stream does.
    let asks = tokio_stream::once(create).chain(tokio_stream::pending());
    let request = call::dressed(link, asks.into_streaming_request());
    let path = PathAndQuery::from_static(WATCH.path);
    let answer = grpc.streaming(request, path, ProstCodec::default()).await;
    let mut stream = answer.map_err(AttemptError::Answer)?.into_inner();
    let first = stream.message().await.map_err(AttemptError::Answer)?;
    let ended = || {
        AttemptError::Answer(Status::unavailable(
            "the watch stream ended without a response",
        ))
    };
    Ok((first.ok_or_else(ended)?, stream))
}

/// Whether this answer is the last one, and why.
fn end_of(answer: &WatchResponse) -> Option<WatchEnd> {
    if !answer.canceled {
        return None;
    }
    Some(if answer.compact_revision > 0 {
        WatchEnd::Gap
    } else {
        WatchEnd::Closed {
            reason: format!("etcd cancelled the watch: {}", answer.cancel_reason),
        }
    })
}

/// Reads from the wire when asked, so that a slow reader makes the server wait and nobody else.
#[derive(Debug)]
struct EtcdWatch {
    stream: Streaming<WatchResponse>,
    link: Arc<Link>,
    keys: Keys,
    upto: Revision,
}

impl EtcdWatch {
    fn change(&self, event: Event) -> Option<Change> {
        let deleted = event.is_delete();
        let kv = event.kv?;
        if deleted {
            let key = self.keys.inner(kv.key)?;
            return Some(Change::Deleted { key });
        }
        self.keys.entry(kv).map(Change::Put)
    }

    /// What an answer shows, if anything. All changes of one revision come in one answer, or in fragments of one.
    fn shown(&mut self, answer: WatchResponse) -> Option<ChangeBatch> {
        let last = answer.events.iter().filter_map(|e| e.kv.as_ref());
        let last = last.map(|kv| kv::unsigned(kv.mod_revision)).max();
        if let Some(last) = last.filter(|_| !answer.fragment) {
            self.upto = self.upto.max(Revision(last));
        }
        let changes: Vec<Change> = answer
            .events
            .into_iter()
            .filter_map(|event| self.change(event))
            .collect();
        let upto = self.upto;
        (!changes.is_empty()).then_some(ChangeBatch { changes, upto })
    }
}

#[async_trait]
impl WatchSource for EtcdWatch {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        let closed = |reason: String| WatchEnd::Closed { reason };
        let mut retired = self.link.retirement();
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.stream.message() => answer,
                // The sender lives in `link`.
                _ = retired.wait_for(|retired| *retired) => {
                    return Err(closed(format!("etcd at {} does not answer", self.link.endpoint)));
                }
            };
            let answer = answer
                .map_err(|status| closed(errors::causes(&status)))?
                .ok_or_else(|| closed("etcd ended the watch stream".to_owned()))?;
            if let Some(end) = end_of(&answer) {
                return Err(end);
            }
            if let Some(batch) = self.shown(answer) {
                return Ok(batch);
            }
        }
    }
}

/// A watch that was over before it began.
#[derive(Debug)]
struct Ended(WatchEnd);

#[async_trait]
impl WatchSource for Ended {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        Err(self.0.clone())
    }
}
