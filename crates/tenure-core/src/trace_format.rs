//! What a running node writes down of itself: every step of its machine, one JSON line each.
//!
//! Everything that a machine is told and everything that it answers passes through one place, its driver. A trace is that,
//! word for word: with the settings at its head it is enough to run the same machine again and to see that it does the
//! same. Records stand in it as they stand in the store. A file may hold the traces of several processes, one after the
//! other; one that ends without an [`TraceLine::End`] is of a process that was killed, or still runs.

use serde::{Deserialize, Serialize};

use crate::ids::ClusterName;
use crate::machine::{Action, Event};
use crate::node::NodeConfig;
use crate::time::Time;

/// The format that this version writes, and the only one that it reads: traces are for looking at soon.
pub const FORMAT: u32 = 1;

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceLine {
    /// A process begins.
    Begin(Box<TraceBegin>),
    /// Its machine was told something and answered.
    Step(TraceStep),
    /// From here on nothing was written down although the process went on.
    Gap(TraceGap),
    /// The process has ended; its gates are closed.
    End(TraceEnd),
}

/// Who writes a trace, and what its machine was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceBegin {
    /// The format of the lines that follow.
    pub format: u32,
    /// The version of the library that wrote them.
    pub version: String,
    /// The commit that it was built from, if the build was told.
    pub commit: Option<String>,
    /// The cluster.
    pub cluster: ClusterName,
    /// The process, by the number that its system gave it.
    pub process: u32,
    /// Names the clock: times of traces with the same name may be compared.
    pub clock: Option<String>,
    /// What the machine was made from.
    pub config: NodeConfig,
}

/// One step of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// The how-manieth step of its process it was, from one.
    pub n: u64,
    /// When, in nanoseconds of the node's clock.
    pub t: Time,
    /// What the machine was told.
    pub event: Event,
    /// What it answered, in order.
    pub actions: Vec<Action>,
    /// When it wanted to be woken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<Time>,
}

/// Why nothing more was written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceGap {
    /// The first step that is missing.
    pub n: u64,
    /// What kept the writer from it.
    pub reason: String,
}

/// The end of a process in which all gates are closed, in good order or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEnd {
    /// When.
    pub t: Time,
}

impl TraceLine {
    /// The line as text, without its end.
    pub fn to_json(&self) -> String {
        // Strings, integers and records, which are trees of the same: there is nothing in it that JSON cannot hold.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a line; what is wrong with it if it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            begin: FormatOf,
        }
        #[derive(Deserialize)]
        struct FormatOf {
            format: u32,
        }
        if text.starts_with("{\"begin\"")
            && let Ok(Format { begin }) = serde_json::from_str(text)
            && begin.format != FORMAT
        {
            return Err(format!(
                "the trace has format {}, but this version reads only format {FORMAT}; use the version that wrote it",
                begin.format
            ));
        }
        serde_json::from_str(text).map_err(|e| format!("not a trace line: {e}"))
    }
}

/// 128 bits as 32 hexadecimal digits, as sessions are written.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::ids::SessionId;

    pub(crate) fn serialize<S: Serializer>(bits: &u128, s: S) -> Result<S::Ok, S::Error> {
        SessionId(*bits).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        SessionId::deserialize(d).map(|id| id.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::ids::{
        KeyspaceName, NodeName, Nonce, Revision, SessionId, ShardId, ShardName, Version,
    };
    use crate::keys::Key;
    use crate::machine::{
        ActivationId, Close, Connection, Found, OpId, Reply, Request, StoreFailure, StoreListing,
    };
    use crate::node::KeyspaceConfig;
    use crate::record::{AssignedBy, Head, KeyspaceKind, Record, RecordError, Role, ShardRecord};
    use crate::rules::Rules;
    use crate::settings::Settings;
    use crate::telemetry::NodeEvent;

    fn shard() -> ShardId {
        let keyspace = KeyspaceName::new("eu/orders").unwrap();
        ShardId::new(keyspace, ShardName::new("7/x").unwrap())
    }

    fn begin() -> TraceLine {
        let keyspace = KeyspaceConfig {
            kind: KeyspaceKind::Hashed(8),
            mode: AssignedBy::FairShare,
            plan: Default::default(),
            catches_up: true,
        };
        let settings = Settings {
            ttl: Duration::from_nanos(1_500_000_001),
            ..Settings::default()
        };
        let config = NodeConfig {
            name: NodeName::new("a").unwrap(),
            role: Role::Node,
            addresses: BTreeMap::from([("http".to_owned(), "127.0.0.1:80".to_owned())]),
            zone: Some("z".to_owned()),
            weight: 50,
            labels: BTreeMap::new(),
            capacity: None,
            version: "1".to_owned(),
            keyspaces: BTreeMap::from([(shard().keyspace, keyspace)]),
            timing: settings.check(Duration::ZERO).unwrap(),
            rules: Rules::sound(),
            policy: None,
            timekeeper: crate::node::Timekeeper::Nodes,
            boot_id: None,
            entropy: u128::MAX - 5,
            last_session: Some(SessionId(3)),
            rejoin: Default::default(),
            join: false,
            ephemeral: false,
        };
        TraceLine::Begin(Box::new(TraceBegin {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            commit: None,
            cluster: ClusterName::new("shop").unwrap(),
            process: 42,
            clock: Some("boot".to_owned()),
            config,
        }))
    }

    fn step(event: Event, actions: Vec<Action>) -> TraceLine {
        TraceLine::Step(TraceStep {
            n: 1,
            t: Time(5),
            event,
            actions,
            wake: Some(Time::NEVER),
        })
    }

    #[test]
    fn every_kind_of_line_reads_back_as_it_was() {
        let nonce = Nonce {
            writer: SessionId(9),
            n: 4,
        };
        let record = Record::Shard(ShardRecord::new(Head::first(nonce), 1).into());
        let entries = vec![
            (
                Key::Shard(shard()),
                Found {
                    version: Version::Text("12".into()),
                    record: Ok(record.clone()),
                },
            ),
            (
                Key::Leader,
                Found {
                    version: Version::Number(12),
                    record: Err(RecordError::Newer(9)),
                },
            ),
        ];
        let listed = StoreListing {
            entries: entries.clone(),
            revision: Revision(u64::MAX),
            store: "s".to_owned(),
        };
        let reply = |reply| Event::Reply { op: OpId(1), reply };
        let put = Request::Put {
            key: Key::Shard(shard()),
            expect: crate::machine::Expect::Version(Version::Number(1)),
            record,
        };
        let store = Action::Store {
            op: OpId(2),
            connection: Connection::Renewal,
            request: put,
        };
        let close = Action::Close {
            activation: ActivationId(1),
            how: Close::Cancel,
        };
        let renewed = NodeEvent::Renewed {
            took: Duration::from_nanos(1),
            left: Duration::MAX,
        };
        let reason = "no answer".to_owned();
        let changes = entries.into_iter().map(|(k, f)| (k, Some(f)));
        let changes = changes.chain([(Key::Cluster, None)]).collect();
        let upto = Revision(3);
        for line in [
            begin(),
            step(Event::Tick, vec![store, close, Action::Report(renewed)]),
            step(reply(Reply::Listed(listed)), vec![Action::Started]),
            step(reply(Reply::Failed(StoreFailure::Unknown(reason))), vec![]),
            step(
                Event::Changed { changes, upto },
                vec![Action::Open(ActivationId(3))],
            ),
            TraceLine::Gap(TraceGap {
                n: 3,
                reason: "the disk is full".to_owned(),
            }),
            TraceLine::End(TraceEnd { t: Time(8) }),
        ] {
            let text = line.to_json();
            assert!(!text.contains('\n'), "{text}");
            assert_eq!(TraceLine::parse(&text), Ok(line), "{text}");
        }
    }

    #[test]
    fn another_format_is_named_even_if_nothing_else_of_it_can_be_read() {
        let said = TraceLine::parse("{\"begin\":{\"format\":99,\"other\":[]}}").unwrap_err();
        assert!(said.contains("trace has format 99"), "{said}");
        assert!(TraceLine::parse("{\"step\":{\"n\":1").is_err());
        assert!(TraceLine::parse("").is_err());
    }
}
