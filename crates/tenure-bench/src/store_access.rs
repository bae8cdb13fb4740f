//! Calls of stores with a time limit, and random ids.

use std::time::Duration;

use tenure_store::StoreError;

use crate::exit::Exit;

/// Longest duration of one store call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs a store call; fails after [`CALL_TIMEOUT`].
pub(crate) async fn within<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, Exit> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| {
        Exit::failed(format!(
            "the store did not respond within {}s while {doing}; check that the store is running",
            CALL_TIMEOUT.as_secs()
        ))
    })
}

/// Error of a store that cannot be opened: invalid usage if the store rejects the URL or the credentials.
pub(crate) fn bad_store(error: StoreError) -> Exit {
    match error {
        StoreError::Denied { reason } => Exit::usage(reason),
        other => other.into(),
    }
}

/// Returns 128 random bits.
pub(crate) fn random_id() -> u128 {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0u8; 16];
    // The kernel returns sixteen bytes at once, or none at all without a source of randomness.
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(got, Ok(16), "the system returned no random bytes");
    u128::from_ne_bytes(bytes)
}
