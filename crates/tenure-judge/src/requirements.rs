//! What a run is held to beyond safety.

use std::collections::BTreeSet;

/// What a run is held to beyond safety. Safety itself (overlaps, epochs, stale effects, strays) is always judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// The shards there should be. Gaps and coverage are asked of these, lines of any other shard count against the
    /// run. `None`: the shards that the logs name.
    pub shards: Option<BTreeSet<String>>,
    /// The longest time in nanoseconds for which a shard may have nobody alive.
    pub max_gap: Option<u64>,
    /// Every shard must be alive at some time in this many last nanoseconds of the window.
    pub covered_by: Option<u64>,
    /// The window of gaps and coverage begins here instead of at the first line of the run.
    pub from: Option<u64>,
    /// The window of gaps and coverage ends here instead of at the last line of the run.
    pub until: Option<u64>,
    /// Another process of the same node may carry on an epoch, as when a supervisor starts its child again. They
    /// still may not overlap.
    pub restarts: bool,
}

impl Requirements {
    /// Asks for the shards `KEYSPACE/0` to `KEYSPACE/count-1`.
    pub fn of_keyspace(keyspace: &str, count: u32) -> Requirements {
        let shards = (0..count)
            .map(|number| format!("{keyspace}/{number}"))
            .collect();
        Requirements {
            shards: Some(shards),
            ..Requirements::default()
        }
    }
}
