//! Reading and writing single keys.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tenure_core::ids::Version;

use super::NatsStore;
use super::call::NatsRequest;
use super::errors::CallContext;
use super::jetstream::{
    self, DELETED, EXPECTED_SEQUENCE, EXPECTED_STREAM, MARKER, OPERATION, PublishAck,
    StoredMessage, StoredMessageResponse, StreamInfo,
};
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Expect, Put, PutIf, no_leases};

/// How often a create is tried again because the mark of a deletion came or went under it.
const CREATE_ATTEMPTS: usize = 8;

/// The last that is known of a key.
pub(super) enum LastKnown {
    Value(Entry),
    /// It was deleted by the message with this sequence.
    Deleted(u64),
    Nothing,
}

impl NatsStore {
    /// The state of the bucket, by its leader.
    pub(super) async fn stream_info(&self) -> Result<StreamInfo, StoreError> {
        let subject = jetstream::about("STREAM.INFO", &self.keys.stream);
        let info: StreamInfo = self
            .client
            .demand(NatsRequest::reads(subject, &json!({})))
            .await?;
        self.note_replicas(info.config.num_replicas);
        info.in_touch(&self.keys.bucket)?;
        Ok(info)
    }

    /// Where there are several copies: makes sure that whoever answers is not alone.
    pub(super) async fn check_leader(&self) -> Result<(), StoreError> {
        if self.is_replicated() {
            self.stream_info().await?;
        }
        Ok(())
    }

    pub(super) async fn read_one(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let (last, checked) = tokio::join!(self.last(key), self.check_leader());
        let last = last?;
        checked?;
        Ok(match last {
            LastKnown::Value(entry) => Some(entry),
            LastKnown::Deleted(_) | LastKnown::Nothing => None,
        })
    }

    /// Asks the leader for the last message of a key. Replicas could answer quicker, and with the past.
    pub(super) async fn last(&self, key: &str) -> Result<LastKnown, StoreError> {
        let asked = self.keys.subject(key);
        self.last_of_subject(key, asked).await
    }

    /// The same by subject; `key` is what it is called in the answer.
    pub(super) async fn last_of_subject(
        &self,
        key: &str,
        asked: String,
    ) -> Result<LastKnown, StoreError> {
        let asked = json!({ "last_by_subj": asked });
        let subject = jetstream::about("STREAM.MSG.GET", &self.keys.stream);
        let question = NatsRequest::reads(subject.clone(), &asked);
        let (answer, link) = self
            .client
            .ask_linked::<StoredMessageResponse>(question)
            .await?;
        match answer {
            Ok(answer) => last_of(key, answer.message),
            Err(refusal) if refusal.is_no_message() => Ok(LastKnown::Nothing),
            Err(refusal) => {
                let about = CallContext {
                    endpoint: &link.endpoint,
                    subject: &subject,
                    writes: false,
                };
                Err(about.refused(&refusal))
            }
        }
    }

    pub(super) async fn write_one(&self, put: PutIf) -> Result<Put, StoreError> {
        if put.lease.is_some() {
            return Err(no_leases());
        }
        let (key, value) = (&*put.key, &*put.value);
        let won = |seq| Put::Won(Version::Number(seq));
        match put.expect {
            Expect::Version(version) => {
                let Some(expected) = sequence_of(&version) else {
                    return Ok(Put::Lost);
                };
                let stored = self.publish(key, value, expected, None).await?;
                Ok(stored.map_or(Put::Lost, won))
            }
            Expect::Absent => Ok(self.create(key, value).await?.map_or(Put::Lost, won)),
        }
    }

    /// Writes a key that has no value: it never had one, or the last message of it is the mark of its deletion. Each refused
    /// attempt is known to have stored nothing.
    async fn create(&self, key: &str, value: &[u8]) -> Result<Option<u64>, StoreError> {
        let mut expected = 0;
        for _ in 0..CREATE_ATTEMPTS {
            if let Some(seq) = self.publish(key, value, expected, None).await? {
                return Ok(Some(seq));
            }
            expected = match self.last(key).await? {
                LastKnown::Value(_) => return Ok(None),
                LastKnown::Deleted(seq) => seq,
                LastKnown::Nothing => 0,
            };
        }
        Err(StoreError::unavailable(format!(
            "key {key:?} keeps being created and deleted concurrently; retry"
        )))
    }

    pub(super) async fn remove_one(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let Some(expected) = sequence_of(&delete.version) else {
            return Ok(Delete::Lost);
        };
        let stored = self.publish(&delete.key, b"", expected, Some(DELETED));
        Ok(match stored.await? {
            Some(_) => Delete::Won,
            None => Delete::Lost,
        })
    }

    /// Stores a message if the last one of its key is the expected one. Nothing if it is not.
    async fn publish(
        &self,
        key: &str,
        value: &[u8],
        expected: u64,
        operation: Option<&str>,
    ) -> Result<Option<u64>, StoreError> {
        self.publish_to(self.keys.subject(key), value, expected, operation)
            .await
    }

    pub(super) async fn publish_to(
        &self,
        subject: String,
        value: &[u8],
        expected: u64,
        operation: Option<&str>,
    ) -> Result<Option<u64>, StoreError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, self.keys.stream.as_str());
        headers.insert(EXPECTED_SEQUENCE, expected.to_string());
        if let Some(operation) = operation {
            headers.insert(OPERATION, operation);
        }
        let question = NatsRequest {
            subject: subject.clone(),
            payload: value.to_vec(),
            headers: Some(headers),
            writes: true,
        };
        let (answer, link) = self.client.ask_linked::<PublishAck>(question).await?;
        match answer {
            Ok(ack) => Ok(Some(ack.seq)),
            Err(refusal) if refusal.is_lost_race() => Ok(None),
            Err(refusal) => {
                let about = CallContext {
                    endpoint: &link.endpoint,
                    subject: &subject,
                    writes: true,
                };
                Err(about.refused(&refusal))
            }
        }
    }
}

/// What a stored message says of its key.
fn last_of(key: &str, stored: StoredMessage) -> Result<LastKnown, StoreError> {
    let decode = |text: &str| {
        let decoded = STANDARD.decode(text);
        decoded.map_err(|e| StoreError::corrupt(key, format!("the response is not base64: {e}")))
    };
    if is_deletion(&String::from_utf8_lossy(&decode(&stored.hdrs)?)) {
        return Ok(LastKnown::Deleted(stored.seq));
    }
    Ok(LastKnown::Value(Entry {
        key: key.to_owned(),
        value: decode(&stored.data)?.into(),
        version: Version::Number(stored.seq),
    }))
}

/// Whether the headers of a message, as they stand on the wire, say that its key ends with it.
fn is_deletion(headers: &str) -> bool {
    headers
        .lines()
        .filter_map(|l| l.split_once(':'))
        .any(|(name, value)| ends_key(name.trim(), value.trim()))
}

/// Whether a header says that the key ends with its message.
pub(super) fn ends_key(name: &str, value: &str) -> bool {
    match name {
        OPERATION => value == DELETED || value == "PURGE",
        _ => name == MARKER,
    }
}

/// The sequence that a version stands for. No message has the sequence 0.
fn sequence_of(version: &Version) -> Option<u64> {
    match version {
        Version::Number(n) => Some(*n).filter(|n| *n > 0),
        Version::Text(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_told_by_its_headers() {
        let head = "NATS/1.0\r\n";
        for (headers, deletes) in [
            ("", false),
            ("KV-Operation: DEL\r\n\r\n", true),
            ("KV-Operation:PURGE\r\nNats-Rollup:sub\r\n\r\n", true),
            ("Nats-Marker-Reason: MaxAge\r\n\r\n", true),
            ("KV-Operation: PUT\r\n\r\n", false),
            ("Other: KV-Operation\r\n\r\n", false),
        ] {
            assert_eq!(
                is_deletion(&format!("{head}{headers}")),
                deletes,
                "{headers:?}"
            );
        }
    }
}
