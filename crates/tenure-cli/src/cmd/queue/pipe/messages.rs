//! What a client may say, and how failures are told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_queue::{ClaimId, Payload, QueueError, StoreTime, TaskId, TaskStatus};

use crate::cmd::task::task_json::{TaskJson, payload_of};
use crate::exit::Exit;

/// A line from the client.
#[derive(Debug, Deserialize)]
pub(super) struct ClientRequest {
    /// Comes back with the answer.
    #[serde(default)]
    pub(super) id: Value,
    #[serde(flatten)]
    pub(super) order: Operation,
}

/// What the client wants.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Operation {
    /// Submits tasks; each is answered by itself.
    Submit {
        tasks: Vec<TaskJson>,
    },
    /// Waits until a task has ended.
    Wait {
        task: TaskId,
        timeout_ms: u64,
    },
    Get {
        task: TaskId,
    },
    List(Box<ListOperation>),
    Cancel {
        task: TaskId,
    },
    Retry {
        task: TaskId,
    },
    Stats {},
    /// Starts a worker.
    Work(WorkOperation),
    /// Stops it in good order.
    Stop {},
    /// A task is done.
    Done {
        claim: ClaimId,
        #[serde(flatten)]
        result: ResultSpec,
    },
    /// An attempt has failed.
    Fail {
        claim: ClaimId,
        reason: String,
        #[serde(default)]
        permanent: bool,
        #[serde(default)]
        after_ms: Option<u64>,
    },
    /// A task is to be tried at another time.
    Reschedule {
        claim: ClaimId,
        #[serde(default)]
        in_ms: Option<u64>,
        #[serde(default)]
        at: Option<StoreTime>,
        #[serde(default)]
        note: Option<String>,
    },
    /// How far an attempt is.
    Progress {
        claim: ClaimId,
        #[serde(default)]
        percent: Option<f64>,
        #[serde(default)]
        note: String,
    },
}

impl Operation {
    /// Whether it is about a task under way. Such a line has no answer.
    pub(super) fn is_of_task(&self) -> bool {
        matches!(
            self,
            Self::Done { .. } | Self::Fail { .. } | Self::Reschedule { .. } | Self::Progress { .. }
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListOperation {
    pub(super) states: Vec<TaskStatus>,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) since: Option<StoreTime>,
    pub(super) before: Option<StoreTime>,
    pub(super) limit: Option<usize>,
    pub(super) from: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkOperation {
    pub(super) concurrency: Option<usize>,
    pub(super) stop_timeout_ms: Option<u64>,
}

/// A result, in one of the forms that a payload has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResultSpec {
    payload: Option<Value>,
    text: Option<String>,
    base64: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<String>,
}

impl ResultSpec {
    pub(super) fn payload(self) -> Result<Payload, String> {
        payload_of(self.payload, self.text, self.base64, self.reference)
    }
}

/// Why something was not done: a word for programs, a sentence for people.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct WireError {
    kind: &'static str,
    message: String,
}

impl WireError {
    pub(super) fn new(kind: &'static str, message: String) -> Self {
        Self { kind, message }
    }
}

impl From<QueueError> for WireError {
    fn from(error: QueueError) -> Self {
        let kind = match &error {
            QueueError::Store(_) => "store",
            QueueError::NoQueue { .. } | QueueError::Deleted(_) => "no_queue",
            QueueError::NoTask(_) => "no_task",
            QueueError::NoSchedule(_) => "no_schedule",
            QueueError::Exists(_) => "exists",
            QueueError::Corrupt { .. } => "corrupt",
            QueueError::Newer { .. } => "newer",
            QueueError::Invalid(_) => "invalid",
            QueueError::Refused { .. } => "refused",
            QueueError::StillGoing { .. } => "timeout",
            QueueError::NoResult { .. } => "no_result",
            QueueError::Node(_) => "node",
        };
        Self::new(kind, error.to_string())
    }
}

impl From<WireError> for Exit {
    fn from(error: WireError) -> Self {
        Self::failed(error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind_are_understood() {
        for line in [
            r#"{"id": 1, "op": "submit", "tasks": [{"payload": 1}, {"text": "a"}]}"#,
            r#"{"id": "x", "op": "wait", "task": "t", "timeout_ms": 5}"#,
            r#"{"id": 1, "op": "get", "task": "t"}"#,
            r#"{"id": 1, "op": "list"}"#,
            r#"{"id": 1, "op": "list", "states": ["dead"], "meta": {"a": "b"}, "limit": 5, "from": "k"}"#,
            r#"{"id": 1, "op": "cancel", "task": "t"}"#,
            r#"{"id": 1, "op": "retry", "task": "t"}"#,
            r#"{"id": 1, "op": "stats"}"#,
            r#"{"id": 1, "op": "work", "concurrency": 2}"#,
            r#"{"id": 1, "op": "work"}"#,
            r#"{"id": 1, "op": "stop"}"#,
            r#"{"op": "done", "claim": "00000000000000ff"}"#,
            r#"{"op": "done", "claim": "00000000000000ff", "text": "a"}"#,
            r#"{"op": "fail", "claim": "00000000000000ff", "reason": "no", "permanent": true}"#,
            r#"{"op": "reschedule", "claim": "00000000000000ff", "in_ms": 5}"#,
            r#"{"op": "progress", "claim": "00000000000000ff", "percent": 4.5}"#,
        ] {
            let request = serde_json::from_str::<ClientRequest>(line);
            assert!(request.is_ok(), "{line}: {request:?}");
        }
        for line in [
            r#"{"id": 1, "op": "dance"}"#,
            r#"{"id": 1, "op": "submit", "tasks": [{"colour": 1}]}"#,
            r#"{"op": "done", "claim": "no"}"#,
            "[]",
        ] {
            assert!(
                serde_json::from_str::<ClientRequest>(line).is_err(),
                "{line}"
            );
        }
    }
}
