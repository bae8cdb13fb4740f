//! The queue's machine under random faults, with every store call a step of its own, and a checker that sees every write.
//!
//! Producers, workers, owners and operators here do what the library does, in the same order, on the same values ([`apply`], [`IndexEntry`]),
//! over a store that delays, refuses and forgets to answer, while processes die. Mutants do one thing wrong each: a checker
//! that does not see them would not be worth having.
//!
//! [`apply`]: tenure_queue::transitions::apply
//! [`IndexEntry`]: tenure_queue::keys::IndexEntry

mod actors;
mod check;
mod operator;
mod store;

use std::sync::Arc;
use std::time::Duration;

use actors::{Mutant, Process};
use check::Checker;
use store::SimStore;

const TASKS: u64 = 12;

/// Runs one seed. Gives what was broken.
async fn run(seed: u64, mutant: Option<Mutant>) -> Result<(), String> {
    let checker = Arc::new(Checker::default());
    let store = Arc::new(SimStore::new(seed, checker.clone()));
    let mut producer = Process::new("producer", &store, mutant).produce(TASKS);
    let mut workers: Vec<_> = (0..3)
        .map(|n| Process::new(format!("w{n}"), &store, mutant).work())
        .collect();
    let mut operator = Process::new("operator", &store, mutant).operate(TASKS, 8);
    // A minute of faults, in which processes die and come back.
    for round in 0..30u64 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if store.chance(300) {
            let victim = store.below(workers.len() as u64) as usize;
            workers[victim].abort();
            let name = format!("w{victim}.{round}");
            workers[victim] = Process::new(name, &store, mutant).work();
        }
        if store.chance(150) && !producer.is_finished() {
            producer.abort();
            producer = Process::new("producer", &store, mutant).produce(TASKS);
        }
        if operator.is_finished() {
            operator = Process::new("operator", &store, mutant).operate(TASKS, 8);
        }
        checker.broken()?;
    }
    store.heal();
    if producer.is_finished() {
        producer = Process::new("producer", &store, mutant).produce(TASKS);
    }
    for _ in 0..180 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        checker.broken()?;
        if producer.is_finished() && operator.is_finished() && store.is_at_rest() {
            break;
        }
    }
    let over = producer.is_finished();
    for worker in workers {
        worker.abort();
    }
    if !over {
        return Err("the producer never came to an end".to_owned());
    }
    checker.finally(&store, TASKS)
}

#[tokio::test(start_paused = true)]
async fn no_task_is_lost_none_is_finished_twice_and_attempts_are_counted() {
    for seed in 0..200 {
        if let Err(broken) = run(seed, None).await {
            panic!("seed {seed}: {broken}");
        }
    }
}

/// Every mutant is seen within some seeds.
async fn is_seen(mutant: Mutant) {
    for seed in 0..80 {
        if run(seed, Some(mutant)).await.is_err() {
            return;
        }
    }
    panic!("nobody sees {mutant:?}");
}

#[tokio::test(start_paused = true)]
async fn a_writer_without_a_condition_is_seen() {
    is_seen(Mutant::BlindWrites).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_finishes_under_anothers_claim_is_seen() {
    is_seen(Mutant::AnyClaim).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_takes_claims_back_too_early_is_seen() {
    is_seen(Mutant::ExpiresEarly).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_removes_the_old_entry_first_is_seen() {
    is_seen(Mutant::OldEntryFirst).await;
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_writes_the_task_first_and_its_entry_after_is_seen() {
    is_seen(Mutant::TaskBeforeEntry).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_an_unknown_claim_for_won_is_seen() {
    is_seen(Mutant::BelievesUnknown).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_leaves_late_retries_behind_is_seen() {
    is_seen(Mutant::LeavesLateRetries).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_removes_young_entries_without_a_task_is_seen() {
    is_seen(Mutant::NoGrace).await;
}
