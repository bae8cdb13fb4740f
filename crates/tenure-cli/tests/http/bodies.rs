//! Bodies that are large or slow, and clients that go away.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Client, about, read_out};
use crate::load::check_journal;
use crate::test_cluster::{QUICK, TestCluster, until};

const LARGE: usize = 3 << 20;

#[tokio::test]
async fn a_large_body_waits_with_its_client_until_an_owner_lets_it_in() {
    let site = TestCluster::new(2);
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    let mut client = Client::new(router.address);
    let big = "x".repeat(LARGE);
    let got = client.ask("POST", "/sink", "a", &big).await.with(200);
    assert_eq!(got.text(), LARGE.to_string());
    first.stop().await;
    // Nobody owns anything now.
    let at = router.address;
    let chunked = tokio::spawn(async move {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head =
            "POST /sink HTTP/1.1\r\nHost: x\r\nX-Key: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..LARGE / 4096 {
            let piece = [b"1000\r\n".as_slice(), &[b'y'; 4096], b"\r\n"].concat();
            stream.write_all(&piece).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            text += &read_out(&mut stream).await;
        }
        text
    });
    let held = tokio::spawn(async move { client.ask("POST", "/sink", "b", &big).await });
    held_now(&router, 2.0).await;
    let _second = site.node("n2", &QUICK);
    assert_eq!(held.await.unwrap().with(200).text(), LARGE.to_string());
    let text = chunked.await.unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200") && text.ends_with(&LARGE.to_string()),
        "{text}"
    );
    // Answers may be as large, and their readers as slow as they like.
    let mut client = Client::new(router.address);
    let got = client
        .ask("GET", "/big?bytes=5000000", "a", "")
        .await
        .with(200);
    assert_eq!(got.body.len(), 5_000_000);
}

async fn held_now(router: &crate::test_cluster::Proc, count: f64) {
    let limit = std::time::Instant::now() + crate::test_cluster::SOON;
    while router.metric("tenure_router_held_requests ").await != count {
        assert!(std::time::Instant::now() < limit, "never {count} held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_slow_body_is_waited_for_and_one_that_stops_is_not() {
    let site = TestCluster::new(2);
    let _node = site.node("n1", &QUICK);
    let router = site.router("r1", &["--response-timeout", "700ms"]);
    site.settled(1).await;
    for (length, pieces) in [(8, 8), (100_008, 8)] {
        let mut stream = TcpStream::connect(router.address).await.unwrap();
        let head = format!(
            "POST /sink HTTP/1.1\r\nHost: x\r\nX-Key: a\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b'x'; length / pieces];
        for _ in 0..pieces {
            tokio::time::sleep(Duration::from_millis(if length > 8 { 200 } else { 20 })).await;
            stream.write_all(&piece).await.unwrap();
        }
        let text = read_out(&mut stream).await;
        assert!(text.ends_with(&length.to_string()), "{text}");
    }
    for (length, status) in [("8", "HTTP/1.1 408"), ("100000", "HTTP/1.1 504")] {
        let mut stream = TcpStream::connect(router.address).await.unwrap();
        let head = format!(
            "POST /sink HTTP/1.1\r\nHost: x\r\nX-Key: a\r\nContent-Length: {length}\r\n\r\nxx"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = read_out(&mut stream).await;
        assert!(text.starts_with(status), "{text}");
    }
}

/// P3: what was let in is in flight until its application is done, whatever its client does.
#[tokio::test]
async fn a_client_that_goes_away_does_not_let_its_request_be_overtaken_by_a_new_owner() {
    let site = TestCluster::new(1);
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    let _second = site.node("n2", &QUICK);
    let owners = site.settled(1).await;
    let owned_by_first = owners["0"] == "n1";
    assert!(owned_by_first, "{owners:?}");
    let mut hasty = Client::new(router.address);
    let request = about("POST", "/slow?ms=1500", "a", "1");
    let gone = tokio::time::timeout(Duration::from_millis(500), hasty.send(request)).await;
    assert!(gone.is_err(), "it was to take longer");
    drop(hasty);
    until_abandoned(&router).await;
    first.signal(rustix::process::Signal::TERM);
    let mut gate = Client::new(first.address);
    let limit = std::time::Instant::now() + crate::test_cluster::SOON;
    while gate.ask("GET", "/count", "a", "").await.status != 421 {
        assert!(std::time::Instant::now() < limit, "the gate never closed");
    }
    let mut client = Client::new(router.address);
    let got = client.ask("POST", "/count", "a", "2").await.with(200);
    assert_eq!(
        (got.text().as_str(), got.header("tenure-node")),
        ("2", "n2")
    );
    assert!(first.ended().await.success());
    check_journal(&site, &[]);
    assert_eq!(site.journal().len(), 2);
}

async fn until_abandoned(router: &crate::test_cluster::Proc) {
    let name = "tenure_http_abandoned_total{role=\"router\"}";
    let limit = std::time::Instant::now() + crate::test_cluster::SOON;
    while router.metric(name).await < 1.0 {
        assert!(
            std::time::Instant::now() < limit,
            "the router never noticed"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn requests_held_for_one_key_are_answered_in_the_order_in_which_they_came() {
    let site = TestCluster::new(1);
    let mut first = site.node("n1", &QUICK);
    let router = site.router("r1", &[]);
    site.settled(1).await;
    first.stop().await;
    let mut tasks = Vec::new();
    for n in 1..=12u32 {
        let at = router.address;
        tasks.push(tokio::spawn(async move {
            let mut client = Client::new(at);
            client
                .ask("POST", "/count", "a", &n.to_string())
                .await
                .with(200)
        }));
        held_now(&router, f64::from(n)).await;
    }
    let _second = site.node("n2", &QUICK);
    for (n, task) in (1..).zip(tasks) {
        assert_eq!(task.await.unwrap().text(), n.to_string());
    }
    until("all are written", || {
        (site.journal().len() == 12).then_some(())
    })
    .await;
    check_journal(&site, &[]);
}
