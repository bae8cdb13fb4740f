//! What clients send that is old, odd or ill-meant.

use std::net::SocketAddr;

use crate::client::{Client, about, raw};
use crate::test_cluster::{Proc, QUICK, TestCluster};

async fn one() -> (TestCluster, Proc, Proc) {
    let site = TestCluster::new(4);
    let node = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    (site, node, router)
}

/// How many answers there are in what came back.
fn answers(text: &str) -> usize {
    text.matches("HTTP/1.").count()
}

/// Answered like this, once: nothing passes, and nothing that follows is read.
async fn refused(at: SocketAddr, request: &str, status: &str) {
    let text = raw(at, request.as_bytes()).await;
    let fits = text.starts_with(status) && answers(&text) == 1;
    assert!(fits, "{request:?} got {text:?}");
}

#[tokio::test]
async fn old_clients_and_pipelines_are_served_in_order() {
    let (_site, _node, router) = one().await;
    let at = router.address;
    let text = raw(
        at,
        b"POST /count HTTP/1.0\r\nX-Key: a\r\nContent-Length: 1\r\n\r\n1",
    )
    .await;
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
    assert!(text.ends_with("\r\n\r\n1"), "{text}");
    let one = |n: u32| {
        format!("POST /count HTTP/1.1\r\nHost: x\r\nX-Key: p\r\nContent-Length: 1\r\n\r\n{n}")
    };
    let text = raw(at, (one(1) + &one(2) + &one(3)).as_bytes()).await;
    assert_eq!(answers(&text), 3, "{text}");
    let counts: Vec<_> = text.split("\r\n\r\n").skip(1).map(|t| &t[..1]).collect();
    assert_eq!(counts, ["1", "2", "3"], "{text}");
    let absolute = "GET http://shop.test/headers HTTP/1.1\r\nHost: other\r\nX-Key: a\r\n\r\n";
    let text = raw(at, absolute.as_bytes()).await;
    assert!(text.contains("host: shop.test\n"), "{text}");
}

#[tokio::test]
async fn requests_that_two_servers_could_read_in_two_ways_do_not_pass() {
    let (site, node, router) = one().await;
    let start = "POST /count HTTP/1.1\r\nHost: x\r\nX-Key: a\r\n";
    for at in [router.address, node.address] {
        for bad in [
            "Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
            "Content-Length: 1, 2\r\n\r\n12",
            "Content-Length: +1\r\n\r\n1",
            "Content-Length : 1\r\n\r\n1",
            "Transfer-Encoding: identity\r\n\r\n1",
            "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "X-Fold: a\r\n b\r\nContent-Length: 1\r\n\r\n1",
            "X-Bad\u{1}: a\r\n\r\n",
            "Host: y\r\nContent-Length: 1\r\n\r\n1",
        ] {
            refused(at, &format!("{start}{bad}"), "HTTP/1.1 400").await;
        }
        refused(at, "GET / HTTP/1.1\r\nX-Key: a\r\n\r\n", "HTTP/1.1 400").await;
        refused(
            at,
            "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
            "HTTP/1.1 405",
        )
        .await;
    }
    assert_eq!(
        site.journal().len(),
        0,
        "none of them reached the application"
    );
    // With both lengths the chunks count, the other length goes no further, and the connection ends there.
    for both in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
    ] {
        let hidden = "GET /headers HTTP/1.1\r\nHost: x\r\nX-Key: a\r\n\r\n";
        let text = raw(
            router.address,
            format!("{start}{both}1\r\n7\r\n0\r\n\r\n{hidden}").as_bytes(),
        )
        .await;
        assert_eq!(answers(&text), 1, "{text}");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    assert!(site.journal().iter().all(|line| line.3 == "7"));
}

#[tokio::test]
async fn heads_beyond_the_limits_are_refused_and_others_go_on() {
    let (_site, _node, router) = one().await;
    let start = "GET /headers HTTP/1.1\r\nHost: x\r\nX-Key: a\r\n";
    let long = format!("{start}X-Long: {}\r\n\r\n", "x".repeat(100_000));
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    for request in [long, format!("{start}{many}\r\n")] {
        let text = raw(router.address, request.as_bytes()).await;
        // What was not read may take the answer with it when the connection is closed.
        assert!(
            text.starts_with("HTTP/1.1 431") || text.is_empty(),
            "{text}"
        );
    }
    let mut client = Client::new(router.address);
    client.ask("GET", "/headers", "a", "").await.with(200);
}

#[tokio::test]
async fn nobody_outside_speaks_for_router_or_gate() {
    let (_site, node, router) = one().await;
    let mut client = Client::new(router.address);
    let mut request = about("GET", "/headers", "a", "");
    for (name, value) in [
        ("tenure-shard", "orders/3"),
        ("tenure-epoch", "99"),
        ("tenure-key", "other"),
        (
            "connection",
            "keep-alive, tenure-epoch, x-forwarded-for, x-drop",
        ),
        ("x-drop", "1"),
        ("x-forwarded-for", "10.1.1.1"),
        ("te", "gzip"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
    ] {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let got = client.send(request).await.unwrap().with(200);
    let seen = got.text();
    let epoch = got.header("tenure-epoch");
    assert_ne!(epoch, "99");
    for wanted in [
        &format!("tenure-epoch: {epoch}"),
        &format!("tenure-shard: {}", got.header("tenure-shard")),
        "tenure-key: a",
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "x-forwarded-for: 127.0.0.1",
    ] {
        assert!(
            seen.lines().any(|line| line == wanted),
            "{wanted} is not in\n{seen}"
        );
    }
    for gone in ["x-drop", "te:", "connection:", "10.1.1.1"] {
        assert!(!seen.contains(gone), "{gone} is in\n{seen}");
    }
    // An application's own 421 is an answer: it is passed on, once, without what would make a gate's refusal of it.
    let got = client.ask("GET", "/refuses", "a", "").await.with(421);
    assert_eq!(
        (got.text().as_str(), got.header("tenure-refused")),
        ("mine", "")
    );
    // At the gate an epoch that is not the shard's is refused before the application sees anything.
    let mut request = about("POST", "/count", "a", "1");
    for (name, value) in [("tenure-shard", "orders/3"), ("tenure-epoch", "99")] {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let mut gate = Client::new(node.address);
    let got = gate.send(request).await.unwrap().with(421);
    assert_eq!(got.header("tenure-refused"), "other_epoch");
    assert_ne!(got.header("tenure-epoch"), "99");
    let mut request = about("POST", "/count", "a", "1");
    request
        .headers_mut()
        .append("tenure-epoch", "x".parse().unwrap());
    gate.send(request).await.unwrap().with(400);
}
