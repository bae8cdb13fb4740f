//! How much is held, and for how long.

use tenure::router::{HoldLimits, HoldReason, RouteError, SendResult};

use crate::test_cluster::*;

/// A keyspace whose shards nobody owns, and a router with narrow limits.
async fn nobody_home() -> (TestCluster<true>, tenure::Router) {
    let site = TestCluster::<true>::new();
    let a = site.node("a").await;
    a.stop().await.unwrap();
    let (settings, limits) = short();
    let builder = site.router_builder("r1").settings(settings).hold(limits);
    let router = builder.start().await.unwrap();
    (site, router)
}

#[tokio::test(start_paused = true)]
async fn what_nobody_owns_is_held_until_somebody_does() {
    let (site, router) = nobody_home().await;
    let sent = site.begin(&router, "k", 1);
    tokio::time::sleep(ms(100)).await;
    assert!(!sent.is_finished());
    site.node("b").await;
    sent.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_is_held_for_as_long_as_its_age_and_no_longer() {
    let (site, router) = nobody_home().await;
    let start = tokio::time::Instant::now();
    let error = site.send(&router, "k", 1).await.unwrap_err();
    let took = start.elapsed();
    assert!(took >= ms(2000) && took < ms(2010), "{took:?}");
    let expected = RouteError::HeldTooLong {
        shard: shard_of("k"),
        age: ms(2000),
        reason: HoldReason::Unowned,
    };
    assert_eq!(error, expected);
    assert_eq!(metric(&router, "tenure_router_expired_total"), 1.0);
    assert_eq!(metric(&router, "tenure_router_held_requests"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn more_than_the_limits_allow_is_refused_at_once() {
    let (site, router) = nobody_home().await;
    let full = |key: &str, what| RouteError::Full {
        shard: shard_of(key),
        what,
        reason: HoldReason::Unowned,
    };
    let keys: Vec<String> = (0..3)
        .map(|i| key_of(&format!("orders/{i}").parse().unwrap()))
        .collect();
    let _first: Vec<_> = (0..4).map(|n| site.begin(&router, &keys[0], n)).collect();
    tokio::time::sleep(ms(1)).await;
    let error = site.send(&router, &keys[0], 5).await.unwrap_err();
    assert_eq!(
        error,
        full(
            &keys[0],
            "the shard already uses half of the request limit, the maximum for one shard"
        )
    );
    let large = router.send("orders", &keys[1], 501, async |_| SendResult::Done(()));
    assert_eq!(
        large.await.unwrap_err(),
        full(
            &keys[1],
            "the shard would use more than half of the byte limit, the maximum for one shard"
        )
    );
    let _rest: Vec<_> = (0..4).map(|n| site.begin(&router, &keys[1], n)).collect();
    tokio::time::sleep(ms(1)).await;
    let error = site.send(&router, &keys[2], 1).await.unwrap_err();
    assert_eq!(error, full(&keys[2], "the request limit is reached"));
    assert_eq!(metric(&router, "tenure_router_overflows_total"), 3.0);
    assert_eq!(metric(&router, "tenure_router_held_requests"), 8.0);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_limited_over_all_shards_too() {
    let (_site, router) = nobody_home().await;
    let send = |i: u32, bytes| {
        let router = router.clone();
        let shard = format!("orders/{i}").parse().unwrap();
        tokio::spawn(async move {
            router
                .send_to(&shard, bytes, async |_| SendResult::Done(()))
                .await
        })
    };
    let _large = [send(0, 500), send(1, 400)];
    tokio::time::sleep(ms(1)).await;
    let refused = send(2, 101).await.unwrap().unwrap_err();
    assert!(
        matches!(
            refused,
            RouteError::Full {
                what: "the byte limit is reached",
                ..
            }
        ),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_its_place_to_the_next() {
    let (site, router) = nobody_home().await;
    let first = site.begin(&router, "k", 1);
    let second = site.begin(&router, "k", 2);
    tokio::time::sleep(ms(10)).await;
    assert_eq!(metric(&router, "tenure_router_held_requests"), 2.0);
    first.abort();
    tokio::time::sleep(ms(10)).await;
    assert_eq!(metric(&router, "tenure_router_held_requests"), 1.0);
    site.node("b").await;
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_router_that_stops_finishes_what_it_holds_and_then_ends_its_session() {
    let (site, router) = nobody_home().await;
    let held = site.begin(&router, "k", 1);
    tokio::time::sleep(ms(10)).await;
    let stopping = tokio::spawn({
        let router = router.clone();
        async move { router.stop().await }
    });
    tokio::time::sleep(ms(10)).await;
    let late = site.send(&router, "k", 2).await.unwrap_err();
    assert_eq!(late, RouteError::Stopping);
    assert!(!stopping.is_finished() && site.session_of("r1").await.1.is_live());
    site.node("b").await;
    held.await.unwrap().unwrap();
    stopping.await.unwrap().unwrap();
    assert!(!site.session_of("r1").await.1.is_live());
    let other = router.send("orders", "another", 1, async |_| SendResult::Done(()));
    assert_eq!(other.await.unwrap_err(), RouteError::Stopping);
}

#[tokio::test(start_paused = true)]
async fn limits_that_do_not_fit_the_settings_are_refused_all_at_once() {
    let site = TestCluster::<true>::new();
    let hold = HoldLimits {
        count: 0,
        bytes: 1,
        age: ms(21_999),
    };
    let mut settings = settings();
    settings.release_batch = 0;
    let builder = site.router_builder("r1").settings(settings).hold(hold);
    let problems = problems(builder.start().await.unwrap_err());
    let starts: Vec<_> = problems
        .iter()
        .map(|p| p.split(':').next().unwrap())
        .collect();
    assert_eq!(starts, ["release_batch", "hold.age", "hold.count"]);
}
