//! Clusters in which anything happens at any time: after it, every shard that can be served is.

use std::collections::{BTreeMap, BTreeSet};

use super::moving::{pair, phase, plan_one, shard};
use super::test_cluster::{TestCluster, ms};
use crate::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use crate::keys::Key;
use crate::machine::{Action, Event, Request};
use crate::node::NodeConfig;
use crate::record::{AssignedBy, MovePhase, NodeMode, Record, Role};

const MODES: [AssignedBy; 3] = [
    AssignedBy::Leader,
    AssignedBy::Rendezvous,
    AssignedBy::FairShare,
];

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn keyspace(name: &str) -> KeyspaceName {
    KeyspaceName::new(name).unwrap()
}

fn only(served: &[&str]) -> impl FnOnce(&mut NodeConfig) {
    move |config| {
        let like = config.keyspaces[&keyspace("orders")].clone();
        let each = served.iter().map(|name| (keyspace(name), like.clone()));
        config.keyspaces = each.collect();
    }
}

const SHARDS: u32 = 8;
const NAMES: [(&str, &[&str]); 5] = [
    ("a", &["bills"]),
    ("b", &["orders"]),
    ("c", &["orders", "bills"]),
    ("d", &["bills"]),
    ("e", &["orders"]),
];

struct World {
    bench: TestCluster,
    /// Process of each name, if it runs.
    up: BTreeMap<usize, usize>,
    stopping: BTreeMap<usize, (usize, u64)>,
    seed: u64,
    log: Vec<String>,
    t: u64,
}

impl World {
    fn say(&mut self, what: String) {
        self.log.push(format!("{} {what}", self.t));
    }
    fn start(&mut self, n: usize) {
        let (name, served) = NAMES[n];
        let i = self.bench.start_with(name, only(served));
        self.up.insert(n, i);
        self.say(format!("start {name} as {i}"));
    }
    fn run(&mut self, time: u64) {
        self.bench.steps = 0;
        self.bench.run(ms(time));
        self.t += time;
        let over: Vec<_> = self
            .stopping
            .iter()
            .filter(|(i, _)| {
                self.bench.log(**i).contains(&Action::Stopped) || self.bench.refusal(**i).is_some()
            })
            .map(|(i, _)| *i)
            .collect();
        self.up.retain(|_, i| self.bench.refusal(*i).is_none());
        for i in over {
            self.stopping.remove(&i);
        }
        for (i, (n, since)) in &self.stopping {
            assert!(
                self.t - since <= 13_200,
                "seed {}: {} as {i} does not stop\n{}",
                self.seed,
                NAMES[*n].0,
                self.log.join("\n")
            );
        }
    }
}

fn name(n: usize) -> NodeName {
    NodeName::new(NAMES[n].0).unwrap()
}

fn hostile(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mode = MODES[rng.below(3) as usize];
    let mut bench = match rng.below(2) {
        0 => TestCluster::new(SHARDS),
        _ => TestCluster::leased(SHARDS),
    };
    bench.mode(mode);
    bench.catch_up(rng.below(2) == 0);
    let routed = rng.below(2) == 0;
    let lossy = rng.below(2) == 0;
    let mut w = World {
        bench,
        up: BTreeMap::new(),
        stopping: BTreeMap::new(),
        seed,
        log: vec![format!("{mode} routed {routed} lossy {lossy}")],
        t: 0,
    };
    if routed {
        w.bench.start_with("r1", |c| {
            c.role = Role::Router;
            c.keyspaces.clear();
        });
    }
    for n in 0..3 {
        w.start(n);
    }
    w.run(10_000);
    for _ in 0..25 {
        let n = rng.below(5) as usize;
        let key = ShardId::new(
            keyspace(["orders", "bills"][rng.below(2) as usize]),
            ShardName::index(rng.below(u64::from(SHARDS)) as u32),
        );
        let what = rng.below(16);
        match (what, w.up.get(&n).copied()) {
            (0 | 1, None) => w.start(n),
            (2, Some(i)) => {
                w.say(format!("kill {i}"));
                w.bench.kill(i);
                w.up.remove(&n);
                w.stopping.remove(&i);
            }
            (3 | 4, Some(i)) => {
                w.say(format!("stop {i}"));
                w.bench.send(i, Event::Stop);
                w.up.remove(&n);
                w.stopping.insert(i, (n, w.t));
            }
            (5 | 6, _) if w.bench.get(&Key::Node(name(n))).is_some() => {
                let to = rng.below(2) == 0;
                w.say(format!("cordon {} {to}", NAMES[n].0));
                w.bench.edit_node(NAMES[n].0, |node| node.cordoned = to);
            }
            (7, _) if w.bench.get(&Key::Node(name(n))).is_some() => {
                let to = [NodeMode::Draining, NodeMode::Active][rng.below(2) as usize].clone();
                w.say(format!("mode {} {to:?}", NAMES[n].0));
                w.bench.set_mode(NAMES[n].0, to);
            }
            (8, _) if lossy => {
                w.say(format!("delete {key}"));
                w.bench.delete(Key::Shard(key));
            }
            (9, _) if lossy => {
                w.say(format!("corrupt {key}"));
                w.bench.corrupt(Key::Shard(key));
            }
            (10, _) if lossy => {
                w.say(format!("delete keyspace {}", key.keyspace));
                w.bench.delete(Key::Keyspace(key.keyspace));
            }
            (11, _) if lossy => {
                w.say("delete cluster".to_owned());
                w.bench.delete(Key::Cluster);
            }
            (12, Some(i)) => {
                w.say(format!("unknown writes of {i}"));
                w.bench.unknown_renewals.insert(i);
                w.bench.unknown_puts.insert(i);
            }
            (13, _) => {
                w.say("land".to_owned());
                w.bench.land();
            }
            (14, Some(i)) => {
                w.say(format!("slow {i}"));
                w.bench.latency.insert(i, ms(200));
            }
            (15, _) => {
                w.bench.failing_at = match rng.below(2) {
                    0 => BTreeSet::new(),
                    _ => w.up.get(&n).map(|i| (*i, key)).into_iter().collect(),
                }
            }
            _ => {}
        }
        let time = [1, 10, 100, 1000, 3000, 5000][rng.below(6) as usize];
        w.run(time);
    }
    w.say("calm".to_owned());
    w.bench.land();
    w.bench.latency.clear();
    w.bench.failing_at.clear();
    for (n, (of, _)) in NAMES.iter().enumerate() {
        if w.bench.get(&Key::Node(name(n))).is_some() {
            w.bench.edit_node(of, |node| {
                node.cordoned = false;
                node.mode = NodeMode::Active;
            });
        }
    }
    for n in 0..5 {
        if !w.up.contains_key(&n) && w.stopping.values().all(|(m, _)| *m != n) {
            w.start(n);
        }
    }
    for _ in 0..15 {
        w.run(13_000);
    }
    let log = w.log.join("\n");
    let bench = &w.bench;
    assert_eq!(bench.overlaps(), 0, "seed {seed}\n{log}");
    for of in ["orders", "bills"] {
        for n in 0..SHARDS {
            let id = ShardId::new(keyspace(of), ShardName::index(n));
            let by: Vec<_> =
                w.up.values()
                    .filter(|i| bench.served_by(**i).contains(&id))
                    .collect();
            let record = bench.get(&Key::Shard(id.clone()));
            assert_eq!(by.len(), 1, "seed {seed}: {id} {record:?}\n{log}");
        }
    }
    let mut epochs: BTreeMap<&ShardId, (Epoch, SessionId)> = BTreeMap::new();
    for (id, epoch, session) in &bench.claims {
        if let Some((before, by)) = epochs.insert(id, (*epoch, *session)) {
            assert!(
                before < *epoch || (before == *epoch && by == *session),
                "seed {seed}: {id} at {epoch:?} by {session} after {before:?} by {by}\n{log}"
            );
        }
    }
    for record in bench.records() {
        if let Record::Session(s) = record
            && s.is_live()
        {
            assert!(s.held.is_empty(), "seed {seed}: {:?}\n{log}", s.held);
        }
    }
    for i in 0..bench.count() {
        let mut ended = BTreeSet::new();
        for action in bench.log(i) {
            match action {
                Action::Store {
                    request:
                        Request::Put {
                            key: Key::Session(id),
                            record: Record::Session(s),
                            ..
                        },
                    ..
                } => {
                    if s.ended.is_some_and(|e| e.by == *id) {
                        ended.insert(*id);
                    } else {
                        assert!(!ended.contains(id), "seed {seed}: {i} renews\n{log}");
                    }
                }
                Action::Store {
                    request: Request::KeepAlive(id),
                    ..
                } => {
                    assert!(!ended.contains(id), "seed {seed}: {i} keeps alive\n{log}");
                }
                Action::Load { session, .. } | Action::Warm { session, .. } => {
                    assert!(!ended.contains(session), "seed {seed}: {i} loads\n{log}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn whatever_happens_all_is_served_in_the_end() {
    let mut bad = Vec::new();
    for seed in 1..=150 {
        if std::panic::catch_unwind(|| hostile(seed)).is_err() {
            bad.push(seed);
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn a_capacity_has_no_effect_in_a_symmetric_keyspace() {
    let mut bench = TestCluster::new(16);
    bench.mode(AssignedBy::Rendezvous);
    let n1 = bench.start("n1");
    let n2 = bench.start_with("n2", |config| config.capacity = Some(1));
    bench.run(bench.ttl() * 10);
    assert_eq!(bench.serving(n1) + bench.serving(n2), 16);
    bench.kill(n1);
    bench.run(bench.ttl() * 10);
    assert_eq!(bench.serving(n2), 16);
}

#[test]
fn a_cordoned_node_that_comes_back_with_less_room_leaves_the_rest_to_others() {
    let mut bench = TestCluster::new(16);
    bench.mode(AssignedBy::FairShare);
    let n1 = bench.start("n1");
    let n2 = bench.start("n2");
    bench.run(ms(30_000));
    assert_eq!(bench.serving(n1), 8);
    bench.edit_node("n1", |node| node.cordoned = true);
    bench.run(ms(1000));
    bench.kill(n1);
    let last = bench.remembered(n1);
    let again = bench.start_with("n1", |config| {
        config.last_session = last;
        config.capacity = Some(3);
    });
    bench.run(bench.ttl() * 10);
    assert_eq!((bench.serving(again), bench.serving(n2)), (3, 13));
}

#[test]
fn a_target_that_takes_nothing_any_more_does_not_take_what_its_dead_owner_left() {
    for stops in [false, true] {
        let (mut bench, n1, n2) = pair(1, true);
        bench.start("n3");
        bench.run(ms(100));
        let id = shard(0);
        bench.hold_warm.insert(id.clone());
        plan_one(&mut bench, &id, n2, false);
        bench.run(ms(100));
        bench.kill(n1);
        bench.fail_shard_puts.insert(n2);
        match stops {
            true => bench.send(n2, Event::Stop),
            false => bench.edit_node("n2", |node| node.cordoned = true),
        }
        bench.run(bench.ttl() * 2);
        bench.fail_shard_puts.clear();
        bench.run(bench.ttl() * 6);
        let loaded = |a: &&Action| matches!(a, Action::Load { .. });
        assert_eq!(bench.log(n2).iter().filter(loaded).count(), 0, "{stops}");
        assert_eq!(bench.served_by(2).len(), 1, "{stops}");
    }
}

#[test]
fn a_stopping_owner_does_not_wait_for_moves_that_are_to_come() {
    let (mut bench, n1, n2) = pair(1, true);
    bench.start_with("r1", |c| {
        c.role = Role::Router;
        c.keyspaces.clear();
    });
    bench.run(ms(100));
    plan_one(&mut bench, &shard(0), n2, true);
    bench.run(ms(300));
    assert_eq!(phase(&bench, &shard(0)), Some(MovePhase::Warming));
    bench.send(n1, Event::Stop);
    bench.run(ms(200));
    assert_ne!(phase(&bench, &shard(0)), Some(MovePhase::Warming));
    bench.run(bench.ttl());
    assert!(bench.log(n1).contains(&Action::Stopped));
    assert_eq!(bench.serving(n2), 1);
}

#[test]
fn a_router_of_other_keyspaces_is_not_waited_for() {
    let (mut bench, _, n2) = pair(1, true);
    bench.start_with("r1", |c| {
        c.role = Role::Router;
        let like = c.keyspaces[&keyspace("orders")].clone();
        c.keyspaces = BTreeMap::from([(keyspace("bills"), like)]);
    });
    bench.run(ms(100));
    plan_one(&mut bench, &shard(0), n2, true);
    bench.run(ms(50));
    assert!(bench.served_by(n2).contains(&shard(0)));
}

#[test]
fn a_stranger_that_cannot_write_tries_again_after_a_while_and_not_at_once() {
    let mut bench = TestCluster::new(4);
    let a = bench.start_with("a", only(&["bills"]));
    let n1 = bench.start_with("n1", only(&["orders"]));
    bench.run(ms(3000));
    bench.fail_shard_puts.insert(a);
    bench.corrupt(Key::Shard(shard(0)));
    bench.run(bench.ttl() * 3);
    let puts = |action: &&Action| matches!(action, Action::Store { request: Request::Put { key: Key::Shard(id), .. }, .. } if *id == shard(0));
    let tried = bench.log(a).iter().filter(puts).count();
    assert!((2..100).contains(&tried), "{tried}");
    assert_eq!(bench.serving(n1), 3);
    bench.fail_shard_puts.clear();
    bench.run(bench.ttl());
    assert_eq!(bench.serving(n1), 4);
}
