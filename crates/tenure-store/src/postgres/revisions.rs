//! Which position a revision stands for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::ids::Revision;

/// How many revisions are remembered. A watch from one that is not begins with a gap.
const KEPT: usize = 4096;

/// The positions that this process has read at, by their revisions.
///
/// A revision is the number of transactions that have written. It says whether anything happened, but not what; the position
/// that was read with it does (see `POSITION` among the statements). So a watch can begin at every revision that this store
/// has given out lately.
#[derive(Debug, Default)]
pub(super) struct RevisionPositions(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The contents that the revisions belong to.
    identity: String,
    positions: BTreeMap<Revision, Arc<str>>,
}

impl RevisionPositions {
    /// Remembers where `revision` is.
    pub(super) fn note(&self, identity: &str, revision: Revision, position: &str) {
        let mut known = self.lock();
        if known.identity != identity {
            known.identity = identity.to_owned();
            known.positions.clear();
        }
        // Any position of a revision is as good as another.
        let place = known.positions.entry(revision);
        place.or_insert_with(|| position.into());
        while known.positions.len() > KEPT {
            known.positions.pop_first();
        }
    }

    /// The position of a revision, if it is still known.
    pub(super) fn find(&self, identity: &str, revision: Revision) -> Option<Arc<str>> {
        let known = self.lock();
        let same = known.identity == identity;
        let found = same.then(|| known.positions.get(&revision)).flatten();
        found.cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_other_contents_and_those_of_long_ago_are_forgotten() {
        let positions = RevisionPositions::default();
        for n in 0..=KEPT as u64 {
            positions.note("a", Revision(n), "1:1:");
        }
        assert_eq!(positions.find("a", Revision(0)), None);
        assert_eq!(positions.find("a", Revision(1)).as_deref(), Some("1:1:"));
        assert_eq!(positions.find("b", Revision(1)), None);
        positions.note("b", Revision(7), "2:2:");
        assert_eq!(positions.find("a", Revision(1)), None);
        assert_eq!(positions.find("b", Revision(7)).as_deref(), Some("2:2:"));
    }
}
