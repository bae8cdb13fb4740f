//! Requests: let in, let finish, told where to go.

use std::sync::atomic::{AtomicU32, Ordering};

use tenure::{Hashed, Named, RejectReason, Shard};

use crate::test_cluster::*;

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_finishes_before_the_shard_is_given_away() {
    let world = TestCluster::new();
    let handler = Counter::default();
    let (node, _) = world.start("a", &handler).await;
    owns(&node, 4).await;
    let entered = node.enter_shard::<Counter>(&shard(1)).unwrap();
    let work = tokio::spawn(entered.run(async |n, _| {
        tokio::time::sleep(ms(3000)).await;
        *n += 1;
        *n
    }));
    let stopping = tokio::spawn({
        let node = node.clone();
        async move { node.stop().await }
    });
    tokio::time::sleep(ms(500)).await;
    let refused = node.enter_shard::<Counter>(&shard(1)).unwrap_err();
    assert_eq!(refused.reason, RejectReason::NotReady);
    assert!(
        world.record(&shard(1)).await.owner().is_some(),
        "given away while work ran"
    );
    assert_eq!(work.await.unwrap(), Ok(1));
    stopping.await.unwrap().unwrap();
    assert!(world.record(&shard(1)).await.owner().is_none());
    assert_eq!(handler.journal.count("seal 1"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_finish_in_time_is_cut_off() {
    let world = TestCluster::new();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let entered = node.enter_shard::<Counter>(&shard(1)).unwrap();
    let work = tokio::spawn(entered.run(async |_, _| std::future::pending::<()>().await));
    let start = world.clock.now();
    node.stop().await.unwrap();
    let took = world.clock.now().since(start);
    let limit = settings().drain_timeout;
    assert!(took >= limit && took < limit + TTL, "{took:?}");
    work.await.unwrap().unwrap_err();
    assert!(world.record(&shard(1)).await.owner().is_none());
}

#[tokio::test(start_paused = true)]
async fn units_of_work_take_turns_in_a_shard() {
    let world = TestCluster::new();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let work: Vec<_> = (0..20)
        .map(|_| {
            let entered = node.enter_shard::<Counter>(&shard(2)).unwrap();
            tokio::spawn(entered.run(async |n, _| {
                let before = *n;
                tokio::task::yield_now().await;
                *n = before + 1;
            }))
        })
        .collect();
    for work in work {
        work.await.unwrap().unwrap();
    }
    let entered = node.enter_shard::<Counter>(&shard(2)).unwrap();
    assert_eq!(entered.run(async |n, _| *n).await, Ok(20));
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_what_is_not_there_is_told_why() {
    let world = TestCluster::new();
    let (node, _) = world.start("a", &Counter::default()).await;
    owns(&node, 4).await;
    let reason = |keyspace: &str| node.enter::<Counter>(keyspace, "k").unwrap_err().reason;
    assert_eq!(reason("order"), RejectReason::UnknownKeyspace);
    let beyond = "orders/4".parse().unwrap();
    let refused = node.enter_shard::<Counter>(&beyond).unwrap_err();
    assert_eq!(refused.reason, RejectReason::UnknownShard);
    struct Other;
    impl tenure::Handler for Other {
        type State = u64;
        async fn load(&self, _: &Shard) -> tenure::Result<u64> {
            Ok(0)
        }
    }
    let refused = node.enter::<Other>("orders", "k").unwrap_err();
    assert_eq!(refused.reason, RejectReason::OtherHandler);
    let count = |reason: &str| {
        let labels = format!("{{reason=\"{reason}\"}}");
        node.metrics()
            .value("tenure_rejected_requests_total", &labels)
    };
    assert_eq!(count("unknown_keyspace"), 1.0);
    assert_eq!(count("unknown_shard"), 1.0);
    assert_eq!(count("other_handler"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_fails_is_begun_anew_after_its_shard_was_loaded_again() {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let world = TestCluster::new();
    let (builder, _) = world.bare("a");
    let node = started(builder.singleton("job", |grant: tenure::Grant| async move {
        if RUNS.fetch_add(1, Ordering::SeqCst) < 2 {
            return Err("not yet".into());
        }
        grant.cancelled().await;
        Ok(())
    }))
    .await
    .unwrap();
    until("third run", async || RUNS.load(Ordering::SeqCst) == 3).await;
    owns(&node, 1).await;
    node.stop().await.unwrap();
    assert_eq!(RUNS.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_node_takes_part_in_several_keyspaces() {
    let world = TestCluster::new();
    let (builder, _) = world.node("a", &Counter::default());
    let node = started(
        builder
            .keyspace("carts", Hashed(3), Counter::default())
            .keyspace("topics", Named, Counter::default()),
    )
    .await
    .unwrap();
    owns(&node, 7).await;
    node.enter::<Counter>("carts", "k").unwrap();
    let refused = node.enter::<Counter>("topics", "eu.payments").unwrap_err();
    assert_eq!(refused.reason, RejectReason::UnknownShard);
}

/// Says of its shard what it is told to.
#[derive(Clone)]
struct Patient(tokio::sync::watch::Receiver<Option<&'static str>>);

impl tenure::Handler for Patient {
    type State = ();

    async fn load(&self, _shard: &tenure::Shard) -> tenure::Result<()> {
        Ok(())
    }

    async fn run(
        &self,
        grant: tenure::Grant,
        _state: tenure::SharedState<()>,
    ) -> tenure::Result<()> {
        let mut said = self.0.clone();
        while let Ok(Ok(())) = grant.run_until_lost(said.changed()).await {
            grant.report_trouble(*said.borrow_and_update());
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_reports_is_in_the_record_until_it_is_well_or_the_shard_goes_elsewhere() {
    let world = TestCluster::new();
    let (say, said) = tokio::sync::watch::channel(None);
    let (builder, _) = world.bare("a");
    let a = started(builder.keyspace("orders", tenure::Hashed(4), Patient(said)))
        .await
        .unwrap();
    owns(&a, 4).await;
    for word in [Some("crashes"), None, Some("crashes again")] {
        say.send_replace(word);
        let told = until("the record says so", async || {
            world.record(&shard(1)).await.trouble.as_deref() == word
        });
        assert!(told.await < ms(100));
    }
    let (b, _) = world.start("b", &Counter::default()).await;
    a.stop().await.unwrap();
    owns(&b, 4).await;
    for i in 0..4 {
        assert_eq!(world.record(&shard(i)).await.trouble, None);
    }
}
