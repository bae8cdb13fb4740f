//! The layer in front of a service that embeds a node.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::routing::post;
use axum::{Extension, Router};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use hyper::{Request, Response, StatusCode};
use tenure::{Handler, Hashed, Node, Result, Settings, Shard};
use tenure_core::ids::KeyspaceName;
use tenure_server::{GateLayer, KeyRule, RequestGrant};
use tokio::sync::Notify;
use tower_service::Service;

struct Numbers;

impl Handler for Numbers {
    type State = u64;

    async fn load(&self, _: &Shard) -> Result<u64> {
        Ok(40)
    }
}

async fn node(store: &str, name: &str) -> Node {
    // Streams are cut three quarters of the drain timeout after a move began.
    let settings = Settings {
        drain_timeout: Duration::from_secs(2),
        ..Settings::default()
    };
    let builder = Node::builder(store, "shop").name(name).settings(settings);
    let builder = builder.keyspace("numbers", Hashed(8), Numbers);
    builder.start().await.unwrap()
}

fn rule() -> KeyRule {
    KeyRule::new(KeyspaceName::new("numbers").unwrap(), Vec::new())
}

async fn add(owned: Extension<RequestGrant<Numbers>>) -> String {
    let added = owned.run(async |n, _| {
        *n += 1;
        *n
    });
    added.await.unwrap().to_string()
}

/// An event stream that nobody ends.
async fn events() -> Response<Body> {
    let answer = Response::builder().header("content-type", "text/event-stream");
    answer.body(Body::new(Endless)).unwrap()
}

struct Endless;

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

fn service(node: &Node) -> Router {
    let layer = GateLayer::<Numbers>::new(node.clone(), rule());
    Router::new()
        .route("/", post(add))
        .route("/events", post(events))
        .layer(layer)
}

async fn ask(service: &mut Router, headers: &[(&str, &str)]) -> Response<Body> {
    ask_at("/", service, headers).await
}

async fn ask_at(path: &str, service: &mut Router, headers: &[(&str, &str)]) -> Response<Body> {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    service
        .call(request.body(Body::empty()).unwrap())
        .await
        .unwrap()
}

fn header<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    let value = answer.headers().get(name);
    value.and_then(|v| v.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn only_the_owner_lets_a_request_in_and_says_at_which_epoch() {
    let (first, second) = (
        node("memory:layer", "n1").await,
        node("memory:layer", "n2").await,
    );
    let mut services = [service(&first), service(&second)];
    let answers = [
        ask(&mut services[0], &[("tenure-key", "a")]).await,
        ask(&mut services[1], &[("tenure-key", "a")]).await,
    ];
    let at = answers
        .iter()
        .position(|a| a.status() == StatusCode::OK)
        .unwrap();
    let (good, refused) = (&answers[at], &answers[1 - at]);
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(header(refused, "tenure-refused"), "elsewhere");
    let (shard, epoch) = (header(good, "tenure-shard"), header(good, "tenure-epoch"));
    assert_eq!(
        (
            header(refused, "tenure-shard"),
            header(refused, "tenure-epoch")
        ),
        (shard, epoch)
    );
    let routed = [("tenure-shard", shard), ("tenure-epoch", epoch)];
    assert_eq!(ask(&mut services[at], &routed).await.status(), 200);
    let stale = ask(
        &mut services[at],
        &[("tenure-shard", shard), ("tenure-epoch", "7")],
    )
    .await;
    assert_eq!(header(&stale, "tenure-refused"), "other_epoch");
    assert_eq!(ask(&mut services[at], &[]).await.status(), 400);
    let senseless = [("tenure-shard", "x"), ("tenure-epoch", "7")];
    assert_eq!(ask(&mut services[at], &senseless).await.status(), 400);
    // What was not read yet is in flight.
    drop((answers, stale));
    first.stop().await.unwrap();
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_answer_was_read() {
    let node = node("memory:layer-flight", "n1").await;
    let mut service = service(&node);
    let answer = ask(&mut service, &[("tenure-key", "a")]).await;
    assert_eq!(answer.status(), 200);
    let stopped = Arc::new(Notify::new());
    let stopping = tokio::spawn({
        let (node, stopped) = (node.clone(), stopped.clone());
        async move {
            node.stop().await.unwrap();
            stopped.notify_one();
        }
    });
    let early = tokio::time::timeout(Duration::from_millis(300), stopped.notified()).await;
    assert!(
        early.is_err(),
        "the shard was given up while an answer was on its way"
    );
    let body = axum::body::to_bytes(answer.into_body(), 100).await.unwrap();
    assert_eq!(&body[..], b"41");
    stopping.await.unwrap();
}

#[tokio::test]
async fn event_streams_that_nobody_ends_do_not_prevent_moves() {
    let first = node("memory:layer-streams", "n1").await;
    let mut service = service(&first);
    let reads: Vec<_> = {
        let mut reads = Vec::new();
        for i in 0..8 {
            let shard = format!("numbers/{i}");
            let header = [("tenure-shard", shard.as_str())];
            let answer = ask_at("/events", &mut service, &header).await;
            assert_eq!(answer.status(), 200);
            let read = axum::body::to_bytes(answer.into_body(), 100);
            reads.push(tokio::spawn(read));
        }
        reads
    };
    let second = node("memory:layer-streams", "n2").await;
    let moved = async {
        while second.owned().len() < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let moved = tokio::time::timeout(Duration::from_secs(20), moved).await;
    assert!(moved.is_ok(), "{:?}", second.owned());
    let cut = reads.iter().filter(|read| read.is_finished()).count();
    assert_eq!(cut, 4, "streams of the shards that stayed go on");
    first.stop().await.unwrap();
    for read in reads {
        assert!(
            read.await.unwrap().is_err(),
            "a stream that is cut is not whole"
        );
    }
    second.stop().await.unwrap();
}
