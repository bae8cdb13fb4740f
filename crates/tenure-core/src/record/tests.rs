//! Records read back as what was written, keep what they do not know, and refuse what makes no sense.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use crate::time::Time;
use crate::why::Why;

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

fn shard(tenancy: Tenancy) -> ShardRecord {
    ShardRecord {
        tenancy,
        ..ShardRecord::new(head(), 1)
    }
}

fn session() -> SessionRecord {
    SessionRecord {
        head: head(),
        ended: None,
        leaving: true,
        node: NodeName::new("n1").unwrap(),
        role: Role::Node,
        addresses: [("http".to_owned(), "http://127.0.0.1:1".to_owned())].into(),
        zone: Some("a".to_owned()),
        weight: 100,
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        capacity: Some(9),
        keyspaces: Arc::new([KeyspaceName::new("orders").unwrap()].into()),
        load: [(
            KeyspaceName::new("orders").unwrap(),
            [(ShardName::index(3), 70)].into(),
        )]
        .into(),
        held: [(
            KeyspaceName::new("orders").unwrap(),
            [(ShardName::index(3), 7)].into(),
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

fn every_kind() -> Vec<(Key, Record)> {
    let mv = Move {
        id: 4,
        to: owner("n2", 2),
        why: Why::Planned,
    };
    let by = owner("n1", 1);
    let mut all: Vec<(Key, Record)> = [
        Tenancy::FREE,
        Tenancy::Free {
            witnesses: vec![SessionId(1)],
        },
        Tenancy::Held {
            by: by.clone(),
            serving: false,
        },
        Tenancy::Held {
            by: by.clone(),
            serving: true,
        },
        Tenancy::Warming {
            by: by.clone(),
            mv: mv.clone(),
        },
        Tenancy::Freezing {
            by: by.clone(),
            mv: mv.clone(),
        },
        Tenancy::Sealed {
            by,
            mv,
            seal: "at 9".to_owned(),
        },
        Tenancy::Deleted,
    ]
    .into_iter()
    .map(|tenancy| (shard_key(), Record::Shard(Arc::new(shard(tenancy)))))
    .collect();
    let mut full = shard(Tenancy::FREE);
    full.intended = Some(NodeName::new("n3").unwrap());
    full.plan = PlanMark { term: 2, seq: 3 };
    full.failures = vec![Failure {
        node: NodeName::new("n1").unwrap(),
        session: SessionId(1),
        error: "disk".to_owned(),
    }];
    full.served_since = true;
    full.quarantine = Some(Quarantine {
        reason: "three nodes".to_owned(),
    });
    full.trouble = Some("three crashes".to_owned());
    full.meta = Some("{}".to_owned());
    full.wish = Some(NodeName::new("n2").unwrap());
    full.doomed = true;
    full.history = vec![Past {
        epoch: Epoch::first(1),
        from: None,
        to: None,
        why: Why::Free,
        by: SessionId(1),
    }];
    all.push((shard_key(), Record::Shard(Arc::new(full))));
    let mut ended = session();
    ended.ended = Some(Ended {
        why: EndedWhy::Expired,
        by: SessionId(8),
    });
    all.push((
        Key::Session(SessionId(1)),
        Record::Session(Arc::new(session())),
    ));
    all.push((Key::Session(SessionId(1)), Record::Session(Arc::new(ended))));
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
            evict: Some(SessionId(1)),
            unknown: Unknown::new(),
        };
        all.push((
            Key::Node(NodeName::new("n1").unwrap()),
            Record::Node(Arc::new(node)),
        ));
    }
    for kind in [KeyspaceKind::Hashed(64), KeyspaceKind::Named] {
        let mode = KeyspaceMode::Greedy;
        let ks = KeyspaceRecord {
            head: head(),
            kind,
            mode,
            plan: PlanSpec {
                debounce: Some(Duration::from_secs(1)),
                ..PlanSpec::default()
            },
            generation: 2,
            floor: 1,
            removed: false,
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
        freeze: Some("incident 7".to_owned()),
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
            Ok(record.clone()),
            "{key}: {record:?}"
        );
    }
}

#[test]
fn fields_of_later_versions_are_kept() {
    for (key, record) in every_kind() {
        let mut json: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
        json["colour"] = serde_json::json!({"of": ["the", "bike shed"], "n": 1});
        let read = Record::decode(&key, &serde_json::to_vec(&json).unwrap()).unwrap();
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
        assert_eq!(read, Err(Damage::Newer(FORMAT + 1)), "{key}");
    }
}

#[test]
fn a_record_that_makes_no_sense_is_corrupt() {
    let check = |change: serde_json::Value| {
        let mut json: serde_json::Value =
            serde_json::from_slice(&Record::Shard(Arc::new(shard(Tenancy::FREE))).encode())
                .unwrap();
        for (field, value) in change.as_object().unwrap() {
            json[field] = value.clone();
        }
        let read = Record::decode(&shard_key(), &serde_json::to_vec(&json).unwrap());
        assert!(
            matches!(read, Err(Damage::Corrupt(_))),
            "{change}: {read:?}"
        );
    };
    let by = serde_json::json!({"node": "n1", "session": SessionId(1).to_string()});
    let mv = |phase: &str| serde_json::json!({"id": 1, "to": by, "phase": phase, "why": "planned"});
    check(serde_json::json!({"serving": true}));
    check(serde_json::json!({"move": mv("warming")}));
    check(serde_json::json!({"owner": by, "move": mv("warming")}));
    check(serde_json::json!({"owner": by, "serving": true, "move": mv("sealed")}));
    check(serde_json::json!({"owner": by, "deleted": true}));
    check(serde_json::json!({"owner": by, "witnesses": [SessionId(1).to_string()]}));
    check(serde_json::json!({"owner": {"node": "", "session": "x"}}));
    check(serde_json::json!({"epoch": -1}));
    assert!(matches!(
        Record::decode(&shard_key(), b"not json"),
        Err(Damage::Corrupt(_))
    ));
    assert!(matches!(
        Record::decode(&shard_key(), b""),
        Err(Damage::Corrupt(_))
    ));
}
