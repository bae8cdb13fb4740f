//! Why a node does not start, or did not stop in good order.

use tenure_core::machine::Refusal;
use tenure_store::StoreError;

use crate::data_dir::DataDirError;
use crate::trace_writer::TraceError;

/// Why a node could not start. It owns nothing.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was given to the builder does not fit together; every problem is listed.
    #[error("invalid node configuration: {}", .0.join("; "))]
    Invalid(Vec<String>),
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] StoreError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The cluster does not take the node.
    #[error("the cluster rejected the node: {0}")]
    Refused(Refusal),
    /// The system gives no thread for the driver.
    #[error("the node's thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The driver ended before the node had started.
    #[error("the node failed before it had started; see the log for the reason")]
    Gone,
}

/// The node ended, but not in good order: its session is left to expire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The cluster no longer took the node.
    #[error("the node had ended before the stop was requested: {0}")]
    Refused(Refusal),
    /// The driver is gone.
    #[error("the node failed while it was stopping; see the log for the reason")]
    Gone,
}
