//! List of the store requests in progress.

use std::collections::VecDeque;

use crate::machine::OpId;

use super::store_requests::Pending;

/// Requests in progress, in the order in which they were made. Most replies come in that order.
///
/// A request is large and boxed, so that the list itself stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OutstandingRequests(VecDeque<(OpId, Box<Pending>)>);

impl OutstandingRequests {
    /// Adds a request, whose number is higher than any before it.
    pub(super) fn push(&mut self, op: OpId, pending: Pending) {
        self.0.push_back((op, Box::new(pending)));
    }

    pub(super) fn remove(&mut self, op: OpId) -> Option<Pending> {
        let place = self.0.binary_search_by_key(&op, |(other, _)| *other).ok()?;
        self.0.remove(place).map(|(_, pending)| *pending)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Pending> {
        self.0.iter().map(|(_, pending)| &**pending)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.0.iter_mut().map(|(_, pending)| &mut **pending)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
