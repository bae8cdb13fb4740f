//! Requests counted, in the classes that they are paid by.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RequestKind {
    #[default]
    Get,
    Put,
    List,
    Delete,
}

impl RequestKind {
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Get | Self::List => "GET",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// How many requests a store has sent since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Reads of objects.
    pub gets: u64,
    /// Writes.
    pub puts: u64,
    /// Pages of lists.
    pub lists: u64,
    /// Removals.
    pub deletes: u64,
}

impl RequestCounts {
    /// What was added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            gets: self.gets - earlier.gets,
            puts: self.puts - earlier.puts,
            lists: self.lists - earlier.lists,
            deletes: self.deletes - earlier.deletes,
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            gets: self.gets + other.gets,
            puts: self.puts + other.puts,
            lists: self.lists + other.lists,
            deletes: self.deletes + other.deletes,
        }
    }

    /// The dearer class: writes and lists.
    pub fn class_a(self) -> u64 {
        self.puts + self.lists
    }

    /// The cheaper class: reads. Removals are free.
    pub fn class_b(self) -> u64 {
        self.gets
    }
}

#[derive(Debug, Default)]
pub(super) struct RequestCounter([AtomicU64; 4]);

impl RequestCounter {
    pub(super) fn count(&self, kind: RequestKind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> RequestCounts {
        let of = |kind: RequestKind| self.0[kind as usize].load(Ordering::Relaxed);
        RequestCounts {
            gets: of(RequestKind::Get),
            puts: of(RequestKind::Put),
            lists: of(RequestKind::List),
            deletes: of(RequestKind::Delete),
        }
    }
}
