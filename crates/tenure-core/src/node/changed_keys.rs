//! Set of the keys whose known value changed.

use std::collections::VecDeque;

use crate::keys::Key;

/// Sorted keys, each once. A step changes one or two; a list changes thousands, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ChangedKeys(VecDeque<Key>);

impl ChangedKeys {
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
        let mut keys = ChangedKeys::default();
        for n in [5, 1, 9, 5, 3, 9, 1, 7] {
            keys.insert(Key::Session(SessionId(n)));
        }
        let all: Vec<_> = std::iter::from_fn(|| keys.pop_first()).collect();
        let expected = [1, 3, 5, 7, 9].map(|n| Key::Session(SessionId(n)));
        assert_eq!(all, expected);
    }
}
