//! Errors of administrative operations.

use tenure_core::ids::BadName;
use tenure_store::StoreError;

use super::CALL_TIMEOUT;

/// Reason why an operation was not done. The variants differ by what the caller does next.
///
/// Messages name the object and, where there is one, the command of the `tenure` program that helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The object does not exist. The message lists the existing ones.
    #[error("{0}")]
    NotFound(String),
    /// An argument is invalid in every state of the cluster.
    #[error("{0}")]
    Invalid(String),
    /// The present state does not allow the operation. The message says how to proceed.
    #[error("{0}")]
    Refused(String),
    /// Concurrent writers were faster. A retry may succeed.
    #[error("{0}; retry")]
    Raced(String),
    /// A wait has ended before its condition was met. The request stays in effect.
    #[error("{0}")]
    TimedOut(String),
    /// A write may have been applied, now or later. The operation may be repeated.
    #[error("whether {key} was {done} is unknown ({reason}); retry, it is safe to repeat")]
    OutcomeUnknown {
        /// Key of the record.
        key: String,
        /// `written` or `deleted`.
        done: &'static str,
        /// Observed cause.
        reason: String,
    },
    /// The store did not respond in time. Nothing was decided by the call.
    #[error(
        "the store did not respond within {}s while {doing}; check that the store is running",
        CALL_TIMEOUT.as_secs()
    )]
    NoResponse {
        /// Activity that needed the response, such as `listing`.
        doing: String,
    },
    /// The store failed or denied a request.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<BadName> for AdminError {
    fn from(error: BadName) -> Self {
        Self::Invalid(error.to_string())
    }
}
