//! What we ask JetStream and what it answers, as far as we read it.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What an update, a delete or a create expects to find: the sequence of the last message of the subject, 0 for none.
pub(super) const EXPECTED_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
pub(super) const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Says that a message is the end of its key.
pub(super) const OPERATION: &str = "KV-Operation";
pub(super) const DELETED: &str = "DEL";
/// Says that the server itself put the end of a key there.
pub(super) const MARKER: &str = "Nats-Marker-Reason";

pub(super) const ACCOUNT: &str = "$JS.API.INFO";

/// The subject of a question about a stream.
pub(super) fn about(question: &str, stream: &str) -> String {
    format!("$JS.API.{question}.{stream}")
}

/// A refusal. The codes are the server's.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    pub(super) description: String,
}

impl ApiError {
    /// The condition of a write did not hold.
    pub(super) fn is_lost_race(&self) -> bool {
        matches!(self.err_code, 10_071 | 10_164)
    }

    pub(super) fn is_no_message(&self) -> bool {
        self.err_code == 10_037
    }

    pub(super) fn is_no_stream(&self) -> bool {
        self.err_code == 10_059
    }

    /// Somebody made a stream of that name, with other settings, just now.
    pub(super) fn is_name_taken(&self) -> bool {
        self.err_code == 10_058
    }

    /// Refused because there is no room: nothing was stored.
    pub(super) fn is_full(&self) -> bool {
        matches!(
            self.err_code,
            10_002 | 10_023 | 10_028 | 10_047 | 10_077 | 10_122
        ) || self.description.contains("exceeded")
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.err_code == 10_054
    }

    pub(super) fn is_disabled(&self) -> bool {
        matches!(self.err_code, 10_039 | 10_076)
    }
}

#[derive(Deserialize)]
struct Refused {
    error: Option<ApiError>,
}

/// Reads an answer: what was asked for, or a refusal.
pub(super) fn read<T: DeserializeOwned>(
    payload: &[u8],
) -> Result<Result<T, ApiError>, serde_json::Error> {
    let refused: Refused = serde_json::from_slice(payload)?;
    match refused.error {
        Some(refusal) => Ok(Err(refusal)),
        None => serde_json::from_slice(payload).map(Ok),
    }
}

/// How a stream is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    pub(super) subjects: Vec<String>,
    pub(super) retention: String,
    pub(super) storage: String,
    pub(super) discard: String,
    pub(super) num_replicas: usize,
    pub(super) max_msgs_per_subject: i64,
    pub(super) max_msgs: i64,
    pub(super) max_bytes: i64,
    pub(super) max_age: i64,
    pub(super) allow_direct: bool,
    pub(super) allow_rollup_hdrs: bool,
    pub(super) deny_delete: bool,
    pub(super) sealed: bool,
    #[serde(skip_serializing)]
    pub(super) mirror: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StreamState {
    pub(super) messages: u64,
    pub(super) last_seq: u64,
    /// How many subjects have a message.
    pub(super) num_subjects: u64,
    /// How many messages each subject has, if that was asked for.
    pub(super) subjects: BTreeMap<String, u64>,
}

/// One of those who keep a copy, as the leader sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) current: bool,
    pub(super) offline: bool,
    /// Nanoseconds since the leader heard from it.
    pub(super) active: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClusterPeers {
    pub(super) replicas: Vec<Replica>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) config: StreamConfig,
    pub(super) created: String,
    pub(super) state: StreamState,
    pub(super) cluster: Option<ClusterPeers>,
    pub(super) ts: Option<String>,
    /// How many subjects there are, if they were asked for: they come in pages.
    #[serde(default)]
    pub(super) total: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct StoredMessageResponse {
    pub(super) message: StoredMessage,
}

/// A message as the stream has it. Headers and data are in base64.
#[derive(Debug, Deserialize)]
pub(super) struct StoredMessage {
    pub(super) seq: u64,
    #[serde(default)]
    pub(super) hdrs: String,
    #[serde(default)]
    pub(super) data: String,
}

/// That a message was stored.
#[derive(Debug, Deserialize)]
pub(super) struct PublishAck {
    pub(super) seq: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AccountInfo {
    pub(super) storage: u64,
    pub(super) limits: AccountLimits,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct AccountLimits {
    pub(super) max_storage: i64,
}

impl Default for AccountLimits {
    fn default() -> Self {
        Self { max_storage: -1 }
    }
}

/// What the monitoring port tells that JetStream itself does not.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Varz {
    pub(super) jetstream: VarzJetStream,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VarzJetStream {
    pub(super) config: Option<VarzConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VarzConfig {
    /// Nanoseconds.
    pub(super) sync_interval: u64,
    pub(super) sync_always: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_and_answers_are_told_apart() {
        let lost = br#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"KV_b","seq":0}"#;
        let refusal = read::<PublishAck>(lost).unwrap().unwrap_err();
        assert!(refusal.is_lost_race() && !refusal.is_full());
        let won = read::<PublishAck>(br#"{"stream":"KV_b","seq":7}"#).unwrap();
        assert_eq!(won.unwrap().seq, 7);
        assert!(read::<PublishAck>(b"+OK").is_err());
    }
}
