//! The S3 store on real services and on imitations of bad ones.
#![cfg(feature = "s3")]

mod conformance;

use std::time::{Duration, Instant};

use tenure_store::{Put, PutIf, Store, StoreError, Version};

/// No call may take longer, whatever happens to the service.
const BOUND: Duration = Duration::from_secs(7);

/// Writes a key that nobody else writes.
async fn create(store: &dyn Store, key: &str) -> Version {
    match store.put_if(PutIf::create(key, *b"v")).await.unwrap() {
        Put::Won(version) => version,
        Put::Lost => panic!("lost a race against nobody"),
    }
}

/// Waits for an answer, which must come in time.
async fn bounded<T>(call: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let answer = tokio::time::timeout(BOUND, call).await;
    answer.unwrap_or_else(|_| panic!("no answer after {:?}", begun.elapsed()))
}

fn denial<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    match answer {
        Err(StoreError::Denied { why }) => why,
        other => panic!("should be denied, but: {other:?}"),
    }
}
