//! The role of a node whose keyspace consists of entities. An entity keeps the messages that it received in memory and writes
//! them to the journal when it is passivated, so that a lost message or an entity that is active twice leaves a gap there.
//!
//! A request is one line, `EPOCH KEY N`. The answer `Done` means that the message is in the mailbox; for every third message it
//! means that the entity has received it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::router::SendResult;
use tenure::{Entities, Entity, Epoch, Grant, Hashed, Node, NotProcessed, Result, TellError};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{RwLock, oneshot};

use super::journal::{Journal, Written};
use super::ledger::{Reply, host, say};
use super::node::{Worker, told_to_log};
use super::{KEYSPACE, Work};

/// Time that an entity takes for a message: about as long as a client waits between two, so that mailboxes are seldom empty.
const RECEIVE: Duration = Duration::from_millis(4);

/// Longer than any test: an entity ends because its shard moves or its node stops.
const IDLE: Duration = Duration::from_secs(3600);

type Shared = Arc<Mutex<Journal>>;

/// Runs a node until SIGTERM. Returns the exit code.
pub(crate) fn serve(work: Work) -> i32 {
    told_to_log().block_on(live(work))
}

async fn live(work: Work) -> i32 {
    let journal = Journal::open(&work.site).expect("the journal");
    let journal: Shared = Arc::new(Mutex::new(journal));
    let worker = Worker::open(&work);
    let entities = Entities::<Account>::new(journal).idle_after(IDLE);
    let shards = work.shards;
    // Held for reading from a request to its answer: the process ends when no answer is outstanding.
    let answering = Arc::new(RwLock::new(()));
    let busy = answering.clone();
    let code = host(
        &work,
        &worker,
        |builder| builder.keyspace(KEYSPACE, Hashed(shards), entities),
        move |node, stream| answer(node, stream, busy.clone()),
    )
    .await;
    let _ = answering.write().await;
    code
}

/// Answers one router until it closes the connection.
async fn answer(node: Node, stream: TcpStream, busy: Arc<RwLock<()>>) {
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let _answering = busy.read().await;
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (epoch, key, n) = (word(), word(), word());
        let (Ok(epoch), Ok(n)) = (epoch.parse(), n.parse::<u64>()) else {
            return;
        };
        let (received, receipt) = oneshot::channel();
        let message = Message {
            n,
            received: n.is_multiple_of(3).then_some(received),
        };
        let told = node.tell_at::<Account>(KEYSPACE, &key, Epoch(epoch), message);
        let reply = match told.await {
            Ok(()) if n.is_multiple_of(3) => match receipt.await {
                Ok(()) => Reply::Done,
                Err(_) => Reply::Failed("not received".to_owned()),
            },
            Ok(()) => Reply::Done,
            Err(TellError::NotOwner { reason, .. }) => match SendResult::<()>::from(*reason) {
                SendResult::NotOwner { owner, epoch, rev } => Reply::NotOwner { owner, epoch, rev },
                SendResult::Done(()) => return,
            },
            Err(other) => Reply::Failed(other.to_string()),
        };
        if say(&mut write, &reply).await.is_err() {
            return;
        }
    }
}

struct Message {
    n: u64,
    received: Option<oneshot::Sender<()>>,
}

struct Account {
    journal: Shared,
    key: String,
    last: u64,
    unwritten: Vec<u64>,
}

/// Runs a statement on the journal.
fn with<T>(
    journal: &Shared,
    act: impl FnOnce(&mut Journal) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    tokio::task::block_in_place(|| act(&mut journal.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl Entity for Account {
    type Message = Message;
    type Context = Shared;

    async fn start(journal: &Arc<Shared>, key: &str, grant: &Grant) -> Result<Self> {
        let journal = (**journal).clone();
        let last = with(&journal, |journal| {
            journal.fence(&grant.shard().to_string(), grant.epoch().0)?;
            journal.last(key)
        })?;
        Ok(Self {
            journal,
            key: key.to_owned(),
            last,
            unwritten: Vec::new(),
        })
    }

    async fn receive(&mut self, message: Message, _: &Grant) {
        tokio::time::sleep(RECEIVE).await;
        if message.n != self.last + 1 {
            // The test scans the log for this word.
            eprintln!("LOST: {} got {} after {}", self.key, message.n, self.last);
        }
        self.last = message.n;
        self.unwritten.push(message.n);
        if let Some(received) = message.received {
            let _ = received.send(());
        }
    }

    async fn passivate(self, grant: &Grant) {
        for n in &self.unwritten {
            let written = Written {
                shard: grant.shard().to_string(),
                epoch: grant.epoch().0.cast_signed(),
                key: self.key.clone(),
                n: *n,
            };
            let added = with(&self.journal, |journal| journal.add(&written));
            if !matches!(added, Ok(Some(_))) {
                eprintln!("LOST: {written:?} was not written: {added:?}");
            }
        }
    }

    fn not_processed(_: &Arc<Shared>, key: &str, message: Message, reason: NotProcessed) {
        eprintln!("LOST: {key} {} was not processed: {reason}", message.n);
    }
}
