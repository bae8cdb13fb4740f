//! E7: records as the first release writes them. Every later version reads them, writes them back as they are, and keeps what a
//! version after it may have added. `golden/v1.jsonl` is never changed, only added to.

use serde_json::{Map, Value};
use tenure_core::ids::ClusterName;
use tenure_core::keys::Key;
use tenure_core::record::{Record, RecordError};

const V1: &str = include_str!("golden/v1.jsonl");

fn golden() -> Vec<(Key, Map<String, Value>)> {
    let cluster = ClusterName::new("shop").unwrap();
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let path = line["key"].as_str().unwrap();
        let key = Key::parse(&cluster, path).unwrap_or_else(|| panic!("no key: {path}"));
        (key, line["value"].as_object().unwrap().clone())
    };
    V1.lines().map(read).collect()
}

fn read(key: &Key, value: &Map<String, Value>) -> Result<Record, RecordError> {
    Record::decode(key, &serde_json::to_vec(value).unwrap())
}

/// The value that is written back for a value that was read.
fn written_back(key: &Key, value: &Map<String, Value>) -> Map<String, Value> {
    let record = match read(key, value) {
        // Nobody writes a placeholder back: it is replaced.
        Err(damage) if damage.is_placeholder() => return value.clone(),
        read => read.unwrap_or_else(|e| panic!("{key}: {e}: {value:?}")),
    };
    serde_json::from_slice(&record.encode()).unwrap()
}

#[test]
fn the_placeholder_of_a_lost_shard_record_is_known_and_written_as_it_was() {
    let is_placeholder =
        |(key, value): &(Key, _)| read(key, value).is_err_and(|d| d.is_placeholder());
    let placeholders: Vec<_> = golden().into_iter().filter(is_placeholder).collect();
    let [(Key::Shard(_), value)] = &placeholders[..] else {
        panic!("{placeholders:?}")
    };
    let head = serde_json::from_value(Value::Object(value.clone())).unwrap();
    let written: Value = serde_json::from_slice(&Record::Placeholder(head).encode()).unwrap();
    assert_eq!(written, Value::Object(value.clone()));
}

#[test]
fn records_of_the_first_release_are_read_and_written_back_as_they_are() {
    for (key, value) in golden() {
        assert_eq!(written_back(&key, &value), value, "{key}");
    }
}

#[test]
fn what_a_later_release_adds_to_a_record_is_kept() {
    for (key, mut value) in golden() {
        value.insert("later".to_owned(), serde_json::json!({ "a": [1, null] }));
        if let Some(plan) = value.get_mut("plan").filter(|p| p.get("term").is_none()) {
            plan["later"] = 7.into();
        }
        assert_eq!(written_back(&key, &value), value, "{key}");
    }
}
