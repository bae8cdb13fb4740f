//! Entities: started, passivated, interrupted, bounded.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Entities, Entity, Grant, Hashed, Node, NotProcessed, Result, TellError};
use tokio::sync::oneshot;

use crate::test_cluster::*;

struct Cart {
    key: String,
    journal: Journal,
    items: u32,
}

#[derive(Debug)]
enum Message {
    Add(oneshot::Sender<u32>),
    Wait(Duration),
    Fail,
}

impl Drop for Cart {
    fn drop(&mut self) {
        self.journal.write(format!("drop {}", self.key));
    }
}

impl Entity for Cart {
    type Message = Message;
    type Context = Journal;

    async fn start(context: &Arc<Journal>, key: &str, _: &Grant) -> Result<Self> {
        if key.starts_with("bad") {
            tokio::time::sleep(ms(100)).await;
            return Err("no such cart".into());
        }
        context.write(format!("start {key}"));
        Ok(Self {
            key: key.to_owned(),
            journal: (**context).clone(),
            items: 0,
        })
    }

    async fn receive(&mut self, message: Message, _: &Grant) {
        match message {
            Message::Add(answer) => {
                self.items += 1;
                let _ = answer.send(self.items);
            }
            Message::Wait(time) => tokio::time::sleep(time).await,
            Message::Fail => panic!("asked to"),
        }
    }

    async fn passivate(self, _: &Grant) {
        if self.key.starts_with("slow") {
            tokio::time::sleep(ms(500)).await;
        }
        self.journal.write(format!("passivate {}", self.key));
    }

    fn not_processed(context: &Arc<Journal>, key: &str, message: Message, reason: NotProcessed) {
        drop(message);
        context.write(format!("{key}: {reason}"));
    }
}

async fn carts(
    world: &TestCluster,
    journal: &Journal,
) -> (Node, tenure::store::fault::FaultHandle) {
    let (builder, faults) = world.bare("a");
    let carts = Entities::<Cart>::new(journal.clone())
        .mailbox(2)
        .max_entities(3)
        .idle_after(ms(1000));
    let node = started(builder.keyspace("carts", Hashed(1), carts))
        .await
        .unwrap();
    owns(&node, 1).await;
    (node, faults)
}

async fn add(node: &Node, key: &str) -> u32 {
    let (answer, items) = oneshot::channel();
    node.tell::<Cart>("carts", key, Message::Add(answer))
        .await
        .unwrap();
    items.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_entity_starts_with_its_first_message_and_is_let_go_when_idle() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    assert_eq!(journal.lines(), Vec::<String>::new());
    assert_eq!(add(&node, "x").await, 1);
    assert_eq!(add(&node, "x").await, 2);
    assert_eq!(journal.lines(), ["start x"]);
    tokio::time::sleep(ms(1100)).await;
    assert_eq!(journal.lines(), ["start x", "passivate x", "drop x"]);
    assert_eq!(add(&node, "x").await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_refused_and_given_back() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    let wait = || Message::Wait(ms(60_000));
    // One is being received, two wait.
    for _ in 0..3 {
        node.tell::<Cart>("carts", "x", wait()).await.unwrap();
        tokio::task::yield_now().await;
    }
    let refused = node.tell::<Cart>("carts", "x", wait()).await.unwrap_err();
    assert!(
        matches!(refused, TellError::MailboxFull { limit: 2, .. }),
        "{refused}"
    );
    for key in ["y", "z"] {
        add(&node, key).await;
    }
    let refused = node.tell::<Cart>("carts", "w", wait()).await.unwrap_err();
    assert!(
        matches!(refused, TellError::TooMany { limit: 3, .. }),
        "{refused}"
    );
    let elsewhere = node.tell::<Cart>("cars", "x", wait()).await.unwrap_err();
    assert!(
        matches!(elsewhere, TellError::NotOwner { .. }),
        "{elsewhere}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_entities_finish_their_mailboxes() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    node.tell::<Cart>("carts", "x", Message::Wait(ms(2000)))
        .await
        .unwrap();
    let (answer, items) = oneshot::channel();
    node.tell::<Cart>("carts", "x", Message::Add(answer))
        .await
        .unwrap();
    node.stop().await.unwrap();
    assert_eq!(items.await, Ok(1));
    assert_eq!(journal.lines(), ["start x", "passivate x", "drop x"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_shard_interrupts_its_entities() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, faults) = carts(&world, &journal).await;
    node.tell::<Cart>("carts", "x", Message::Wait(ms(600_000)))
        .await
        .unwrap();
    faults.outage();
    until("dropped", async || journal.count("drop x") == 1).await;
    assert_eq!(journal.count("passivate x"), 0);
    faults.heal();
    owns(&node, 1).await;
    assert_eq!(add(&node, "x").await, 1);
}

#[tokio::test(start_paused = true)]
async fn messages_that_a_stop_does_not_wait_for_are_given_back_as_not_processed() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    let drain = settings().drain_timeout;
    let wait = || Message::Wait(drain * 2);
    node.tell::<Cart>("carts", "x", wait()).await.unwrap();
    tokio::task::yield_now().await;
    let (answer, unanswered) = oneshot::channel();
    let add = node.tell::<Cart>("carts", "x", Message::Add(answer));
    add.await.unwrap();
    let begin = tokio::time::Instant::now();
    node.stop().await.unwrap();
    assert!(begin.elapsed() < drain + TTL, "{:?}", begin.elapsed());
    assert!(unanswered.await.is_err());
    let lines = journal.lines();
    assert_eq!(lines[..2], ["start x", "drop x"]);
    assert!(
        lines[2].starts_with("x: message not processed: the grant for shard carts/0"),
        "{lines:?}"
    );
    assert_eq!(lines.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_lost_shard_are_given_back_as_not_processed() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, faults) = carts(&world, &journal).await;
    for _ in 0..3 {
        let wait = Message::Wait(ms(600_000));
        node.tell::<Cart>("carts", "x", wait).await.unwrap();
        tokio::task::yield_now().await;
    }
    faults.outage();
    until("dropped", async || journal.count("drop x") == 1).await;
    until("given back", async || journal.lines().len() == 4).await;
    for line in &journal.lines()[2..] {
        assert!(
            line.starts_with("x: message not processed: the grant"),
            "{line}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn messages_for_an_entity_that_does_not_start_are_given_back_as_not_processed() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    for _ in 0..2 {
        node.tell::<Cart>("carts", "bad", Message::Fail)
            .await
            .unwrap();
    }
    until("given back", async || journal.lines().len() == 2).await;
    let line = "bad: message not processed: the entity failed to start: no such cart";
    assert_eq!(journal.lines(), [line, line]);
    // The next message tries again.
    node.tell::<Cart>("carts", "bad", Message::Fail)
        .await
        .unwrap();
    until("given back", async || journal.count(line) == 3).await;
    node.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_during_passivation_starts_the_entity_after_it() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    add(&node, "slow").await;
    // Idle after 1000 ms, passivated 500 ms later.
    tokio::time::sleep(ms(1200)).await;
    assert_eq!(journal.lines(), ["start slow"]);
    assert_eq!(add(&node, "slow").await, 1);
    let lines = ["start slow", "passivate slow", "drop slow", "start slow"];
    assert_eq!(journal.lines(), lines);
}

#[tokio::test(start_paused = true)]
async fn messages_behind_one_that_panics_are_received_by_a_new_entity() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    let (answer, items) = oneshot::channel();
    for message in [Message::Fail, Message::Add(answer)] {
        node.tell::<Cart>("carts", "x", message).await.unwrap();
    }
    assert_eq!(items.await, Ok(1));
    assert_eq!(journal.lines(), ["start x", "drop x", "start x"]);
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_panics_begins_anew_with_the_next_message() {
    let (world, journal) = (TestCluster::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    add(&node, "x").await;
    node.tell::<Cart>("carts", "x", Message::Fail)
        .await
        .unwrap();
    until("dropped", async || journal.count("drop x") == 1).await;
    assert_eq!(add(&node, "x").await, 1);
}
