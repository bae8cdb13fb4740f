//! E7: records as the first release writes them. Every later version reads them, writes them back as they are, and keeps what a
//! version after it may have added. `golden/v1.jsonl` is never changed, only added to.

use serde_json::{Map, Value};
use tenure_core::ids::ClusterName;
use tenure_core::layout::Key;
use tenure_core::record::Record;

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

/// What becomes of a value that is read and written back.
fn written_back(key: &Key, value: &Map<String, Value>) -> Map<String, Value> {
    let bytes = serde_json::to_vec(value).unwrap();
    let record = Record::decode(key, &bytes).unwrap_or_else(|e| panic!("{key}: {e}: {value:?}"));
    serde_json::from_slice(&record.encode()).unwrap()
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
