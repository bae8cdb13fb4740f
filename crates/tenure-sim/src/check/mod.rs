//! The checkers: they see what processes do and what the store holds, with the omniscient clock, and share no code with
//! what they check.

pub(crate) mod acknowledged_writes;
pub(crate) mod epochs;
pub(crate) mod failure_isolation;
pub(crate) mod gates;
pub(crate) mod membership;
pub(crate) mod modes;
pub(crate) mod move_refusals;
pub(crate) mod order;
pub(crate) mod plans;
pub(crate) mod recovery;
pub(crate) mod requests;
pub(crate) mod store_replaced;

use std::fmt;

use serde::Serialize;

use crate::clock::{Instant, MS, SEC};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise, by its number.
    pub promise: &'static str,
    /// When, in omniscient nanoseconds.
    pub at: Instant,
    /// What was seen.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(promise: &'static str, at: Instant, what: String) -> Self {
        Self { promise, at, what }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, us) = (self.at / SEC, self.at % SEC / (MS / 1000));
        write!(f, "{} broken at {s}.{us:06}: {}", self.promise, self.what)
    }
}

/// Result of a check: nothing, or the promise that was broken.
pub(crate) type CheckResult = Result<(), Violation>;
