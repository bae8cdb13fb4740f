//! The role of a node that keeps a journal for those who send it writes, and loads while another node serves.
//!
//! A request is one line, `EPOCH KEY N`; the answer is one line of JSON. It is written before the shard can be given away: in
//! flight ends when the last byte of the answer is out.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tenure::router::SendResult;
use tenure::{
    Builder, Epoch, Grant, Handler, Hashed, Node, Result, Seal, SessionId, Settings, Shard,
    SharedState,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use super::journal::{Journal, Written};
use super::node::{Worker, set_up, told_to_log};
use super::{CLUSTER, KEYSPACE, NOT_STARTED, NOT_STOPPED, Work};

/// What kind of address the nodes are reached by.
pub(crate) const WIRE: &str = "wire";

/// What a node, and a router, answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    NotOwner {
        owner: Option<SessionId>,
        epoch: Epoch,
        rev: u64,
    },
    Failed(String),
}

/// Runs a node until it is told to stop. Returns the exit code.
pub(crate) fn serve(work: Work) -> i32 {
    told_to_log().block_on(live(work))
}

async fn live(work: Work) -> i32 {
    let journal = Journal::open(&work.site).expect("the journal");
    let ledger = Ledger {
        journal: Arc::new(Mutex::new(journal)),
        worker: Worker::open(&work),
        work: Arc::new(work.clone()),
    };
    let (worker, handler, shards) = (ledger.worker.clone(), ledger.clone(), work.shards);
    host(
        &work,
        &worker,
        |builder| builder.keyspace(KEYSPACE, Hashed(shards), handler),
        move |node, stream| answer(node, ledger.clone(), stream),
    )
    .await
}

/// Runs a node with a listener until SIGTERM, and one task of `answer` for each connection. Returns the exit code.
pub(super) async fn host<F: Future<Output = ()> + Send + 'static>(
    work: &Work,
    worker: &Worker,
    with_keyspace: impl FnOnce(Builder) -> Builder,
    answer: impl Fn(Node, TcpStream) -> F + Send + 'static,
) -> i32 {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("a port").to_string();
    let trace = format!("{}-{}.jsonl", work.node, std::process::id());
    let builder = set_up(work, Node::builder(&work.store, CLUSTER))
        .name(&work.node)
        .address(WIRE, address)
        .data_dir(&work.data_dir)
        .trace(work.site.join("traces").join(trace))
        .settings(Settings {
            ttl: work.ttl,
            ..Settings::default()
        });
    let start = with_keyspace(builder).start();
    let started = tokio::select! {
        started = start => started,
        _ = terminate.recv() => return 0,
    };
    let node = match started {
        Ok(node) => node,
        Err(error) => {
            eprintln!("not started: {error}");
            return NOT_STARTED;
        }
    };
    worker.tell_started(&node);
    let accepting = node.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(accepting.clone(), stream));
        }
    });
    tokio::select! {
        _ = terminate.recv() => {}
        ended = node.ended() => eprintln!("ended by itself: {ended:?}"),
    }
    match node.stop().await {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("not stopped: {error}");
            NOT_STOPPED
        }
    }
}

/// Answers one router until it hangs up.
async fn answer(node: Node, ledger: Ledger, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default().to_owned();
        let (epoch, key, n) = (word(), word(), word());
        let (Ok(epoch), Ok(n)) = (epoch.parse(), n.parse()) else {
            return;
        };
        let entered = match node.enter_at::<Ledger>(KEYSPACE, &key, Epoch(epoch)) {
            Ok(entered) => entered,
            Err(refused) => {
                let SendResult::NotOwner { owner, epoch, rev } = SendResult::<()>::from(refused)
                else {
                    return;
                };
                let refusal = Reply::NotOwner { owner, epoch, rev };
                if say(&mut write, &refusal).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let done = entered.run(async |book: &mut Book, grant: &Grant| {
            let reply = ledger.write(book, grant, key, n);
            say(&mut write, &reply).await
        });
        match done.await {
            Ok(Ok(())) => {}
            // The lease went in the middle: whoever asked hears nothing more, and does not know.
            _ => return,
        }
    }
}

/// Writes one line of an answer.
pub(crate) async fn say(
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    reply: &Reply,
) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    to.write_all(&line).await
}

/// What a node has in memory of a shard.
pub(crate) struct Book {
    whole: Grant,
    /// How many writes it knows of. Must be all that there are, at every write (P3).
    len: u64,
}

#[derive(Clone)]
pub(crate) struct Ledger {
    journal: Arc<Mutex<Journal>>,
    worker: Worker,
    work: Arc<Work>,
}

impl Ledger {
    fn journal<T>(
        &self,
        act: impl FnOnce(&mut Journal) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        tokio::task::block_in_place(|| {
            act(&mut self.journal.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    fn write(&self, book: &mut Book, grant: &Grant, key: String, n: u64) -> Reply {
        let shard = grant.shard().to_string();
        let epoch = grant.epoch().0.cast_signed();
        let written = Written {
            shard: shard.clone(),
            epoch,
            key,
            n,
        };
        match self.journal(|journal| journal.add(&written)) {
            Ok(Some(len)) if len == book.len + 1 => {
                book.len = len;
                Reply::Done
            }
            Ok(Some(len)) => {
                // Said aloud: the test looks for it.
                eprintln!(
                    "LOST: {shard} has {len} writes and its owner knew of {}",
                    book.len
                );
                Reply::Failed("its owner did not know all".to_owned())
            }
            Ok(None) => Reply::Failed("fenced".to_owned()),
            Err(error) => Reply::Failed(error.to_string()),
        }
    }
}

impl Handler for Ledger {
    type State = Book;
    const CATCHES_UP: bool = true;

    async fn load(&self, shard: &Shard) -> Result<Book> {
        let id = shard.id().to_string();
        if !shard.is_owned() {
            // Only read: another node serves it. What is missed meanwhile is for `catch_up`.
            let len = self.journal(|journal| journal.len(&id))?;
            tokio::time::sleep(self.work.own.load_time).await;
            let whole = shard.grant().clone();
            return Ok(Book { whole, len });
        }
        self.journal(|journal| journal.fence(&id, shard.epoch().0))?;
        tokio::time::sleep(self.work.own.load_time / 10).await;
        self.worker.loaded(&id);
        Ok(Book {
            whole: shard.grant().clone(),
            len: self.journal(|journal| journal.len(&id))?,
        })
    }

    async fn catch_up(&self, shard: &Shard, book: &mut Book, from: &Seal) -> Result<()> {
        let id = shard.id().to_string();
        book.len = self.journal(|journal| journal.len(&id))?;
        if from.as_str() != book.len.to_string() {
            eprintln!(
                "LOST: {id} was sealed at {} and has {}",
                from.as_str(),
                book.len
            );
        }
        self.worker.loaded(&id);
        Ok(())
    }

    async fn seal(&self, _: &Shard, book: &mut Book) -> Result<Seal> {
        tokio::time::sleep(self.work.own.seal_time).await;
        Ok(Seal::new(book.len.to_string()))
    }

    async fn run(&self, grant: Grant, state: SharedState<Book>) -> Result<()> {
        let whole = state.lock().await?.whole.clone();
        self.worker.beat_on(grant, whole).await
    }
}
