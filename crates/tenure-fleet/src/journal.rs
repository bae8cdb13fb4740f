//! Journals of the application, compared with the responses that its clients received.

use std::collections::HashMap;
use std::io;
use std::path::Path;

/// Contents of all journals of a cluster.
#[derive(Debug, Default)]
pub struct Journal {
    /// By key, the numbers in the order in which they were written.
    written: HashMap<String, Vec<u64>>,
}

impl Journal {
    /// Reads all files of the directory.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let mut journal = Self::default();
        for file in std::fs::read_dir(dir)? {
            for line in std::fs::read_to_string(file?.path())?.lines() {
                let mut words = line.split(' ').skip(2);
                if let (Some(key), Some(Ok(number))) = (words.next(), words.next().map(str::parse))
                {
                    journal
                        .written
                        .entry(key.to_owned())
                        .or_default()
                        .push(number);
                }
            }
        }
        Ok(journal)
    }

    /// Number of successful requests that no journal contains.
    pub fn lost<'a>(&self, answered: impl Iterator<Item = (&'a str, u64)>) -> u64 {
        let there = |key: &str, number| {
            let numbers = self.written.get(key);
            numbers.is_some_and(|n| n.binary_search(&number).is_ok() || n.contains(&number))
        };
        answered
            .filter(|(key, number)| !there(key, *number))
            .count() as u64
    }

    /// Number of requests that a journal contains twice or out of order.
    pub fn out_of_order(&self) -> u64 {
        let keys = self.written.values();
        let wrong = keys.map(|n| n.windows(2).filter(|w| w[0] >= w[1]).count() as u64);
        wrong.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_doubled_or_out_of_order_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("a"),
            "1 1 k 1 9\n1 1 k 2 9\n1 1 k 2 9\n1 1 k 4 9\n",
        )
        .unwrap();
        let journal = Journal::read(dir.path()).unwrap();
        assert_eq!(journal.out_of_order(), 1);
        assert_eq!(journal.lost([("k", 4), ("k", 3), ("j", 1)].into_iter()), 2);
    }
}
