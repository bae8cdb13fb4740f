//! Of those who race for one key, one wins.

use std::sync::Arc;

use super::{StoreUnderTest, create, won};
use crate::Version;
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Put, PutIf, Store};

const RACERS: usize = 8;
const ROUNDS: usize = 40;

async fn racers(subject: &dyn StoreUnderTest) -> Vec<Arc<dyn Store>> {
    // Half of them share a connection: both kinds of rivals must be kept apart.
    let mut stores = Vec::new();
    while stores.len() < RACERS {
        let store = subject.open().await;
        stores.push(store.clone());
        stores.push(store);
    }
    stores
}

/// Lets all write at once until each has an answer, and gives the winners.
async fn race(stores: &[Arc<dyn Store>], put: impl Fn(usize) -> PutIf) -> Vec<(usize, Version)> {
    let mut racing = tokio::task::JoinSet::new();
    for (n, store) in stores.iter().enumerate() {
        let (store, put) = (store.clone(), put(n));
        racing.spawn(async move { (n, insist(&*store, put).await) });
    }
    let mut winners = Vec::new();
    for (n, answer) in racing.join_all().await {
        if let Put::Won(version) = answer {
            winners.push((n, version));
        }
    }
    winners
}

/// Repeats a write for as long as it is certain that it was not applied.
async fn insist(store: &dyn Store, put: PutIf) -> Put {
    loop {
        match store.put_if(put.clone()).await {
            Ok(answer) => return answer,
            Err(StoreError::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(e) => panic!("a healthy store answers: {e}"),
        }
    }
}

/// Whoever creates a key that many create is alone, and it is its value that stands.
pub async fn racing_creates_have_one_winner(subject: &dyn StoreUnderTest) {
    let stores = racers(subject).await;
    for round in 0..ROUNDS {
        let key = format!("races/create/{round}");
        let winners = race(&stores, |n| PutIf::create(&key, n.to_string().into_bytes())).await;
        let [(winner, version)] = &winners[..] else {
            panic!("one winner, not {winners:?}");
        };
        let entry = stores[0].get(&key).await.unwrap().expect("it was created");
        assert_eq!(&entry.version, version);
        assert_eq!(&*entry.value, winner.to_string().as_bytes());
    }
}

/// Whoever updates a version that many update is alone.
pub async fn racing_updates_have_one_winner(subject: &dyn StoreUnderTest) {
    let stores = racers(subject).await;
    let key = "races/update";
    let mut version = create(&*stores[0], key, b"start").await;
    for _ in 0..ROUNDS {
        let expected = version.clone();
        let put = |n: usize| PutIf::update(key, n.to_string().into_bytes(), expected.clone());
        let winners = race(&stores, put).await;
        let [(winner, won)] = &winners[..] else {
            panic!("one winner, not {winners:?}");
        };
        let entry = stores[0].get(key).await.unwrap().expect("it exists");
        assert_eq!(&entry.version, won);
        assert_eq!(&*entry.value, winner.to_string().as_bytes());
        version = won.clone();
    }
}

/// A counter that many raise by read and compare-and-swap counts every raise.
pub async fn racing_increments_lose_none(subject: &dyn StoreUnderTest) {
    const EACH: u64 = 15;
    let stores = racers(subject).await;
    let key = "races/counter";
    create(&*stores[0], key, b"0").await;
    let mut raising = tokio::task::JoinSet::new();
    for store in stores.iter().cloned() {
        raising.spawn(async move {
            for _ in 0..EACH {
                while !raise(&*store, key).await {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    raising.join_all().await;
    let entry = stores[0].get(key).await.unwrap().expect("it exists");
    let total = EACH * RACERS as u64;
    assert_eq!(&*entry.value, total.to_string().as_bytes());
}

async fn raise(store: &dyn Store, key: &str) -> bool {
    let entry = store.get(key).await.unwrap().expect("it exists");
    let count: u64 = String::from_utf8_lossy(&entry.value).parse().unwrap();
    let next = (count + 1).to_string().into_bytes();
    insist(store, PutIf::update(key, next, entry.version)).await != Put::Lost
}

/// Whoever deletes a version that many delete is alone.
pub async fn racing_deletes_have_one_winner(subject: &dyn StoreUnderTest) {
    let stores = racers(subject).await;
    let key = "races/delete";
    for _ in 0..ROUNDS {
        let version = won(insist(&*stores[0], PutIf::create(key, *b"v")).await);
        let mut racing = tokio::task::JoinSet::new();
        for store in &stores {
            let (store, delete) = (store.clone(), DeleteIf::new(key, version.clone()));
            racing.spawn(async move {
                loop {
                    match store.delete_if(delete.clone()).await {
                        Ok(answer) => return answer,
                        Err(StoreError::Unavailable { .. }) => tokio::task::yield_now().await,
                        Err(e) => panic!("a healthy store answers: {e}"),
                    }
                }
            });
        }
        let answers = racing.join_all().await;
        let winners = answers.iter().filter(|a| **a == Delete::Won).count();
        assert_eq!(winners, 1);
        assert_eq!(stores[1].get(key).await, Ok(None));
    }
}
