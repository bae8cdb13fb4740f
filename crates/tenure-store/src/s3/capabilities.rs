//! What the service does in its own way.

use std::sync::atomic::{AtomicBool, Ordering};

/// What is found out at the start.
#[derive(Debug)]
pub(super) struct ServiceCapabilities {
    /// ETags match with quotes around them, as HTTP has it.
    quoted: AtomicBool,
    /// A removal obeys its condition.
    removes_on_condition: AtomicBool,
    /// Objects are listed in the order of the bytes of their names, as S3 has it.
    ordered: AtomicBool,
    /// Writers were raced: whether what was found out can be relied on.
    raced: AtomicBool,
}

impl Default for ServiceCapabilities {
    fn default() -> Self {
        Self {
            quoted: AtomicBool::new(true),
            removes_on_condition: AtomicBool::new(false),
            ordered: AtomicBool::new(false),
            raced: AtomicBool::new(false),
        }
    }
}

impl ServiceCapabilities {
    /// An ETag as it is written in a condition.
    pub(super) fn written(&self, etag: &str) -> String {
        match self.is_quoted() {
            true => format!("\"{etag}\""),
            false => etag.to_owned(),
        }
    }

    pub(super) fn is_quoted(&self) -> bool {
        self.quoted.load(Ordering::Relaxed)
    }

    pub(super) fn set_quoted(&self, quoted: bool) {
        self.quoted.store(quoted, Ordering::Relaxed);
    }

    pub(super) fn removes_on_condition(&self) -> bool {
        self.removes_on_condition.load(Ordering::Relaxed)
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.ordered.load(Ordering::Relaxed)
    }

    pub(super) fn was_raced(&self) -> bool {
        self.raced.load(Ordering::Relaxed)
    }

    pub(super) fn found(&self, removes_on_condition: bool, ordered: bool) {
        self.removes_on_condition
            .store(removes_on_condition, Ordering::Relaxed);
        self.ordered.store(ordered, Ordering::Relaxed);
        self.raced.store(true, Ordering::Relaxed);
    }
}
