//! A task to submit, as a JSON object: for `task submit --batch` and for client libraries.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use tenure_queue::{NewTask, Payload, RetryPolicy, StoreTime};

/// A task to submit. At most one of the four payload fields is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::cmd) struct TaskJson {
    /// A JSON value.
    payload: Option<Value>,
    /// Text.
    text: Option<String>,
    /// Bytes.
    base64: Option<String>,
    /// Reference to the payload.
    #[serde(rename = "ref")]
    reference: Option<String>,
    key: Option<String>,
    priority: Option<u8>,
    delay_ms: Option<u64>,
    at: Option<StoreTime>,
    attempt_timeout_ms: Option<u64>,
    claim_timeout_ms: Option<u64>,
    max_attempts: Option<u32>,
    retry_delay_ms: Option<u64>,
    retry_delay_max_ms: Option<u64>,
    meta: BTreeMap<String, String>,
}

/// Payload or result from one of its four forms; JSON `null` if none is set.
pub(in crate::cmd) fn payload_of(
    json: Option<Value>,
    text: Option<String>,
    base64: Option<String>,
    reference: Option<String>,
) -> Result<Payload, String> {
    let given = [
        json.is_some(),
        text.is_some(),
        base64.is_some(),
        reference.is_some(),
    ];
    if given.into_iter().filter(|given| *given).count() > 1 {
        return Err("more than one of payload, text, base64 and ref; give one".to_owned());
    }
    if let Some(base64) = &base64 {
        STANDARD
            .decode(base64)
            .map_err(|e| format!("the field base64 is invalid: {e}"))?;
    }
    Ok(match (json, text, base64, reference) {
        (_, Some(text), _, _) => Payload::Text(text),
        (_, _, Some(base64), _) => Payload::Base64(base64),
        (_, _, _, Some(reference)) => Payload::Ref(reference),
        (json, ..) => Payload::Json(json.unwrap_or_default()),
    })
}

impl TaskJson {
    /// Parses a line.
    pub(in crate::cmd) fn parse(line: &str) -> Result<Self, String> {
        // serde would accept an array as the fields in their order.
        match line.trim_start().starts_with('{') {
            true => serde_json::from_str(line).map_err(|e| e.to_string()),
            false => Err("not an object; write {\"payload\": …}".to_owned()),
        }
    }

    /// Converts to a submission. Retry settings that are not set are those of `queue`.
    pub(in crate::cmd) fn submit(self, queue: RetryPolicy) -> Result<NewTask, String> {
        let payload = payload_of(self.payload, self.text, self.base64, self.reference)?;
        let mut submit = NewTask::new(payload);
        let millis = Duration::from_millis;
        if let Some(key) = self.key {
            submit = submit.key(key);
        }
        if let Some(priority) = self.priority {
            submit = submit.priority(priority);
        }
        submit = match (self.delay_ms, self.at) {
            (Some(_), Some(_)) => return Err("both delay_ms and at; give one".to_owned()),
            (Some(delay), None) => submit.delay(millis(delay)),
            (None, Some(at)) => submit.at(at),
            (None, None) => submit,
        };
        if let Some(timeout) = self.attempt_timeout_ms {
            submit = submit.timeout(millis(timeout));
        }
        if let Some(lease) = self.claim_timeout_ms {
            submit = submit.lease(millis(lease));
        }
        if self.retry_delay_ms.is_some() || self.retry_delay_max_ms.is_some() {
            submit = submit.retry(retry(
                queue,
                self.retry_delay_ms.map(millis),
                self.retry_delay_max_ms.map(millis),
            ));
        }
        if let Some(attempts) = self.max_attempts {
            submit = submit.attempts(attempts);
        }
        for (name, value) in self.meta {
            submit = submit.meta(name, value);
        }
        Ok(submit)
    }
}

/// Retry settings of a task: those of the queue, with the delays that are set.
pub(in crate::cmd) fn retry(
    queue: RetryPolicy,
    first: Option<Duration>,
    longest: Option<Duration>,
) -> RetryPolicy {
    let first = first.unwrap_or(queue.delay.min(longest.unwrap_or(queue.delay)));
    RetryPolicy {
        delay: first,
        delay_max: longest.unwrap_or(queue.delay_max.max(first)),
        ..queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(line: &str) -> Result<NewTask, String> {
        TaskJson::parse(line)?.submit(RetryPolicy::default())
    }

    #[test]
    fn every_field_of_a_line_has_an_effect() {
        let nothing = submit("{}").unwrap();
        let lines = [
            r#"{"payload": {"a": 1}}"#,
            r#"{"text": "hi"}"#,
            r#"{"base64": "AP8="}"#,
            r#"{"ref": "s3://b/k"}"#,
            r#"{"key": "k"}"#,
            r#"{"priority": 9}"#,
            r#"{"delay_ms": 5}"#,
            r#"{"at": "2026-11-16T09:30:00Z"}"#,
            r#"{"attempt_timeout_ms": 5}"#,
            r#"{"claim_timeout_ms": 500}"#,
            r#"{"max_attempts": 2}"#,
            r#"{"retry_delay_ms": 2}"#,
            r#"{"retry_delay_max_ms": 2}"#,
            r#"{"meta": {"a": "b"}}"#,
        ];
        let mut seen = vec![nothing];
        for line in lines {
            let made = submit(line).unwrap();
            assert!(!seen.contains(&made), "{line} changes nothing");
            seen.push(made);
        }
    }

    #[test]
    fn retry_settings_that_are_not_set_are_those_of_the_queue() {
        let millis = Duration::from_millis;
        let queue = RetryPolicy {
            max_attempts: 9,
            delay: millis(20),
            delay_max: millis(80),
        };
        let with = |first, longest| RetryPolicy {
            delay: millis(first),
            delay_max: millis(longest),
            ..queue
        };
        assert_eq!(retry(queue, Some(millis(30)), None), with(30, 80));
        assert_eq!(retry(queue, Some(millis(90)), None), with(90, 90));
        assert_eq!(retry(queue, None, Some(millis(50))), with(20, 50));
        assert_eq!(retry(queue, None, Some(millis(10))), with(10, 10));
    }

    #[test]
    fn invalid_lines_are_rejected_with_the_reason() {
        for (line, word) in [
            (r#"{"text": "a", "ref": "b"}"#, "more than one"),
            (r#"{"delay_ms": 5, "at": "2026-11-16T09:30:00Z"}"#, "both"),
            (r#"{"at": "tomorrow"}"#, "tomorrow"),
            (r#"{"base64": "%"}"#, "base64"),
            (r#"{"colour": "blue"}"#, "colour"),
            ("[]", "not an object"),
            ("", "not an object"),
            ("{", "EOF"),
        ] {
            let told = submit(line).unwrap_err();
            assert!(told.contains(word), "{line}: {told}");
        }
    }
}
