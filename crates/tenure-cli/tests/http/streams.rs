//! Streams: told to end when their shard moves, and gRPC with its trailers (P4).

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{Client, about};
use crate::test_cluster::{QUICK, SOON, TestCluster};

#[tokio::test]
async fn a_stream_of_events_ends_whole_when_its_shard_moves_and_goes_on_at_the_new_owner() {
    let site = TestCluster::new(1);
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    let _second = site.node("n2", &QUICK);
    site.settled(1).await;
    let mut client = Client::new(router.address);
    let answer = client
        .begin(about("GET", "/events", "a", ""))
        .await
        .unwrap();
    assert_eq!(answer.headers()["tenure-node"], "n1");
    let stream = tokio::spawn(async move { answer.into_body().collect().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = std::time::Instant::now();
    first.stop().await;
    // It did not have to be cut: that would have taken the drain timeout of 10 s.
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    let events = stream
        .await
        .unwrap()
        .expect("ends in good order")
        .to_bytes();
    assert!(events.starts_with(b"data: 0\n\n") && events.ends_with(b"\n\n"));
    let mut client = Client::new(router.address);
    let answer = client
        .begin(about("GET", "/events", "a", ""))
        .await
        .unwrap();
    assert_eq!(answer.headers()["tenure-node"], "n2");
}

#[tokio::test]
async fn a_websocket_is_told_to_close_when_its_shard_moves() {
    let site = TestCluster::new(1);
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    let _second = site.node("n2", &QUICK);
    site.settled(1).await;
    let mut stream = TcpStream::connect(router.address).await.unwrap();
    let head = "GET /socket HTTP/1.1\r\nHost: x\r\nX-Key: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !got.windows(4).any(|w| w == [0x81, 2, b'h', b'i']) {
        let mut piece = [0; 1024];
        let n = stream.read(&mut piece).await.unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&piece[..n]);
    }
    assert!(
        got.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&got)
    );
    let stopping = tokio::spawn(async move {
        first.stop().await;
    });
    let close = [0x88, 0x02, 0x03, 0xe9];
    let told = async {
        while !got.ends_with(&close) {
            let mut piece = [0; 1024];
            let n = stream.read(&mut piece).await.unwrap();
            assert!(n > 0, "closed without a word");
            got.extend_from_slice(&piece[..n]);
        }
        // As clients do: the same back, masked, and then it is over.
        stream
            .write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9])
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "{rest:?}");
    };
    tokio::time::timeout(Duration::from_secs(8), told)
        .await
        .expect("told, not cut");
    stopping.await.unwrap();
}

/// A gRPC service in all but name: answers what it was sent, then its status.
async fn grpc_service() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let echo = service_fn(|request: Request<Incoming>| async move {
                    let epoch = request.headers()["tenure-epoch"].clone();
                    let sent = request.into_body().collect().await.unwrap().to_bytes();
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    let frames = [
                        Ok::<_, Infallible>(Frame::data(sent)),
                        Ok(Frame::trailers(trailers)),
                    ];
                    let mut answer = Response::new(StreamBody::new(tokio_stream::iter(frames)));
                    answer
                        .headers_mut()
                        .insert("content-type", "application/grpc".parse().unwrap());
                    answer.headers_mut().insert("x-epoch", epoch);
                    Ok::<_, Infallible>(answer)
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), echo).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn grpc_passes_with_its_trailers_however_large_its_messages() {
    let site = TestCluster::new(2);
    let app = format!("h2c://{}", grpc_service().await);
    let _node = site.gate("n1", &app, &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let stream = TcpStream::connect(router.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for size in [0, 10, 60_000, 1_000_000] {
        let request = Request::post(format!("http://{}/shop.Orders/Put", router.address))
            .header("x-key", "a")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::from(vec![b'x'; size])))
            .unwrap();
        let answer = tokio::time::timeout(SOON, sender.send_request(request)).await;
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(
            answer.headers()["x-epoch"],
            answer.headers()["tenure-epoch"]
        );
        let whole = answer.into_body().collect().await.unwrap();
        let status = whole.trailers().and_then(|t| t.get("grpc-status").cloned());
        assert_eq!(status.unwrap(), "0");
        assert_eq!(whole.to_bytes().len(), size);
    }
}
