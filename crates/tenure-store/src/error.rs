//! What can go wrong with a store, told by what the caller may do next.

/// A call that did not answer the question. A lost race is not among these: it is a value of the answer.
///
/// Every message names what it is about (a path, a URL, a key) and, where there is one, the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written. Trying again is safe and may help.
    #[error("store unavailable: {why}")]
    Unavailable {
        /// What was seen.
        why: String,
    },
    /// It may have been written, now or later. Read back before deciding anything.
    #[error("outcome unknown: {why}")]
    Unknown {
        /// What was seen.
        why: String,
    },
    /// What is stored under this key cannot be read. Other keys are unaffected.
    #[error("key {key:?} is corrupt: {why}")]
    Corrupt {
        /// The key, or the prefix of a list.
        key: String,
        /// What was seen.
        why: String,
    },
    /// Nothing was written, and trying again will not help until somebody changes something.
    #[error("{why}")]
    Denied {
        /// What was refused, and the way out.
        why: String,
    },
}

impl StoreError {
    /// Nothing was written; try again.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into() }
    }

    /// It may have been written; read back.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into() }
    }

    /// What is stored under `key` cannot be read.
    pub fn corrupt(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Corrupt {
            key: key.into(),
            why: why.into(),
        }
    }

    /// Refused until somebody changes something.
    pub fn denied(why: impl Into<String>) -> Self {
        Self::Denied { why: why.into() }
    }

    /// Whether it is certain that the call wrote nothing and never will.
    pub fn wrote_nothing(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}
