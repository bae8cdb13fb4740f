//! Reading the messages of a bucket in order, none left out: what lists and watches are made of.
//!
//! The server keeps a short-lived consumer for each reader and numbers what it sends. A number that is missing, or silence where
//! a heartbeat is due, ends the reading; whoever reads begins anew.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode, Subject, Subscriber};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::NatsStore;
use super::call::{CALL_TIMEOUT, NatsRequest};
use super::connection::Connection;
use super::errors::CallContext;
use super::jetstream::{self, EXPECTED_SEQUENCE};
use super::kv::ends_key;
use crate::error::StoreError;
use crate::machine_identity::random_uuid;

/// How long the server keeps a consumer that nobody listens to.
const KEPT_UNHEARD: Duration = Duration::from_secs(5);
/// So many heartbeats may be missing.
const MISSED: u32 = 3;
const LAST_STREAM: &str = "Nats-Last-Stream";
const LAST_CONSUMER: &str = "Nats-Last-Consumer";
const STALLED: &str = "Nats-Consumer-Stalled";

/// Where reading begins.
pub(super) enum ReadStart {
    /// With the last message of each key.
    LastOfEach,
    /// After this sequence.
    After(u64),
}

/// What comes next.
pub(super) enum ReadEvent {
    Message(SeenMessage),
    /// Nothing to send at the moment; everything up to here has been.
    Idle(u64),
}

/// A message of the bucket.
pub(super) struct SeenMessage {
    pub(super) subject: String,
    pub(super) sequence: u64,
    /// How many more there are at the moment.
    pub(super) pending: u64,
    /// Whether its key ends with it.
    pub(super) deletes: bool,
    /// Whether its writer made sure that its subject had no message.
    pub(super) begins: bool,
    pub(super) payload: Vec<u8>,
}

/// A running reader.
pub(super) struct StreamReader {
    subscriber: Subscriber,
    pub(super) link: Arc<Connection>,
    /// The API subject that ends the consumer.
    end: String,
    /// The number of the last message.
    count: u64,
    /// An answer that the server waits for before it sends more. Kept until it is sent, for `next` may be dropped.
    owed: Option<Subject>,
    heard: Instant,
    heartbeat: Duration,
}

impl StreamReader {
    /// Begins to read.
    pub(super) async fn open(
        store: &NatsStore,
        filters: Vec<String>,
        from: ReadStart,
        heartbeat: Duration,
    ) -> Result<Self, StoreError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let link = tokio::time::timeout_at(deadline, store.client.link()).await;
        let late = |_| StoreError::unavailable("no connection to NATS");
        let link = link.map_err(late)??;
        let (name, stream) = (random_uuid(), &store.keys.stream);
        let subject = jetstream::about("CONSUMER.CREATE", &format!("{stream}.{name}"));
        let about = CallContext {
            endpoint: &link.endpoint,
            subject: &subject,
            writes: false,
        };
        let inbox = link.client.new_inbox();
        let subscriber = link.client.subscribe(inbox.clone()).await;
        let subscriber = subscriber.map_err(|e| about.uncertain(&e.to_string()))?;
        let config = config(&name, inbox, filters, from, heartbeat);
        let asked = json!({ "stream_name": stream, "config": config });
        let question = NatsRequest::reads(subject.clone(), &asked);
        let created = store.client.ask_over(&link, question, deadline).await?;
        let _: Value = created.map_err(|refusal| about.refused(&refusal))?;
        Ok(Self {
            subscriber,
            end: jetstream::about("CONSUMER.DELETE", &format!("{stream}.{name}")),
            link,
            count: 0,
            owed: None,
            heard: Instant::now(),
            heartbeat,
        })
    }

    /// Waits for what comes next; dropping the wait loses nothing. Fails with why there is nothing more.
    pub(super) async fn next(&mut self) -> Result<ReadEvent, String> {
        loop {
            self.pay().await?;
            let silence = self.heard + self.heartbeat * MISSED;
            let link = self.link.clone();
            let message = tokio::select! {
                biased;
                message = self.subscriber.next() => message,
                () = link.retirement() => {
                    return Err(format!("the connection to NATS at {} was lost", link.endpoint));
                }
                () = tokio::time::sleep_until(silence) => {
                    return Err(format!("NATS at {} stopped responding", link.endpoint));
                }
            };
            let message = message.ok_or("NATS ended the subscription")?;
            self.heard = Instant::now();
            self.link.hear();
            if let Some(next) = self.understand(message)? {
                return Ok(next);
            }
        }
    }

    /// Answers the server where it waits for that.
    async fn pay(&mut self) -> Result<(), String> {
        if let Some(owed) = self.owed.clone() {
            let paid = self.link.client.publish(owed, Vec::new().into()).await;
            paid.map_err(|e| e.to_string())?;
            self.owed = None;
        }
        Ok(())
    }

    fn understand(&mut self, message: Message) -> Result<Option<ReadEvent>, String> {
        let header = |name: &str| {
            let value = message.headers.as_ref()?.get(name)?;
            Some(value.as_str().to_owned())
        };
        let number = |name: &str| header(name).and_then(|n| n.parse::<u64>().ok());
        if message.status == Some(StatusCode::IDLE_HEARTBEAT) {
            // Flow control asks for an answer by its reply subject; a heartbeat says if one got lost.
            let stalled = header(STALLED).map(Subject::from);
            let waits = stalled.is_some();
            self.owed = message.reply.clone().or(stalled);
            let Some(position) = number(LAST_STREAM) else {
                return Ok(None);
            };
            if number(LAST_CONSUMER).is_some_and(|last| last > self.count) {
                return Err(
                    "messages of the watch were lost between NATS and this process".to_owned(),
                );
            }
            // One that waits for an answer has more to send.
            return Ok((!waits).then_some(ReadEvent::Idle(position)));
        }
        if let Some(status) = message.status {
            return Err(format!("NATS ended the subscription with status {status}"));
        }
        let reply = message.reply.as_deref().unwrap_or_default();
        let Some(place) = Place::read(reply) else {
            return Err(format!(
                "NATS sent a message with the unexpected reply subject {reply:?}"
            ));
        };
        if place.count != self.count + 1 {
            return Err("messages of the watch were lost between NATS and this process".to_owned());
        }
        self.count = place.count;
        let headers = message.headers.iter().flat_map(|headers| headers.iter());
        let deletes = headers
            .flat_map(|(name, values)| values.iter().map(move |value| (name, value)))
            .any(|(name, value)| ends_key(name.as_ref(), value.as_str()));
        Ok(Some(ReadEvent::Message(SeenMessage {
            subject: message.subject.to_string(),
            sequence: place.sequence,
            pending: place.pending,
            deletes,
            begins: number(EXPECTED_SEQUENCE) == Some(0),
            payload: message.payload.to_vec(),
        })))
    }

    /// Ends it at once instead of letting the server find out.
    pub(super) async fn close(self) {
        // If that is lost, the server finds out.
        let _ = self.link.client.publish(self.end, Vec::new().into()).await;
    }
}

fn config(
    name: &str,
    inbox: String,
    filters: Vec<String>,
    from: ReadStart,
    heartbeat: Duration,
) -> Value {
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let mut config = json!({
        "name": name,
        "deliver_subject": inbox,
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "mem_storage": true,
        "num_replicas": 1,
        "flow_control": true,
        "idle_heartbeat": nanos(heartbeat),
        "inactive_threshold": nanos(KEPT_UNHEARD),
        "filter_subjects": filters,
    });
    match from {
        ReadStart::LastOfEach => config["deliver_policy"] = "last_per_subject".into(),
        ReadStart::After(sequence) => {
            config["deliver_policy"] = "by_start_sequence".into();
            config["opt_start_seq"] = sequence.saturating_add(1).into();
        }
    }
    config
}

/// Where a message stands, as its reply subject has it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    sequence: u64,
    count: u64,
    pending: u64,
}

impl Place {
    /// `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.COUNT.TIME.PENDING`, in newer servers with domain and account before the
    /// stream and something at the end.
    fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let skip = match tokens.len() {
            7 => 0,
            9.. => 2,
            _ => return None,
        };
        let number = |n: usize| tokens.get(skip + n)?.parse().ok();
        Some(Self {
            sequence: number(3)?,
            count: number(4)?,
            pending: number(6)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_read_from_old_and_new_replies() {
        let place = Place {
            sequence: 20,
            count: 3,
            pending: 7,
        };
        for reply in [
            "$JS.ACK.KV_b.c9.1.20.3.1794813077275212889.7",
            "$JS.ACK._.hash.KV_b.c9.1.20.3.1794813077275212889.7.x1",
            "$JS.ACK.hub.hash.KV_b.c9.1.20.3.1794813077275212889.7",
        ] {
            assert_eq!(Place::read(reply), Some(Place { ..place }), "{reply}");
        }
        for reply in ["", "_INBOX.x", "$JS.ACK.KV_b.c9.1.x.3.1.7", "$JS.ACK.a.b"] {
            assert_eq!(Place::read(reply), None, "{reply}");
        }
    }
}
