//! Entities while their shards move: a move waits for the messages that were accepted, and for nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::router::{Router, SendResult};
use tenure::{
    Entities, Entity, Epoch, Grant, Hashed, Node, NotProcessed, PlanningSettings, RejectReason,
    Result, ShardId, TellError,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::test_cluster::*;

/// State that outlives every node: counts that entities wrote when they were passivated, and who is active now.
#[derive(Default)]
struct Bank {
    saved: Mutex<BTreeMap<String, u64>>,
    active: Mutex<BTreeMap<String, Epoch>>,
    not_processed: AtomicU64,
}

/// Counts in memory and writes the count on passivation alone: every message that is lost and every second activation shows.
struct Account {
    key: String,
    count: u64,
    bank: Arc<Bank>,
}

enum Message {
    Add(Option<oneshot::Sender<u64>>),
    Wait(Duration),
}

impl Entity for Account {
    type Message = Message;
    type Context = Arc<Bank>;

    async fn start(bank: &Arc<Arc<Bank>>, key: &str, grant: &Grant) -> Result<Self> {
        let bank = (**bank).clone();
        let other = bank
            .active
            .lock()
            .unwrap()
            .insert(key.to_owned(), grant.epoch());
        assert_eq!(other, None, "{key} is active twice");
        tokio::time::sleep(Duration::from_micros(300)).await;
        let count = bank.saved.lock().unwrap().get(key).copied().unwrap_or(0);
        Ok(Self {
            key: key.to_owned(),
            count,
            bank,
        })
    }

    async fn receive(&mut self, message: Message, _: &Grant) {
        match message {
            Message::Add(answer) => {
                tokio::time::sleep(Duration::from_micros(200)).await;
                self.count += 1;
                if let Some(answer) = answer {
                    let _ = answer.send(self.count);
                }
            }
            Message::Wait(time) => tokio::time::sleep(time).await,
        }
    }

    async fn passivate(self, grant: &Grant) {
        tokio::time::sleep(Duration::from_micros(300)).await;
        grant
            .check()
            .expect("a passivated entity still has its shard");
        self.bank
            .saved
            .lock()
            .unwrap()
            .insert(self.key.clone(), self.count);
        self.bank.active.lock().unwrap().remove(&self.key);
    }

    fn not_processed(bank: &Arc<Arc<Bank>>, _: &str, _: Message, _: NotProcessed) {
        bank.not_processed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A site whose nodes keep accounts.
struct Branch {
    site: TestCluster<true>,
    bank: Arc<Bank>,
    nodes: Mutex<BTreeMap<String, Node>>,
    idle_after: Duration,
}

impl Branch {
    fn new() -> Arc<Self> {
        Self::at(TestCluster::new(), Duration::from_secs(3600))
    }

    fn at(site: TestCluster<true>, idle_after: Duration) -> Arc<Self> {
        let (bank, nodes) = (Arc::default(), Mutex::default());
        Arc::new(Self {
            site,
            bank,
            nodes,
            idle_after,
        })
    }

    async fn node(&self, name: &str) -> Node {
        let accounts = Entities::<Account>::new(self.bank.clone()).idle_after(self.idle_after);
        // A leader that gives a node that returns its share at once.
        let plan = PlanningSettings {
            rejoin_after: Some(Duration::ZERO),
            cool_down: Some(Duration::ZERO),
            ..PlanningSettings::default()
        };
        let builder = self.site.node_builder(name).plan(plan);
        let node = builder.keyspace("orders", Hashed(SHARDS), accounts);
        let node = node.start().await.unwrap();
        self.nodes
            .lock()
            .unwrap()
            .insert(name.to_owned(), node.clone());
        node
    }

    /// Sends one message through a router; with `answered`, waits for the count after it.
    async fn add(&self, router: &Router, key: &str, answered: bool) -> Option<u64> {
        let sent = router.send("orders", key, 100, async |route| {
            let node = self.nodes.lock().unwrap()[route.owner.address("wire").unwrap()].clone();
            tokio::time::sleep(Duration::from_micros(150)).await;
            let (answer, count) = oneshot::channel();
            let message = Message::Add(answered.then_some(answer));
            match node
                .tell_at::<Account>("orders", key, route.epoch, message)
                .await
            {
                Ok(()) if answered => SendResult::Done(Some(count.await.expect("an answer"))),
                Ok(()) => SendResult::Done(None),
                Err(TellError::NotOwner { reason, .. }) => (*reason).into(),
                Err(other) => panic!("{key}: {other}"),
            }
        });
        sent.await.unwrap_or_else(|e| panic!("{key}: {e}"))
    }

    /// Activates one entity in each shard.
    async fn activate(&self, node: &Node) {
        for i in 0..SHARDS {
            let key = key_of(&format!("orders/{i}").parse().unwrap());
            let (answer, count) = oneshot::channel();
            let message = Message::Add(Some(answer));
            node.tell::<Account>("orders", &key, message).await.unwrap();
            count.await.unwrap();
        }
    }

    /// Clients that send one message after the other; every third waits for its answer, which must be its number.
    fn load(self: &Arc<Self>, routers: &[Router]) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let tasks = (0..20_usize).map(|i| {
            let (branch, over) = (self.clone(), over.clone());
            let router = routers[i % routers.len()].clone();
            tokio::spawn(async move {
                let (key, mut n) = (format!("client-{i}"), 0);
                while !over.load(Ordering::Relaxed) {
                    n += 1;
                    let count = branch.add(&router, &key, n % 3 == 0).await;
                    assert!(
                        count.is_none_or(|count| count == n),
                        "{key}: {count:?} of {n}"
                    );
                    tokio::time::sleep(ms(3 + i as u64 % 7)).await;
                }
                (key, n)
            })
        });
        Load {
            tasks: tasks.collect(),
            over,
        }
    }

    /// Counts of all entities that were written.
    fn saved(&self) -> BTreeMap<String, u64> {
        self.bank.saved.lock().unwrap().clone()
    }
}

struct Load {
    over: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<(String, u64)>>,
}

impl Load {
    async fn end(self) -> BTreeMap<String, u64> {
        self.over.store(true, Ordering::Relaxed);
        let mut accepted = BTreeMap::new();
        for task in self.tasks {
            let (key, n) = task.await.expect("no request failed");
            accepted.insert(key, n);
        }
        accepted
    }
}

/// Nodes join, are drained and restarted one after the other, under load through two routers.
async fn rolling_restart(branch: Arc<Branch>, at_least: u64) {
    let site = &branch.site;
    let a = branch.node("a").await;
    site.owns(&a, 8).await;
    let routers = [site.router("r1").await, site.router("r2").await];
    let load = branch.load(&routers);
    let b = branch.node("b").await;
    site.owns(&b, 4).await;
    // A rolling restart: each node stops and comes back.
    a.stop().await.unwrap();
    site.owns(&b, 8).await;
    let a = branch.node("a").await;
    until("a has some", async || site.settled(&a, &b)).await;
    b.stop().await.unwrap();
    site.owns(&a, 8).await;
    let b = branch.node("b").await;
    until("b has some", async || site.settled(&a, &b)).await;
    site.drain(&b).await;
    site.owns(&b, 0).await;
    site.owns(&a, 8).await;
    let accepted = load.end().await;
    for router in &routers {
        assert_eq!(metric(router, "tenure_router_expired_total"), 0.0);
        router.stop().await.unwrap();
    }
    b.stop().await.unwrap();
    a.stop().await.unwrap();
    assert!(accepted.values().all(|n| *n > at_least), "{accepted:?}");
    assert_eq!(
        branch.saved(),
        accepted,
        "all that was accepted was received, once"
    );
    assert_eq!(branch.bank.not_processed.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn no_message_is_lost_and_no_entity_is_active_twice_while_nodes_join_drain_and_restart() {
    rolling_restart(Branch::new(), 100).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_with_entities_that_are_passivated_all_the_time() {
    rolling_restart(Branch::at(TestCluster::new(), ms(2)), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_while_nodes_restart_over_one_sqlite_file() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("shop.db").display());
    let branch = Branch::at(TestCluster::over(&url).await, Duration::from_secs(60));
    rolling_restart(branch, 20).await;
}

/// Times until a second node has half of the shards, and until the first has stopped.
async fn move_and_stop(branch: Arc<Branch>, active: bool) -> (Duration, Duration) {
    let a = branch.node("a").await;
    branch.site.owns(&a, 8).await;
    if active {
        branch.activate(&a).await;
    }
    let begin = Instant::now();
    let b = branch.node("b").await;
    branch.site.owns(&b, 4).await;
    let moved = begin.elapsed();
    let begin = Instant::now();
    a.stop().await.unwrap();
    let stopped = begin.elapsed();
    branch.site.owns(&b, 8).await;
    let _ = b.stop().await;
    (moved, stopped)
}

#[tokio::test(start_paused = true)]
async fn moves_and_stops_take_at_most_twice_as_long_with_active_entities_as_with_idle_shards() {
    let idle = move_and_stop(Branch::new(), false).await;
    let active = move_and_stop(Branch::new(), true).await;
    println!("moved and stopped after: idle {idle:?}, active {active:?}");
    assert!(active.0 <= idle.0 * 2, "{active:?}, {idle:?}");
    assert!(active.1 <= idle.1 * 2, "{active:?}, {idle:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_and_stops_are_not_delayed_by_active_entities_over_one_sqlite_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut took = Vec::new();
    for active in [false, true] {
        let file = dir.path().join(format!("shop-{active}.db"));
        let url = format!("sqlite:{}", file.display());
        let branch = Branch::at(TestCluster::over(&url).await, Duration::from_secs(3600));
        took.push(move_and_stop(branch, active).await);
    }
    println!(
        "moved and stopped after: idle {:?}, active {:?}",
        took[0], took[1]
    );
    // Twice as long, and a bit for a machine that does other things too.
    let slack = ms(500);
    assert!(took[1].0 <= took[0].0 * 2 + slack, "{took:?}");
    assert!(took[1].1 <= took[0].1 * 2 + slack, "{took:?}");
}

/// The first of node `a`'s shards that moves, with a key of it that is active.
async fn freezing(branch: &Branch) -> (ShardId, String) {
    let shard = branch
        .site
        .moving(tenure_core::record::MovePhase::Freezing)
        .await;
    let key = key_of(&shard);
    (shard, key)
}

#[tokio::test(start_paused = true)]
async fn a_move_waits_for_accepted_messages_and_rejects_new_ones_meanwhile() {
    let branch = Branch::new();
    let a = branch.node("a").await;
    branch.site.owns(&a, 8).await;
    branch.activate(&a).await;
    for i in 0..SHARDS {
        let key = key_of(&format!("orders/{i}").parse().unwrap());
        for message in [
            Message::Wait(ms(4000)),
            Message::Add(None),
            Message::Add(None),
        ] {
            a.tell::<Account>("orders", &key, message).await.unwrap();
        }
    }
    let b = branch.node("b").await;
    let (shard, key) = freezing(&branch).await;
    until("the gate is frozen", async || !a.owned().contains(&shard)).await;
    let refused = a.tell::<Account>("orders", &key, Message::Add(None)).await;
    match refused.unwrap_err() {
        TellError::NotOwner {
            reason,
            message: Message::Add(None),
        } => {
            assert_eq!(reason.reason, RejectReason::NotReady, "{reason}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(branch.saved().get(&key), None, "the entity is still active");
    until("it has moved", async || b.owned().contains(&shard)).await;
    assert_eq!(branch.saved()[&key], 3);
    let (answer, count) = oneshot::channel();
    let next = b.tell::<Account>("orders", &key, Message::Add(Some(answer)));
    next.await.unwrap();
    assert_eq!(count.await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn a_move_whose_mailboxes_take_longer_than_the_drain_timeout_is_aborted_and_nothing_is_lost()
{
    let branch = Branch::new();
    let a = branch.node("a").await;
    branch.site.owns(&a, 8).await;
    let wait = settings().drain_timeout + ms(5000);
    for i in 0..SHARDS {
        let key = key_of(&format!("orders/{i}").parse().unwrap());
        for message in [Message::Wait(wait), Message::Add(None)] {
            a.tell::<Account>("orders", &key, message).await.unwrap();
        }
    }
    let b = branch.node("b").await;
    let (shard, key) = freezing(&branch).await;
    until("the move was aborted", async || a.owned().contains(&shard)).await;
    let (answer, count) = oneshot::channel();
    let next = a.tell::<Account>("orders", &key, Message::Add(Some(answer)));
    next.await.unwrap();
    assert_eq!(count.await, Ok(2), "the entity continued here");
    // The next try finds short mailboxes.
    branch.site.owns(&b, 4).await;
    assert_eq!(branch.bank.not_processed.load(Ordering::Relaxed), 0);
}
