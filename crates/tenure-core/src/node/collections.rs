//! Two collections that fill and empty at nearly every step, kept so that this costs little.

use std::collections::VecDeque;

use crate::keys::Key;
use crate::machine::OpId;

use super::store_requests::Pending;

/// Requests under way, in the order in which they were made; most are answered in that order. What is known of one is large
/// and lies apart, so that the list itself stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ops(VecDeque<(OpId, Box<Pending>)>);

impl Ops {
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

/// Keys in order, each once. Mostly one or two; a list brings thousands, but in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Keys(VecDeque<Key>);

impl Keys {
    pub(super) fn insert(&mut self, key: Key) {
        if self.0.back().is_none_or(|last| *last < key) {
            return self.0.push_back(key);
        }
        if let Err(place) = self.0.binary_search(&key) {
            self.0.insert(place, key);
        }
    }

    pub(super) fn pop_first(&mut self) -> Option<Key> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    #[test]
    fn keys_come_in_order_and_once_however_they_went_in() {
        let mut keys = Keys::default();
        for n in [5, 1, 9, 5, 3, 9, 1, 7] {
            keys.insert(Key::Session(SessionId(n)));
        }
        let all: Vec<_> = std::iter::from_fn(|| keys.pop_first()).collect();
        let expected = [1, 3, 5, 7, 9].map(|n| Key::Session(SessionId(n)));
        assert_eq!(all, expected);
    }
}
