//! List of the store requests in progress.

use std::collections::VecDeque;

use crate::machine::OpId;

use super::store_requests::Pending;

/// Requests in progress, in the order in which they were made. Most replies come in that order.
///
/// A request is large and boxed, so that the list itself stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OutstandingRequests {
    list: VecDeque<(OpId, Box<Pending>)>,
    /// Number of requests so far.
    made: u64,
}

impl OutstandingRequests {
    /// Returns an empty list whose requests are numbered from here on.
    pub(super) fn counting_from(made: u64) -> Self {
        let list = VecDeque::new();
        Self { list, made }
    }

    /// Adds a request and returns its number.
    pub(super) fn push(&mut self, pending: Pending) -> OpId {
        self.made += 1;
        let op = OpId(self.made);
        self.list.push_back((op, Box::new(pending)));
        op
    }

    /// Returns the number of requests so far.
    pub(super) fn made(&self) -> u64 {
        self.made
    }

    pub(super) fn remove(&mut self, op: OpId) -> Option<Pending> {
        let place = self
            .list
            .binary_search_by_key(&op, |(other, _)| *other)
            .ok()?;
        self.list.remove(place).map(|(_, pending)| *pending)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Pending> {
        self.list.iter().map(|(_, pending)| &**pending)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.list.iter_mut().map(|(_, pending)| &mut **pending)
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }
}
