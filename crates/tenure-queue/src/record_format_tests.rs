//! Records as the first release writes them: every later version reads them, writes them back as they are, and keeps fields
//! that a version after it may have added. `tests/golden/v1.jsonl` is never changed, only added to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::QueueError;
use crate::ids::{ClaimId, Nonce, ScheduleName, TaskId, WorkerName};
use crate::payload::Payload;
use crate::queue_record::{QueueRecord, QueueSettings, decode, encode};
use crate::retry::RetryPolicy;
use crate::schedule::{Schedule, ScheduleSpec};
use crate::store_time::StoreTime;
use crate::task::{FORMAT, RunningClaim, Task, TaskEvent, TaskEventKind, TaskProgress, TaskState};

const V1: &str = include_str!("../tests/golden/v1.jsonl");

fn golden() -> Vec<(String, Value)> {
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (
            line["kind"].as_str().unwrap().to_owned(),
            line["value"].clone(),
        )
    };
    V1.lines().map(read).collect()
}

/// A value after it was read and written back.
fn written_back(kind: &str, value: &Value) -> Result<Value, QueueError> {
    let bytes = value.to_string().into_bytes();
    let written = match kind {
        "task" => encode(&decode::<Task>(kind, &bytes)?),
        "queue" => encode(&decode::<QueueRecord>(kind, &bytes)?),
        "schedule" => encode(&decode::<Schedule>(kind, &bytes)?),
        other => panic!("no record is a {other}"),
    };
    Ok(serde_json::from_slice(&written).unwrap())
}

fn at(millis: u64) -> StoreTime {
    StoreTime::from_millis(1_700_000_000_000 + millis)
}

fn metadata() -> BTreeMap<String, String> {
    [("tenant".to_owned(), "ann".to_owned())].into()
}

fn retry() -> RetryPolicy {
    RetryPolicy {
        max_attempts: 3,
        delay: Duration::from_millis(500),
        delay_max: Duration::from_secs(60),
    }
}

/// Every state of a task, with all of its fields; no field is left to a default, so that a new one does not compile before it
/// is in this test and in the golden file.
fn tasks() -> Vec<Task> {
    let claim = ClaimId(9);
    let done = |result| TaskState::Done {
        at: at(4),
        claim,
        result,
    };
    let states = [
        TaskState::Ready { due: at(1) },
        TaskState::Running(RunningClaim {
            claim,
            worker: WorkerName::new("w1").unwrap(),
            since: at(2),
            expires: at(3),
            deadline: Some(at(4)),
            progress: Some(TaskProgress {
                permille: Some(450),
                note: "half way".to_owned(),
            }),
            cancel: true,
        }),
        done(Payload::Json(json!({}))),
        done(Payload::Text("ok".to_owned())),
        done(Payload::Base64("/w==".to_owned())),
        done(Payload::Ref("s3://bucket/key".to_owned())),
        TaskState::Dead {
            at: at(5),
            reason: "tried 3 times".to_owned(),
        },
        TaskState::Cancelled { at: at(6) },
    ];
    let events = [
        TaskEventKind::Submitted,
        TaskEventKind::Claimed,
        TaskEventKind::Finished,
        TaskEventKind::Failed,
        TaskEventKind::Expired,
        TaskEventKind::Rescheduled,
        TaskEventKind::Released,
        TaskEventKind::CancelRequested,
        TaskEventKind::Cancelled,
        TaskEventKind::Retried,
    ];
    let history = |event| TaskEvent {
        at: at(7),
        event,
        nonce: Nonce(8),
        by: Some("w1".to_owned()),
        claim: Some(claim),
        attempt: Some(2),
        note: Some("timed out".to_owned()),
    };
    let task = |state| Task {
        format: FORMAT,
        rev: 4,
        nonce: Nonce(7),
        id: TaskId::of_key("order-1").unwrap(),
        state,
        entered: 2,
        attempts: 1,
        priority: 5,
        created: at(0),
        payload: Payload::Text("x".to_owned()),
        attempt_timeout: Some(Duration::from_secs(9)),
        claim_timeout: Duration::from_secs(30),
        retry: retry(),
        metadata: metadata(),
        key: Some("order-1".to_owned()),
        history: events.into_iter().map(history).collect(),
        dropped_events: 3,
        unknown: BTreeMap::new(),
    };
    states.into_iter().map(task).collect()
}

fn every_kind() -> Vec<(&'static str, Value)> {
    let queue = QueueRecord {
        format: FORMAT,
        rev: 2,
        nonce: Nonce(1),
        paused: true,
        deleting: false,
        settings: QueueSettings {
            shards: 16,
            payload_max: 1000,
            result_max: 2000,
            claim_timeout: Duration::from_secs(30),
            attempt_timeout: Some(Duration::from_secs(9)),
            retry: retry(),
            retain_done: Duration::from_secs(60),
            retain_dead: Duration::from_secs(70),
        },
        unknown: BTreeMap::new(),
    };
    let schedule = Schedule {
        format: FORMAT,
        rev: 2,
        nonce: Nonce(1),
        name: ScheduleName::new("nightly").unwrap(),
        spec: ScheduleSpec {
            cron: "0 3 * * *".to_owned(),
            time_zone: "Europe/Berlin".to_owned(),
            payload: Payload::none(),
            priority: 5,
            attempt_timeout: Some(Duration::from_secs(9)),
            retry: Some(retry()),
            metadata: metadata(),
        },
        upto: at(0),
        submitted: 3,
        missed: 1,
        unknown: BTreeMap::new(),
    };
    let mut all = vec![
        ("queue", serde_json::to_value(queue).unwrap()),
        ("schedule", serde_json::to_value(schedule).unwrap()),
    ];
    for task in tasks() {
        all.push(("task", serde_json::to_value(task).unwrap()));
    }
    all
}

/// Adds the names of all fields of a value, and the values of those with few.
fn fields(at: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) if !at.ends_with(".metadata") => {
            for (name, value) in map {
                let at = format!("{at}.{name}");
                fields(&at, value, found);
                found.insert(at);
            }
        }
        Value::Array(items) => {
            for item in items {
                fields(&format!("{at}[]"), item, found);
            }
        }
        Value::String(text) if at.ends_with(".status") || at.ends_with(".event") => {
            found.insert(format!("{at} = {text}"));
        }
        _ => {}
    }
}

#[test]
fn records_of_the_first_release_are_read_and_written_back_as_they_are() {
    for (kind, value) in golden() {
        assert_eq!(written_back(&kind, &value), Ok(value), "{kind}");
    }
}

#[test]
fn fields_that_a_later_release_adds_are_kept() {
    for (kind, mut value) in golden() {
        value["later"] = json!({ "a": [1, null] });
        assert_eq!(written_back(&kind, &value), Ok(value), "{kind}");
    }
}

#[test]
fn every_field_of_every_record_is_in_a_golden_record() {
    let mut golden_fields = BTreeSet::new();
    for (kind, value) in golden() {
        fields(&kind, &value, &mut golden_fields);
    }
    let mut to_add = Vec::new();
    for (kind, value) in every_kind() {
        let mut found = BTreeSet::new();
        fields(kind, &value, &mut found);
        let missing: Vec<_> = found.difference(&golden_fields).cloned().collect();
        if !missing.is_empty() {
            let line = json!({ "kind": kind, "value": value });
            to_add.push(format!("{line}\n  has {missing:?}"));
            golden_fields.extend(missing);
        }
    }
    assert!(
        to_add.is_empty(),
        "lines to add to tests/golden/v1.jsonl:\n{}",
        to_add.join("\n")
    );
}
