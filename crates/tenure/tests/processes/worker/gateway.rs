//! The role of a router: takes lines `KEY N` from clients, sends them to owners, and says what became of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure::Settings;
use tenure::router::{Route, Router, SendResult};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;

use super::ledger::{Reply, WIRE, say};
use super::node::told_to_log;
use super::{CLUSTER, KEYSPACE, NOT_STARTED, NOT_STOPPED, Work};

/// Routes until it is told to stop. Returns the exit code.
pub(crate) fn serve(work: Work) -> i32 {
    told_to_log().block_on(live(work))
}

async fn live(work: Work) -> i32 {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    let router = Router::builder(&work.store, CLUSTER)
        .name(&work.node)
        .settings(Settings {
            ttl: work.ttl,
            ..Settings::default()
        })
        .start()
        .await;
    let router = match router {
        Ok(router) => router,
        Err(error) => {
            eprintln!("not started: {error}");
            return NOT_STARTED;
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("a port").port().to_string();
    let (part, whole) = (
        work.site.join(format!("{}.part", work.node)),
        work.site.join(format!("{}.port", work.node)),
    );
    std::fs::write(&part, port).expect("a file");
    std::fs::rename(part, whole).expect("a file");
    let accepting = router.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(carry(accepting.clone(), stream));
        }
    });
    terminate.recv().await;
    match router.stop().await {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("not stopped: {error}");
            NOT_STOPPED
        }
    }
}

/// Connections to nodes, of one client.
type Lines = Arc<Mutex<BTreeMap<String, BufReader<TcpStream>>>>;

/// Carries the requests of one client, one after the other.
async fn carry(router: Router, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let nodes = Lines::default();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((key, n)) = line.split_once(' ') else {
            return;
        };
        let sent = router.send(KEYSPACE, key, line.len() as u64, |route| {
            call(nodes.clone(), route, format!("{key} {n}"))
        });
        let reply = sent.await.unwrap_or_else(|e| Reply::Failed(e.to_string()));
        if say(&mut write, &reply).await.is_err() {
            return;
        }
    }
}

/// Sends one request to a node. If nothing of it can have arrived, the node is none that owns anything.
async fn call(nodes: Lines, route: Route, request: String) -> SendResult<Reply> {
    let nobody = SendResult::NotOwner {
        owner: None,
        epoch: route.epoch,
        rev: route.rev,
    };
    let Some(to) = route.owner.address(WIRE).map(ToString::to_string) else {
        return nobody;
    };
    let mut nodes = nodes.lock().await;
    let mut line = match nodes.remove(&to) {
        Some(line) => line,
        None => match TcpStream::connect(&to).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                BufReader::new(stream)
            }
            Err(_) => return nobody,
        },
    };
    let asked = format!("{} {request}\n", route.epoch.0);
    let mut answer = String::new();
    let heard = async {
        line.get_mut().write_all(asked.as_bytes()).await?;
        line.read_line(&mut answer).await
    };
    match heard.await {
        Ok(read) if read > 0 => {}
        _ => return SendResult::Done(Reply::Failed("no answer".to_owned())),
    }
    nodes.insert(to, line);
    match serde_json::from_str(&answer) {
        Ok(Reply::NotOwner { owner, epoch, rev }) => SendResult::NotOwner { owner, epoch, rev },
        Ok(reply) => SendResult::Done(reply),
        Err(error) => SendResult::Done(Reply::Failed(error.to_string())),
    }
}
