//! Records read back as what was written, keep what they do not know, and refuse what makes no sense.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::ids::{ClusterName, Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use crate::plan::{BalanceBy, Budgets, PolicyKind, ZoneRule};
use crate::reason::Reason;
use crate::time::Time;

fn head() -> Head {
    Head::first(Nonce {
        writer: SessionId(7),
        n: 3,
    })
}

fn owner(name: &str, session: u128) -> Owner {
    Owner {
        node: NodeName::new(name).unwrap(),
        session: SessionId(session),
    }
}

fn shard_key() -> Key {
    Key::Shard(ShardId::new(
        KeyspaceName::new("orders").unwrap(),
        ShardName::index(3),
    ))
}

fn shard(tenancy: Ownership) -> ShardRecord {
    ShardRecord {
        ownership: tenancy,
        ..ShardRecord::new(head(), 1)
    }
}

fn session() -> SessionRecord {
    SessionRecord {
        head: head(),
        ended: None,
        stopping: true,
        node: NodeName::new("n1").unwrap(),
        role: Role::Node,
        addresses: [("http".to_owned(), "http://127.0.0.1:1".to_owned())].into(),
        zone: Some("a".to_owned()),
        weight: 100,
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        capacity: Some(9),
        keyspaces: Arc::new([KeyspaceName::new("orders").unwrap()].into()),
        costs: [(
            KeyspaceName::new("orders").unwrap(),
            [(ShardName::index(3), 70)].into(),
        )]
        .into(),
        held: [(
            KeyspaceName::new("orders").unwrap(),
            [(ShardName::index(3), 7)].into(),
        )]
        .into(),
        unserved: [(
            KeyspaceName::new("orders").unwrap(),
            [(
                "unclaimed".to_owned(),
                UnservedCount {
                    count: 2,
                    shards: vec![ShardName::index(3)],
                },
            )]
            .into(),
        )]
        .into(),
        ttl: Duration::from_millis(2500),
        renewals: 9,
        boot: 1,
        reads_format: FORMAT,
        version: "0.1.0".into(),
        store: "uuid".into(),
        leased: Some(Duration::from_secs(2)),
        boot_clock: Some(BootClock {
            id: "b".to_owned(),
            until_ns: Time(5),
        }),
        unknown: Unknown::new(),
    }
}

/// All settings of planning, and all values of those that have few.
fn planning() -> (PlanningSettings, PlanningSettings, PlanningSettings) {
    let time = |ms| Some(Duration::from_millis(ms));
    let full = PlanningSettings {
        policy: Some(PolicyKind::Sticky),
        balance_by: Some(BalanceBy::Cost),
        settle_time: time(1),
        rejoin_after: time(2),
        band_shards: Some(1),
        band_cost_permille: Some(2),
        cost_floor: Some(3),
        cost_window: time(3),
        failover_after: time(4),
        cool_down: time(5),
        budgets: Some(Budgets {
            total: 3,
            per_source: 2,
            per_target: 1,
        }),
        zones: Some(ZoneRule::Spread { most_percent: 50 }),
        required_labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        unknown: Unknown::new(),
    };
    let second = PlanningSettings {
        policy: Some(PolicyKind::Rendezvous),
        balance_by: Some(BalanceBy::Shards),
        zones: Some(ZoneRule::Prefer {
            zones: vec!["a".to_owned()],
        }),
        ..PlanningSettings::default()
    };
    let third = PlanningSettings {
        policy: Some(PolicyKind::Jump),
        zones: Some(ZoneRule::Any),
        ..PlanningSettings::default()
    };
    (full, second, third)
}

fn every_kind() -> Vec<(Key, Record)> {
    let mv = Move {
        id: 4,
        to: owner("n2", 2),
        reason: Reason::Planned,
        more: true,
    };
    let by = owner("n1", 1);
    let mut all: Vec<(Key, Record)> = [
        Ownership::FREE,
        Ownership::Free {
            awaiting_disclaimers: vec![SessionId(1)],
        },
        Ownership::Owned {
            by: by.clone(),
            serving: false,
        },
        Ownership::Owned {
            by: by.clone(),
            serving: true,
        },
        Ownership::Warming {
            by: by.clone(),
            mv: mv.clone(),
        },
        Ownership::Freezing {
            by: by.clone(),
            mv: mv.clone(),
        },
        Ownership::Sealed {
            by,
            mv,
            seal: "at 9".to_owned(),
        },
        Ownership::Deleted,
    ]
    .into_iter()
    .map(|tenancy| (shard_key(), Record::Shard(Arc::new(shard(tenancy)))))
    .collect();
    // Every field is named here, so that a new one does not compile before it is in this test and in the golden file.
    let full = ShardRecord {
        head: head(),
        epoch: Epoch::first(1),
        ownership: Ownership::FREE,
        assigned: Some(NodeName::new("n3").unwrap()),
        plan: PlanId { term: 2, seq: 3 },
        pin: Some(NodeName::new("n1").unwrap()),
        move_request: Some(NodeName::new("n2").unwrap()),
        deleting: true,
        cost: Some(70),
        failures: vec![LoadFailure {
            node: NodeName::new("n1").unwrap(),
            session: SessionId(1),
            error: "disk".to_owned(),
        }],
        served_since: true,
        quarantine: Some(Quarantine {
            reason: "three nodes".to_owned(),
        }),
        trouble: Some("three crashes".to_owned()),
        meta: Some("{}".to_owned()),
        history: vec![
            OwnerChange {
                epoch: Epoch::first(1),
                from: None,
                to: None,
                reason: Reason::Free,
                by: SessionId(1),
            },
            OwnerChange {
                epoch: Epoch::first(1),
                from: Some(NodeName::new("n1").unwrap()),
                to: Some(NodeName::new("n2").unwrap()),
                reason: Reason::Planned,
                by: SessionId(1),
            },
        ],
        unknown: Unknown::new(),
    };
    all.push((shard_key(), Record::Shard(Arc::new(full))));
    all.push((shard_key(), Record::Placeholder(head())));
    let session_key = || Key::Session(SessionId(1));
    for role in [Role::Node, Role::Shadow, Role::Planner, Role::Router] {
        let session = SessionRecord { role, ..session() };
        all.push((session_key(), Record::Session(Arc::new(session))));
    }
    for reason in [
        EndReason::Resigned,
        EndReason::Expired,
        EndReason::Replaced,
        EndReason::LeaseGone,
        EndReason::Missing,
    ] {
        let by = SessionId(8);
        let ended = SessionRecord {
            ended: Some(Ended { reason, by }),
            ..session()
        };
        all.push((session_key(), Record::Session(Arc::new(ended))));
    }
    for mode in [
        NodeMode::Active,
        NodeMode::Draining,
        NodeMode::Drained("operator".to_owned()),
    ] {
        let node = NodeRecord {
            head: head(),
            session: SessionId(1),
            mode,
            cordoned: true,
            boot: Some(2),
            unsure: true,
            ephemeral: true,
            stop_session: Some(SessionId(1)),
            unknown: Unknown::new(),
        };
        all.push((
            Key::Node(NodeName::new("n1").unwrap()),
            Record::Node(Arc::new(node)),
        ));
    }
    let (hashed, named) = (KeyspaceKind::Hashed(64), KeyspaceKind::Named);
    for (kind, mode, plan) in [
        (hashed, AssignedBy::Leader, planning().0),
        (named, AssignedBy::FairShare, planning().1),
        (hashed, AssignedBy::Rendezvous, planning().2),
    ] {
        let ks = KeyspaceRecord {
            head: head(),
            kind,
            assigned_by: mode,
            planning: plan,
            generation: 2,
            min_generation: 1,
            deleted: true,
            rebalance: true,
            unknown: Unknown::new(),
        };
        all.push((
            Key::Keyspace(KeyspaceName::new("orders").unwrap()),
            Record::Keyspace(Arc::new(ks)),
        ));
    }
    let longest_ttl = Duration::from_secs(3);
    let cluster = ClusterRecord {
        head: head(),
        boot: 1,
        store: "u".to_owned(),
        longest_ttl,
        keyspaces: [(KeyspaceName::new("orders").unwrap(), 3)].into(),
        moves_paused: Some(MovesPaused {
            reason: "incident 7".to_owned(),
            rev: 1,
            lasts: Some(Duration::from_secs(7200)),
        }),
        unknown: Unknown::new(),
    };
    all.push((Key::Cluster, Record::Cluster(Arc::new(cluster))));
    let leader = LeaderRecord {
        head: head(),
        term: 3,
        session: SessionId(1),
        node: NodeName::new("n1").unwrap(),
        resigned: true,
        unknown: Unknown::new(),
    };
    all.push((Key::Leader, Record::Leader(Arc::new(leader))));
    all
}

#[test]
fn every_record_reads_back_as_what_was_written() {
    for (key, record) in every_kind() {
        assert_eq!(
            Record::decode(&key, &record.encode()),
            record.clone().stored(),
            "{key}: {record:?}"
        );
    }
}

#[test]
fn fields_of_later_versions_are_kept() {
    for (key, record) in every_kind() {
        let mut json: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
        json["colour"] = serde_json::json!({"of": ["the", "bike shed"], "n": 1});
        let read = Record::decode(&key, &serde_json::to_vec(&json).unwrap());
        if let Err(damage) = record.stored() {
            assert_eq!(read, Err(damage), "{key}: still a placeholder");
            continue;
        }
        let read = read.unwrap();
        let written: serde_json::Value = serde_json::from_slice(&read.encode()).unwrap();
        assert_eq!(written, json, "{key}");
    }
}

#[test]
fn no_field_is_written_twice() {
    for (key, record) in every_kind() {
        let text = String::from_utf8(record.encode()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            serde_json::to_string(&json).unwrap().len(),
            text.len(),
            "{key}: {text}"
        );
    }
}

#[test]
fn a_record_of_a_newer_format_is_refused_whole() {
    for (key, record) in every_kind() {
        let mut json: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
        json["format"] = serde_json::json!(FORMAT + 1);
        let read = Record::decode(&key, &serde_json::to_vec(&json).unwrap());
        assert_eq!(read, Err(RecordError::Newer(FORMAT + 1)), "{key}");
    }
}

#[test]
fn a_record_that_makes_no_sense_is_corrupt() {
    let check = |change: serde_json::Value| {
        let mut json: serde_json::Value =
            serde_json::from_slice(&Record::Shard(Arc::new(shard(Ownership::FREE))).encode())
                .unwrap();
        for (field, value) in change.as_object().unwrap() {
            json[field] = value.clone();
        }
        let read = Record::decode(&shard_key(), &serde_json::to_vec(&json).unwrap());
        assert!(
            matches!(read, Err(RecordError::Corrupt(_))),
            "{change}: {read:?}"
        );
    };
    let by = serde_json::json!({"node": "n1", "session": SessionId(1).to_string()});
    let mv =
        |phase: &str| serde_json::json!({"id": 1, "to": by, "phase": phase, "reason": "planned"});
    check(serde_json::json!({"serving": true}));
    check(serde_json::json!({"move": mv("warming")}));
    check(serde_json::json!({"owner": by, "move": mv("warming")}));
    check(serde_json::json!({"owner": by, "serving": true, "move": mv("sealed")}));
    check(serde_json::json!({"owner": by, "deleted": true}));
    check(serde_json::json!({"owner": by, "awaiting_disclaimers": [SessionId(1).to_string()]}));
    check(serde_json::json!({"owner": {"node": "", "session": "x"}}));
    check(serde_json::json!({"epoch": -1}));
    assert!(matches!(
        Record::decode(&shard_key(), b"not json"),
        Err(RecordError::Corrupt(_))
    ));
    assert!(matches!(
        Record::decode(&shard_key(), b""),
        Err(RecordError::Corrupt(_))
    ));
}

#[test]
fn a_placeholder_is_found_unreadable_under_a_shards_key() {
    let key = Key::Shard("orders/3".parse().unwrap());
    let bytes = Record::Placeholder(head()).encode();
    let found = Record::decode(&key, &bytes);
    assert_eq!(found, Err(RecordError::placeholder()));
    assert!(RecordError::placeholder().is_placeholder());
    assert!(!RecordError::Corrupt("cut off".to_owned()).is_placeholder());
}

/// Fields whose own fields are names that users choose.
const MAPS: [&str; 6] = [
    "addresses",
    "labels",
    "required_labels",
    "costs",
    "held",
    "keyspaces",
];
/// Fields with few possible values, each of which a golden record has.
const CHOICES: [&str; 9] = [
    "role",
    "mode",
    "assigned_by",
    "kind",
    "reason",
    "phase",
    "policy",
    "balance_by",
    "zones",
];

/// Fields with free text, although their name is that of a field with few values.
const FREE_TEXT: [&str; 3] = ["nodes.reason", "quarantine.reason", "moves_paused.reason"];

/// Adds the names of all fields of a value, and the values of those with few.
fn fields(at: &str, name: &str, value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) if !MAPS.contains(&name) => {
            for (name, value) in map {
                let at = format!("{at}.{name}");
                fields(&at, name, value, found);
                found.insert(at);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                fields(&format!("{at}[]"), name, item, found);
            }
        }
        serde_json::Value::String(text)
            if CHOICES.contains(&name) && !FREE_TEXT.iter().any(|end| at.ends_with(end)) =>
        {
            found.insert(format!("{at} = {text}"));
        }
        _ => {}
    }
}

// E7
#[test]
fn every_field_of_every_record_is_in_a_golden_record() {
    let cluster = ClusterName::new("shop").unwrap();
    let kind = |key: &Key| key.path(&cluster).split('/').nth(1).map(str::to_owned);
    let mut golden = BTreeSet::new();
    for line in include_str!("../../tests/golden/v1.jsonl").lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = Key::parse(&cluster, line["key"].as_str().unwrap()).unwrap();
        fields(&kind(&key).unwrap(), "", &line["value"], &mut golden);
    }
    let mut to_add = Vec::new();
    for (key, record) in every_kind() {
        let value = serde_json::from_slice(&record.encode()).unwrap();
        let mut found = BTreeSet::new();
        fields(&kind(&key).unwrap(), "", &value, &mut found);
        let missing: Vec<_> = found.difference(&golden).cloned().collect();
        if !missing.is_empty() {
            let line = serde_json::json!({ "key": key.path(&cluster), "value": value });
            to_add.push(format!("{line}\n  has {missing:?}"));
            golden.extend(missing);
        }
    }
    assert!(
        to_add.is_empty(),
        "lines to add to tests/golden/v1.jsonl:\n{}",
        to_add.join("\n")
    );
}
