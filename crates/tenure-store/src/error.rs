//! What can go wrong with a store, told by what the caller may do next.

/// A call that did not answer the question. A lost race is not among these: it is a value of the answer.
///
/// Every message names what it is about (a path, a URL, a key) and, where there is one, the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written. Trying again is safe and may help.
    #[error("store unavailable: {reason}")]
    Unavailable {
        /// What was seen.
        reason: String,
    },
    /// It may have been written, now or later. Read back before deciding anything.
    #[error("outcome of a store request unknown: {reason}")]
    Unknown {
        /// What was seen.
        reason: String,
    },
    /// What is stored under this key cannot be read. Other keys are unaffected.
    #[error("key {key:?} is corrupt: {reason}")]
    Corrupt {
        /// The key, or the prefix of a list.
        key: String,
        /// What was seen.
        reason: String,
    },
    /// Nothing was written, and trying again will not help until somebody changes something.
    #[error("{reason}")]
    Denied {
        /// What was refused, and the way out.
        reason: String,
    },
}

impl StoreError {
    /// Nothing was written; try again.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
        }
    }

    /// It may have been written; read back.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::Unknown {
            reason: reason.into(),
        }
    }

    /// What is stored under `key` cannot be read.
    pub fn corrupt(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            key: key.into(),
            reason: reason.into(),
        }
    }

    /// Refused until somebody changes something.
    pub fn denied(reason: impl Into<String>) -> Self {
        Self::Denied {
            reason: reason.into(),
        }
    }

    /// Whether it is certain that the call wrote nothing and never will.
    pub fn wrote_nothing(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}
