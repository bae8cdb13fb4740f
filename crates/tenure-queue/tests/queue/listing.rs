//! Finding tasks: states, metadata, pages.

use std::collections::BTreeSet;

use tenure_queue::{Filter, Queue, TaskStatus};

use crate::test_cluster::*;

/// All tasks that fit, page by page.
async fn ids(queue: &Queue, filter: &Filter, limit: usize) -> Vec<String> {
    let (mut all, mut from) = (Vec::new(), None::<String>);
    loop {
        let page = queue.list(filter, limit, from.as_deref()).await.unwrap();
        assert!(page.tasks.len() <= limit);
        all.extend(page.tasks.iter().map(|task| task.id.to_string()));
        from = page.next;
        if from.is_none() {
            return all;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_of_any_size_give_every_task_once() {
    let world = TestCluster::new();
    let queue = world.queue(settings(4)).await;
    let mut wanted = BTreeSet::new();
    for n in 0..30 {
        let submit = text("x")
            .key(format!("{n}"))
            .meta("parity", (n % 2).to_string());
        let submit = if n < 10 {
            submit
        } else {
            submit.delay(secs(9999))
        };
        wanted.insert(submitted(&queue, submit).await.to_string());
    }
    for limit in [1, 7, 30, 100] {
        for filter in [Filter::default(), Filter::state(TaskStatus::Ready)] {
            let all = ids(&queue, &filter, limit).await;
            assert_eq!(all.len(), 30, "limit {limit}: {all:?}");
            assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), wanted);
        }
    }
    let mut odd = Filter::default();
    odd.metadata.insert("parity".to_owned(), "1".to_owned());
    assert_eq!(ids(&queue, &odd, 4).await.len(), 15);
    assert!(
        ids(&queue, &Filter::state(TaskStatus::Dead), 4)
            .await
            .is_empty()
    );
    let e = queue.list(&odd, 4, Some("elsewhere")).await.unwrap_err();
    assert!(e.to_string().contains("elsewhere"), "{e}");
}

#[tokio::test(start_paused = true)]
async fn tasks_are_found_by_their_state_and_their_age() {
    let world = TestCluster::new();
    let queue = world.queue(settings(2)).await;
    let worker = world
        .worker(&queue, "w")
        .start(Hand::default())
        .await
        .unwrap();
    let done = submitted(&queue, text("x")).await;
    let dead = submitted(&queue, text("doom")).await;
    ended(&queue, &done).await;
    ended(&queue, &dead).await;
    tokio::time::sleep(secs(5)).await;
    let border = queue.now().await.unwrap();
    let running = submitted(&queue, text("wait")).await;
    let waiting = submitted(&queue, text("y").delay(secs(900))).await;
    let cancelled = submitted(&queue, text("z").delay(secs(900))).await;
    queue.cancel(&cancelled, None).await.unwrap();
    until("it is running", async || worker.running() == 1).await;
    // Just claimed, and after a while: it stands in different indexes.
    for _ in 0..2 {
        for (is, id) in [
            (TaskStatus::Done, &done),
            (TaskStatus::Dead, &dead),
            (TaskStatus::Running, &running),
            (TaskStatus::Ready, &waiting),
            (TaskStatus::Cancelled, &cancelled),
        ] {
            assert_eq!(
                ids(&queue, &Filter::state(is), 10).await,
                [id.as_str()],
                "{is}"
            );
        }
        tokio::time::sleep(secs(3)).await;
    }
    let old = Filter {
        created_before: Some(border),
        ..Filter::default()
    };
    let new = Filter {
        created_from: Some(border),
        ..Filter::default()
    };
    assert_eq!(ids(&queue, &old, 10).await.len(), 2);
    assert_eq!(ids(&queue, &new, 10).await.len(), 3);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn one_idempotency_key_is_one_task_however_many_submit_it_at_once() {
    let world = TestCluster::new();
    let mut submitters = tokio::task::JoinSet::new();
    for n in 0..10 {
        let queue = world.queue(settings(2)).await;
        let payload = if n == 3 { "other" } else { "same" };
        submitters.spawn(async move { queue.submit(text(payload).key("order 7")).await.unwrap() });
    }
    let answers = submitters.join_all().await;
    assert_eq!(answers.iter().filter(|a| a.created).count(), 1);
    assert!(answers.iter().all(|a| a.id == answers[0].id));
    assert!(
        answers.iter().any(|a| a.differs),
        "one of them carries something else"
    );
    let queue = world.queue(settings(2)).await;
    let hand = Hand::default();
    let worker = world.worker(&queue, "w").start(hand.clone()).await.unwrap();
    ended(&queue, &answers[0].id).await;
    // Also when it is done already.
    let again = queue.submit(text("same").key("order 7")).await.unwrap();
    assert!(!again.created);
    tokio::time::sleep(secs(100)).await;
    assert_eq!(hand.0.lines().len(), 1);
    assert_eq!(count(&queue, "duplicates_total"), 1);
    let stats = queue.stats().await.unwrap();
    assert_eq!(
        (stats.ready, stats.done),
        (0, 1),
        "and no entry is left over"
    );
    worker.stop().await.unwrap();
}
