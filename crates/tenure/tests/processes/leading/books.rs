//! What the records say, read past everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tenure_core::ids::{ClusterName, NodeName, SessionId, ShardId};
use tenure_core::keys::{self, Key};
use tenure_core::record::{LeaderRecord, NodeMode, PlanId, Record, SessionRecord, ShardRecord};
use tenure_store::{Expect, Put, PutIf, Store, Version};

use crate::test_cluster::TestCluster;
use crate::worker::CLUSTER;

/// How long anything may take that is bound to happen.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Every record that matters to a leader.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) leader: Option<LeaderRecord>,
    pub(crate) shards: BTreeMap<ShardId, (Version, ShardRecord)>,
    pub(crate) sessions: BTreeMap<SessionId, SessionRecord>,
    pub(crate) keys: BTreeSet<String>,
}

impl Books {
    /// Who leads, if somebody does.
    pub(crate) fn leader(&self) -> Option<&str> {
        let leader = self.leader.as_ref()?;
        let live = self.sessions.get(&leader.session)?.is_live();
        (live && !leader.resigned).then(|| leader.node.as_str())
    }

    pub(crate) fn term(&self) -> u64 {
        self.leader.as_ref().map_or(0, |l| l.term)
    }

    /// The plans that last spoke of each shard.
    pub(crate) fn plans(&self) -> BTreeMap<ShardId, PlanId> {
        let all = self.shards.iter();
        all.map(|(id, (_, record))| (id.clone(), record.plan))
            .collect()
    }

    /// The highest of them.
    pub(crate) fn last_plan(&self) -> PlanId {
        self.plans().into_values().max().unwrap_or_default()
    }

    /// Shards that name a node as owner, as target of a move, or as the one that should have them.
    pub(crate) fn naming(&self, node: &str) -> Vec<&ShardId> {
        let names = |record: &ShardRecord| {
            let owner = record.owner().is_some_and(|o| o.node.as_str() == node);
            let moving = record.ownership.moving();
            let target = moving.is_some_and(|(mv, _)| mv.to.node.as_str() == node);
            owner || target || record.assigned.as_ref().is_some_and(|n| n.as_str() == node)
        };
        let all = self.shards.iter().filter(|(_, (_, record))| names(record));
        all.map(|(id, _)| id).collect()
    }
}

fn cluster() -> ClusterName {
    ClusterName::new(CLUSTER).expect("a name")
}

/// Runs something against the store that the site is about.
fn with_store<T>(site: &TestCluster, act: impl AsyncFnOnce(&dyn Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let store = tenure_store::open(site.store()).await.expect("the store");
        act(&*store).await
    })
}

/// The records as they are now.
pub(crate) fn books(site: &TestCluster) -> Books {
    let listing = with_store(site, async |store| {
        store.list(&keys::prefix(&cluster())).await.expect("a list")
    });
    let mut books = Books::default();
    for entry in listing.entries {
        let key = Key::parse(&cluster(), &entry.key).expect("a key of ours");
        books.keys.insert(entry.key);
        match (&key, Record::decode(&key, &entry.value).expect("a record")) {
            (_, Record::Leader(record)) => books.leader = Some((*record).clone()),
            (Key::Shard(id), Record::Shard(record)) => {
                let known = (entry.version, (*record).clone());
                books.shards.insert(id.clone(), known);
            }
            (Key::Session(id), Record::Session(record)) => {
                books.sessions.insert(*id, (*record).clone());
            }
            _ => {}
        }
    }
    books
}

/// Waits until the records are as wanted.
#[track_caller]
pub(crate) fn await_books(
    site: &TestCluster,
    what: &str,
    wanted: impl Fn(&Books) -> bool,
) -> Books {
    let start = Instant::now();
    loop {
        let now = books(site);
        if wanted(&now) {
            return now;
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "never: {what}\n{now:#?}\n{}",
            site.scene()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has a node give its shards away, or take part again, as an operator would.
pub(crate) fn drain(site: &TestCluster, node: &str, away: bool) {
    let done = with_store(site, async |store| {
        let key = Key::Node(NodeName::new(node).expect("a name"));
        for _ in 0..20 {
            let path = key.path(&cluster());
            let entry = store.get(&path).await.expect("a read").expect("a node");
            let Ok(Record::Node(record)) = Record::decode(&key, &entry.value) else {
                panic!("{node} cannot be read");
            };
            let mut record = (*record).clone();
            record.head.rev += 1;
            record.mode = match away {
                true => NodeMode::Draining,
                false => NodeMode::Active,
            };
            let put = PutIf {
                key: path,
                value: Record::Node(record.into()).encode().into(),
                expect: Expect::Version(entry.version),
                lease: None,
            };
            if matches!(store.put_if(put).await.expect("a write"), Put::Won(_)) {
                return true;
            }
        }
        false
    });
    assert!(done, "others keep writing {node}");
}

/// Pins a shard, as an operator would.
pub(crate) fn pin(site: &TestCluster, id: &ShardId, to: &str) {
    let done = with_store(site, async |store| {
        let key = Key::Shard(id.clone());
        for _ in 0..20 {
            let path = key.path(&cluster());
            let entry = store.get(&path).await.expect("a read").expect("a shard");
            let Ok(Record::Shard(record)) = Record::decode(&key, &entry.value) else {
                panic!("{id} cannot be read");
            };
            let mut record = (*record).clone();
            record.head.rev += 1;
            record.pin = Some(NodeName::new(to).expect("a name"));
            let put = PutIf {
                key: path,
                value: Record::Shard(record.into()).encode().into(),
                expect: Expect::Version(entry.version),
                lease: None,
            };
            if matches!(store.put_if(put).await.expect("a write"), Put::Won(_)) {
                return true;
            }
        }
        false
    });
    assert!(done, "others keep writing {id}");
}

/// The lines of a worker's log that say this, each as its fields.
pub(crate) fn told(site: &TestCluster, node: &str, message: &str) -> Vec<BTreeMap<String, String>> {
    let said = site.said(node);
    let lines = said.lines().filter(|line| line.contains(message));
    let fields = |line: &str| {
        let pairs = line
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    lines.map(fields).collect()
}

/// A field that is a number.
pub(crate) fn number(line: &BTreeMap<String, String>, field: &str) -> u64 {
    let value = line
        .get(field)
        .unwrap_or_else(|| panic!("no {field} in {line:?}"));
    value
        .parse()
        .unwrap_or_else(|_| panic!("{field} in {line:?}"))
}
