//! Whatever happens to server and network: what was confirmed is there, what is said not to have been written is not, and both
//! the store and its watches go on by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_store::servers::postgres::Postgres;
use tenure_store::servers::proxy::{TcpProxy, TrafficMode};
use tenure_store::{Change, ChangeBatch, Put, PutIf, Store, StoreError, Watch, WatchEnd, open};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{TIMEOUT, until_back};

type Answers = BTreeMap<String, Result<Put, StoreError>>;

/// Writes one new key after the other until it is told to stop, and notes every answer.
struct Writer {
    stop: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<Answers>,
}

impl Writer {
    fn start(store: Arc<dyn Store>) -> Self {
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(async move {
            let mut answers = Answers::new();
            for n in 0.. {
                if stopped.try_recv().is_ok() {
                    break;
                }
                let key = format!("out/{n:06}");
                let answer = store.put_if(PutIf::create(&key, *b"v")).await;
                if answer.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answers.insert(key, answer);
            }
            answers
        });
        Self { stop, task }
    }

    async fn stop(self) -> Answers {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// Reads a watch as it goes, as everybody should: one that is left lying ends with a gap.
struct Reader(mpsc::UnboundedReceiver<Result<ChangeBatch, WatchEnd>>);

impl Reader {
    fn start(mut watch: Watch) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let next = watch.next().await;
                let over = next.is_err();
                if sender.send(next).is_err() || over {
                    return;
                }
            }
        });
        Self(receiver)
    }
}

/// Checks every answer against what the server has, and that the watch has shown it all.
async fn settle(postgres: &Postgres, store: &Arc<dyn Store>, answers: &Answers, mut watch: Reader) {
    until_back(store).await;
    // What was sent before a cut may land for as long as its connection lives.
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure' AND state = 'active'";
    while postgres.sql(gone) != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let listed = store.list("out/").await.unwrap().entries;
    let mut missing: BTreeMap<String, ()> = BTreeMap::new();
    let mut won = 0;
    for (key, answer) in answers {
        let there = listed.iter().find(|entry| entry.key == *key);
        match (answer, there) {
            (Ok(Put::Won(version)), Some(entry)) => {
                won += 1;
                assert_eq!(&entry.version, version);
            }
            (Err(StoreError::Unknown { .. }), _) => {}
            (Err(StoreError::Unavailable { .. }), None) => {}
            other => panic!("{key}: {other:?}"),
        }
        if there.is_some() {
            missing.insert(key.clone(), ());
        }
    }
    assert!(won > 20, "only {won} writes were confirmed");
    while !missing.is_empty() {
        let batch = timeout(TIMEOUT, watch.0.recv()).await;
        let Ok(Some(batch)) = batch else {
            panic!("never shown: {missing:?}");
        };
        for change in batch.expect("the watch goes on").changes {
            assert!(matches!(change, Change::Put(_)));
            missing.remove(change.key());
        }
    }
}

async fn writing(url: &str) -> (Arc<dyn Store>, Reader, Writer) {
    let store = open(url).await.unwrap();
    let from = store.revision().await.unwrap();
    let watch = Reader::start(store.watch("out/", from).await.unwrap());
    let writer = Writer::start(store.dedicated().unwrap());
    let begun = std::time::Instant::now();
    while store.list("out/").await.unwrap().entries.len() < 15 {
        assert!(begun.elapsed() < TIMEOUT, "nothing is written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (store, watch, writer)
}

/// Lets it go on writing until it has clearly got through again.
async fn get_through(store: &Arc<dyn Store>) {
    until_back(store).await;
    let before = store.list("out/").await.unwrap().entries.len();
    let begun = std::time::Instant::now();
    while store.list("out/").await.unwrap().entries.len() < before + 10 {
        assert!(begun.elapsed() < TIMEOUT, "nothing is written any more");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_restarted_keeps_its_word() {
    let mut postgres = Postgres::start();
    let (store, watch, writer) = writing(&postgres.url()).await;
    for _ in 0..2 {
        postgres.kill();
        postgres.restart();
        get_through(&store).await;
    }
    settle(&postgres, &store, &writer.stop().await, watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_ends_are_made_again() {
    let postgres = Postgres::start();
    let (store, watch, writer) = writing(&postgres.url()).await;
    for _ in 0..5 {
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'");
        get_through(&store).await;
    }
    settle(&postgres, &store, &writer.stop().await, watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_for_a_while_keeps_its_word() {
    let postgres = Postgres::start();
    let (store, watch, writer) = writing(&postgres.url()).await;
    for pause in [200, 1500] {
        postgres.server().freeze();
        tokio::time::sleep(Duration::from_millis(pause)).await;
        postgres.server().thaw();
        get_through(&store).await;
    }
    settle(&postgres, &store, &writer.stop().await, watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_and_half_open_connections_are_got_over() {
    let postgres = Postgres::start();
    let proxy = TcpProxy::start(postgres.address());
    let (store, watch, writer) = writing(&postgres.url_at(proxy.port())).await;
    for break_it in [TcpProxy::reset, TcpProxy::half_open, TcpProxy::reset] {
        break_it(&proxy);
        get_through(&store).await;
    }
    settle(&postgres, &store, &writer.stop().await, watch).await;
}

async fn cut(direction: fn(&TcpProxy, TrafficMode)) {
    let postgres = Postgres::start();
    let proxy = TcpProxy::start(postgres.address());
    let (store, watch, writer) = writing(&postgres.url_at(proxy.port())).await;
    for (flow, length) in [
        (TrafficMode::Hold, 200),
        (TrafficMode::Hold, 1500),
        (TrafficMode::Lose, 1500),
    ] {
        direction(&proxy, flow);
        tokio::time::sleep(Duration::from_millis(length)).await;
        proxy.heal();
        get_through(&store).await;
    }
    settle(&postgres, &store, &writer.stop().await, watch).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_cut_both_ways_is_got_over() {
    cut(TcpProxy::both_ways).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_loses_questions_is_got_over() {
    cut(TcpProxy::to_server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_loses_answers_is_got_over() {
    cut(TcpProxy::to_client).await;
}
