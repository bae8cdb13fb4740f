//! Who was admitted to what and until when: what Tenure promises, checked from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::{Epoch, SessionId, ShardId};

/// Gate that was observed open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedGate {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    pub(super) session: SessionId,
    /// Until when it admits work if nothing is renewed, in the time of the run.
    pub(super) until: Duration,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    highest: BTreeMap<ShardId, (Epoch, SessionId)>,
    pub(super) openings: u64,
}

impl Ledger {
    /// Looks at all gates that are open now, each with the number of its process.
    pub(super) fn look(
        &mut self,
        now: Duration,
        all: &[(usize, &ObservedGate)],
    ) -> Result<(), String> {
        let mut admitted: BTreeMap<&ShardId, (usize, Epoch)> = BTreeMap::new();
        for (node, open) in all.iter().filter(|(_, open)| open.until > now) {
            if let Some((other, epoch)) = admitted.insert(&open.shard, (*node, open.epoch)) {
                return Err(format!(
                    "two are admitted to shard {}: process {other} at epoch {epoch} and process {node} at epoch {}",
                    open.shard, open.epoch
                ));
            }
            self.grow(open)?;
        }
        Ok(())
    }

    fn grow(&mut self, open: &ObservedGate) -> Result<(), String> {
        let Some(highest) = self.highest.get_mut(&open.shard) else {
            let first = (open.epoch, open.session);
            self.highest.insert(open.shard.clone(), first);
            self.openings += 1;
            return Ok(());
        };
        if open.epoch < highest.0 {
            return Err(format!(
                "shard {} is served at epoch {} after epoch {}",
                open.shard, open.epoch, highest.0
            ));
        }
        if open.epoch == highest.0 && open.session != highest.1 {
            return Err(format!(
                "epoch {} of shard {} belongs to two sessions",
                open.epoch, open.shard
            ));
        }
        self.openings += u64::from(open.epoch > highest.0);
        *highest = (open.epoch, open.session);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(epoch: u64, session: u128, until: u64) -> ObservedGate {
        ObservedGate {
            shard: "k/0".parse().unwrap(),
            epoch: Epoch(epoch),
            session: SessionId(session),
            until: Duration::from_secs(until),
        }
    }

    fn look(looks: &[&[(usize, &ObservedGate)]]) -> Result<(), String> {
        let mut ledger = Ledger::default();
        let now = Duration::from_secs(10);
        looks.iter().try_for_each(|all| ledger.look(now, all))
    }

    #[test]
    fn two_at_once_are_seen_and_one_whose_time_is_over_does_not_count() {
        let (a, b) = (open(1, 1, 11), open(2, 2, 12));
        assert!(look(&[&[(0, &a), (1, &b)]]).is_err());
        let over = open(1, 1, 10);
        assert!(look(&[&[(0, &over), (1, &b)]]).is_ok());
    }

    #[test]
    fn an_epoch_that_goes_back_or_is_shared_is_seen() {
        let (first, second) = (open(1, 1, 11), open(2, 2, 12));
        assert!(look(&[&[(0, &first)], &[(1, &second)]]).is_ok());
        assert!(look(&[&[(1, &second)], &[(0, &first)]]).is_err());
        let shared = open(2, 3, 12);
        assert!(look(&[&[(1, &second)], &[(0, &shared)]]).is_err());
    }
}
