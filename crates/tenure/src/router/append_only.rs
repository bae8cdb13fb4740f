//! A list that only grows, and a map on top of it: readers never wait, and what they were given stays where it is.

use std::sync::OnceLock;

use tenure_core::hash::key_hash;

const LEVELS: usize = 26;
/// The first level has so many places, and each further one twice as many as the one before.
const FIRST: usize = 64;

/// A list that only grows. One writer; any number of readers.
pub(super) struct AppendOnlyList<T> {
    levels: [OnceLock<Box<[OnceLock<T>]>>; LEVELS],
}

impl<T> Default for AppendOnlyList<T> {
    fn default() -> Self {
        Self {
            levels: [const { OnceLock::new() }; LEVELS],
        }
    }
}

impl<T> AppendOnlyList<T> {
    /// What stands at this place.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        let (level, offset) = place(at);
        self.levels.get(level)?.get()?.get(offset)?.get()
    }

    /// Puts a value at a place that has none yet.
    pub(super) fn put(&self, at: usize, value: T) {
        let (level, offset) = place(at);
        let Some(level_cell) = self.levels.get(level) else {
            return;
        };
        let places =
            level_cell.get_or_init(|| (0..FIRST << level).map(|_| OnceLock::new()).collect());
        let _ = places[offset].set(value);
    }
}

/// The level of a place, and where it is within it.
#[inline]
fn place(at: usize) -> (usize, usize) {
    let level = (at / FIRST + 1).ilog2() as usize;
    (level, at - FIRST * ((1 << level) - 1))
}

/// Numbers by name. One writer; any number of readers.
#[derive(Default)]
pub(super) struct NameIndex {
    /// Each level has a bucket for every name that it is meant to hold; names go to the newest.
    levels: AppendOnlyList<Box<[OnceLock<Box<Link>>]>>,
}

struct Link {
    name: Box<str>,
    number: usize,
    next: OnceLock<Box<Link>>,
}

impl NameIndex {
    /// The number of a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let hash = key_hash(name.as_bytes());
        let mut level = 0;
        while let Some(buckets) = self.levels.get(level) {
            let mut link = bucket(buckets, hash).get();
            while let Some(found) = link {
                if *found.name == *name {
                    return Some(found.number);
                }
                link = found.next.get();
            }
            level += 1;
        }
        None
    }

    /// Adds the name that gets this number: numbers are given from zero on, one after the other.
    pub(super) fn add(&self, name: &str, number: usize) {
        let (level, offset) = place(number);
        if offset == 0 {
            let buckets = (0..FIRST << level).map(|_| OnceLock::new()).collect();
            self.levels.put(level, buckets);
        }
        let Some(buckets) = self.levels.get(level) else {
            return;
        };
        let mut end = bucket(buckets, key_hash(name.as_bytes()));
        while let Some(link) = end.get() {
            end = &link.next;
        }
        let _ = end.set(Box::new(Link {
            name: name.into(),
            number,
            next: OnceLock::new(),
        }));
    }
}

fn bucket(buckets: &[OnceLock<Box<Link>>], hash: u64) -> &OnceLock<Box<Link>> {
    // As many buckets as a power of two says.
    &buckets[hash as usize & (buckets.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found_again_and_no_other() {
        let grow = AppendOnlyList::default();
        for at in 0..5000 {
            assert!(grow.get(at).is_none());
            grow.put(at, at * 3);
        }
        assert!((0..5000).all(|at| grow.get(at) == Some(&(at * 3))));
        assert!(grow.get(5000).is_none());
    }

    #[test]
    fn every_name_keeps_its_number_as_names_are_added() {
        let names = NameIndex::default();
        for number in 0..3000 {
            let name = format!("tenant-{number}");
            assert_eq!(names.find(&name), None);
            names.add(&name, number);
        }
        for number in 0..3000 {
            assert_eq!(names.find(&format!("tenant-{number}")), Some(number));
        }
        assert_eq!(names.find("tenant-3000"), None);
    }
}
