//! What must hold of records, written once: for tests, the simulator, the model checker and the trace validator.

use crate::record::{Ownership, ShardRecord};

/// What a record that replaces another must satisfy, whoever wrote it.
pub fn check_successor(old: &ShardRecord, new: &ShardRecord) -> Result<(), &'static str> {
    if new.head.rev <= old.head.rev {
        return Err("rev did not increase");
    }
    if new.epoch < old.epoch {
        return Err("P2: the epoch decreased");
    }
    let (before, after) = (old.owner(), new.owner());
    if after.is_some()
        && before.map(|o| o.session) != after.map(|o| o.session)
        && new.epoch <= old.epoch
    {
        return Err("P2: a new owner without a new epoch");
    }
    let is_sealed = |record: &ShardRecord| matches!(record.ownership, Ownership::Sealed { .. });
    if is_sealed(old) && !is_sealed(new) && after.is_some() && new.epoch <= old.epoch {
        return Err("P3: a sealed epoch is reused");
    }
    if after.is_some()
        && matches!(&old.ownership, Ownership::Free { awaiting_disclaimers } if !awaiting_disclaimers.is_empty())
    {
        return Err("P1: a restored shard is owned before every awaited session has disclaimed it");
    }
    if old.ownership == Ownership::Deleted && after.is_some() {
        return Err("a deleted shard is owned");
    }
    Ok(())
}
