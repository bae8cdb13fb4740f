//! How a command fails: what it says, and the exit code that scripts go by.

use std::fmt;

use tenure::AdminError;
use tenure_store::StoreError;

/// A command that did not do what was asked. Shown once, on stderr, by `main`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit code: 1 for "it is not so" or "refused", 2 for bad usage or input.
    pub(crate) code: u8,
    /// What is wrong with which input, and the way out.
    pub(crate) message: String,
}

impl Exit {
    /// The thing asked for is not so, or the operation was refused.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
        }
    }

    /// What was typed or configured cannot be right.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: 2,
            message: message.into(),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<StoreError> for Exit {
    fn from(error: StoreError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<AdminError> for Exit {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Invalid(message) => Self::usage(message),
            AdminError::Raced(what) => Self::failed(format!("{what}; run the command again")),
            AdminError::OutcomeUnknown { key, done, reason } => Self::failed(format!(
                "whether {key} was {done} is unknown ({reason}); run the command again, it is safe to repeat"
            )),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<tenure_core::ids::BadName> for Exit {
    fn from(error: tenure_core::ids::BadName) -> Self {
        Self::usage(error.to_string())
    }
}
