//! The record of a queue: what producers and workers agree on.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::QueueError;
use crate::ids::Nonce;
use crate::retry::{RetryPolicy, maybe_millis, millis};
use crate::task::FORMAT;

/// The most shards that a queue can have.
pub const SHARDS_MAX: u32 = 4096;
/// The most that a task may carry, whatever its queue says: some stores take no more.
pub const PAYLOAD_LIMIT: usize = 512 << 10;

/// What a queue is like, as its creator says. Shards cannot be changed later; everything else can.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSettings {
    /// How many shards there are: the most workers that can share the queue.
    pub shards: u32,
    /// The most that a task may carry by value, in bytes.
    pub payload_max: usize,
    /// The most that a result may take, in bytes.
    pub result_max: usize,
    /// How long a claim is good without being extended, unless the task says otherwise.
    #[serde(rename = "claim_timeout_ms", with = "millis")]
    pub claim_timeout: Duration,
    /// How long one attempt may take, unless the task says otherwise. None: as long as it likes.
    #[serde(rename = "attempt_timeout_ms", with = "maybe_millis")]
    pub attempt_timeout: Option<Duration>,
    /// How often a task is tried, unless it says otherwise.
    pub retry: RetryPolicy,
    /// For how long tasks that are done or cancelled are kept.
    #[serde(rename = "retain_done_ms", with = "millis")]
    pub retain_done: Duration,
    /// For how long dead letters are kept.
    #[serde(rename = "retain_dead_ms", with = "millis")]
    pub retain_dead: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self {
            shards: 16,
            payload_max: 32 << 10,
            result_max: 16 << 10,
            claim_timeout: Duration::from_secs(30),
            attempt_timeout: None,
            retry: RetryPolicy::default(),
            retain_done: 7 * DAY,
            retain_dead: 30 * DAY,
        }
    }
}

impl QueueSettings {
    /// Checks everything, and reports every problem at once.
    pub fn check(&self) -> Result<(), QueueError> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        need(
            (1..=SHARDS_MAX).contains(&self.shards),
            format!(
                "shards is {}; it must be between 1 and {SHARDS_MAX}",
                self.shards
            ),
        );
        for (name, bytes) in [
            ("payload_max", self.payload_max),
            ("result_max", self.result_max),
        ] {
            need(
                bytes <= PAYLOAD_LIMIT,
                format!("{name} is {bytes}; it must be at most {PAYLOAD_LIMIT} bytes"),
            );
        }
        check_lease(self.claim_timeout, &mut need);
        check_timeout(self.attempt_timeout, &mut need);
        check_retry(&self.retry, &mut need);
        match problems.is_empty() {
            true => Ok(()),
            false => Err(QueueError::Invalid(problems)),
        }
    }
}

type Need<'a> = &'a mut dyn FnMut(bool, String);

pub(crate) fn check_lease(lease: Duration, need: Need<'_>) {
    let shortest = Duration::from_millis(100);
    need(
        lease >= shortest,
        format!("claim timeout is {lease:?}; it must be at least {shortest:?}"),
    );
}

pub(crate) fn check_timeout(timeout: Option<Duration>, need: Need<'_>) {
    need(
        timeout != Some(Duration::ZERO),
        "attempt timeout is zero; omit it for no limit".to_owned(),
    );
}

pub(crate) fn check_retry(retry: &RetryPolicy, need: Need<'_>) {
    need(
        retry.max_attempts >= 1,
        "max attempts is 0; it must be at least 1".to_owned(),
    );
    need(
        retry.delay <= retry.delay_max,
        format!(
            "retry delay {:?} is longer than its maximum, {:?}",
            retry.delay, retry.delay_max
        ),
    );
}

/// The record of a queue as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRecord {
    /// The format of the record.
    pub format: u32,
    /// One more with every write.
    pub rev: u64,
    /// Which write this was.
    pub nonce: Nonce,
    /// Whether nothing may be claimed at the moment.
    #[serde(default)]
    pub paused: bool,
    /// Whether the queue is being deleted: nothing may be submitted or claimed, and everything else of it goes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// What the queue is like.
    #[serde(flatten)]
    pub settings: QueueSettings,
    /// Fields that this version does not know, kept as they came.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, serde_json::Value>,
}

impl QueueRecord {
    pub(crate) fn new(settings: QueueSettings, nonce: Nonce) -> Self {
        Self {
            format: FORMAT,
            rev: 1,
            nonce,
            paused: false,
            deleting: false,
            settings,
            unknown: BTreeMap::new(),
        }
    }
}

/// Writes a record down.
pub(crate) fn encode(record: &impl Serialize) -> Vec<u8> {
    // Records are plain data with text keys: this cannot fail.
    serde_json::to_vec(record).unwrap_or_default()
}

/// Reads a record, unless it is of a newer format or none at all.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(key: &str, value: &[u8]) -> Result<T, QueueError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let corrupt = |reason: String| QueueError::Corrupt {
        key: key.to_owned(),
        reason,
    };
    let Format { format } = serde_json::from_slice(value).map_err(|e| corrupt(e.to_string()))?;
    if format > FORMAT {
        let key = key.to_owned();
        return Err(QueueError::Newer { key, format });
    }
    serde_json::from_slice(value).map_err(|e| corrupt(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_told_at_once() {
        let bad = QueueSettings {
            shards: 0,
            payload_max: 1 << 30,
            claim_timeout: Duration::ZERO,
            attempt_timeout: Some(Duration::ZERO),
            retry: RetryPolicy {
                max_attempts: 0,
                delay: Duration::from_secs(9),
                delay_max: Duration::from_secs(1),
            },
            ..QueueSettings::default()
        };
        let text = bad.check().unwrap_err().to_string();
        for word in [
            "shards",
            "payload_max",
            "claim timeout",
            "attempt timeout",
            "max attempts",
            "retry delay",
        ] {
            assert!(text.contains(word), "{word} is missing: {text}");
        }
        assert_eq!(QueueSettings::default().check(), Ok(()));
    }

    #[test]
    fn a_record_keeps_what_it_does_not_know_and_refuses_newer_formats() {
        let record = QueueRecord::new(QueueSettings::default(), Nonce(1));
        let mut value = serde_json::to_value(&record).unwrap();
        value["colour"] = "blue".into();
        let read: QueueRecord = decode("k", value.to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), value);
        value["format"] = 2.into();
        let e = decode::<QueueRecord>("k", value.to_string().as_bytes()).unwrap_err();
        assert!(e.to_string().contains("newer"), "{e}");
        let e = decode::<QueueRecord>("k", b"{").unwrap_err();
        assert!(matches!(e, QueueError::Corrupt { .. }), "{e}");
    }
}
