//! How much a router may hold.

use std::time::Duration;

/// How much a router may hold, of all shards together. One shard may take up half of it, so that one which nobody serves
/// leaves room for those that move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    /// How many requests.
    pub count: u64,
    /// How many bytes, as their senders count them.
    pub bytes: u64,
    /// How long any one of them, in all. Must be no less than `router_hold_timeout` + `drain_timeout` + `take_timeout`.
    pub age: Duration,
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self {
            count: 10_000,
            bytes: 64 << 20,
            age: Duration::from_secs(30),
        }
    }
}

impl HoldLimits {
    /// Whether one more request of this size may be held, where `shard` and `all` say how many are held already, and how
    /// large they are; else which limit is in the way.
    pub fn room(&self, shard: (u64, u64), all: (u64, u64), bytes: u64) -> Result<(), &'static str> {
        if shard.0 >= self.count.div_ceil(2) {
            return Err(
                "the shard already uses half of the request limit, the maximum for one shard",
            );
        }
        if shard.1 + bytes > self.bytes.div_ceil(2) {
            return Err(
                "the shard would use more than half of the byte limit, the maximum for one shard",
            );
        }
        if all.0 >= self.count {
            return Err("the request limit is reached");
        }
        if all.1 + bytes > self.bytes {
            return Err("the byte limit is reached");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_takes_up_half_at_most_and_all_together_the_whole() {
        let limits = HoldLimits {
            count: 4,
            bytes: 100,
            ..HoldLimits::default()
        };
        assert_eq!(limits.room((1, 10), (3, 10), 10), Ok(()));
        assert_eq!(
            limits.room((2, 0), (2, 0), 1),
            Err("the shard already uses half of the request limit, the maximum for one shard")
        );
        assert_eq!(
            limits.room((0, 45), (0, 45), 6),
            Err("the shard would use more than half of the byte limit, the maximum for one shard")
        );
        assert_eq!(
            limits.room((1, 0), (4, 0), 1),
            Err("the request limit is reached")
        );
        assert_eq!(
            limits.room((1, 0), (2, 95), 6),
            Err("the byte limit is reached")
        );
    }
}
