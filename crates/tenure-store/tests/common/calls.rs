//! Calls as the tests of several stores make them.

use std::time::{Duration, Instant};

use tenure_store::{Put, PutIf, Store, StoreError, Version};

/// No call may take longer, whatever happens to the servers.
pub(crate) const BOUND: Duration = Duration::from_secs(7);

/// Writes a key that nobody else writes.
pub(crate) async fn create(store: &dyn Store, key: &str) -> Version {
    match store.put_if(PutIf::create(key, *b"v")).await.unwrap() {
        Put::Won(version) => version,
        Put::Lost => panic!("lost a race against nobody"),
    }
}

/// Waits for an answer, which must come in time.
pub(crate) async fn bounded<T>(call: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = tokio::time::timeout(BOUND, call).await;
    answer.unwrap_or_else(|_| panic!("no answer after {:?}", begun.elapsed()))
}

/// Creates keys, one after another, until one is confirmed. Says how long that took and what came before.
pub(crate) async fn until_it_writes(store: &dyn Store, name: &str) -> (Duration, Vec<StoreError>) {
    let begun = Instant::now();
    let mut failures = Vec::new();
    for n in 0.. {
        let put = PutIf::create(format!("{name}/{n}"), *b"v");
        // As a node does: it asks again rather than wait.
        match tokio::time::timeout(Duration::from_millis(200), store.put_if(put)).await {
            Ok(Ok(answer)) => {
                assert!(
                    matches!(answer, Put::Won(_)),
                    "nobody else writes {name}/{n}"
                );
                break;
            }
            Ok(Err(e)) => failures.push(e),
            Err(_) => failures.push(StoreError::unknown("given up")),
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{failures:?}");
        // A write that fails at once does not yield, and background tasks of the store share the thread.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (begun.elapsed(), failures)
}

pub(crate) fn denial<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Denied { reason }) => reason,
        other => panic!("should be denied, but: {other:?}"),
    }
}
