//! Entities: started, passivated, interrupted, bounded.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Entities, Entity, Grant, Hashed, Node, Result, TellError};
use tokio::sync::oneshot;

use crate::world::*;

struct Cart {
    key: String,
    journal: Journal,
    items: u32,
}

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
        self.journal.write(format!("passivate {}", self.key));
    }
}

async fn carts(world: &World, journal: &Journal) -> (Node, tenure::store::fault::FaultHandle) {
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
    let (world, journal) = (World::new(), Journal::default());
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
    let (world, journal) = (World::new(), Journal::default());
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
    let (world, journal) = (World::new(), Journal::default());
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
    let (world, journal) = (World::new(), Journal::default());
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
async fn an_entity_that_panics_begins_anew_with_the_next_message() {
    let (world, journal) = (World::new(), Journal::default());
    let (node, _) = carts(&world, &journal).await;
    add(&node, "x").await;
    node.tell::<Cart>("carts", "x", Message::Fail)
        .await
        .unwrap();
    until("dropped", async || journal.count("drop x") == 1).await;
    assert_eq!(add(&node, "x").await, 1);
}
