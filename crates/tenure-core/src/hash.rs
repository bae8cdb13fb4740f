//! From a key to its shard, and the pseudo-random numbers that assignment is made of.
//!
//! Both are part of the protocol: every participant, in every language, must compute the same. `docs/protocol.md` has the
//! test vectors.

use xxhash_rust::xxh64::xxh64;

use crate::ids::{NodeName, ShardId, ShardName};

/// The shard of `key` among `shards` shards: XXH64 (seed 0) of the key's bytes, scaled by multiplication.
///
/// `(h · n) >> 64` spreads as evenly as a modulus without favouring low shards.
///
/// ```
/// assert_eq!(tenure_core::hash::shard_index(b"user-42", 64), 14);
/// ```
pub fn shard_index(key: &[u8], shards: u32) -> u32 {
    index_of(key_hash(key), shards)
}

/// The number that stands for a key.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh64(key, 0)
}

/// The shard, among `shards` shards, of a key with this [`key_hash`].
#[inline]
pub fn index_of(hash: u64, shards: u32) -> u32 {
    ((u128::from(hash) * u128::from(shards)) >> 64) as u32
}

/// The shard of `key` in a hashed keyspace of `shards` shards, by name.
pub fn shard_of(key: &[u8], shards: u32) -> ShardName {
    ShardName::index(shard_index(key, shards))
}

/// The draw of a node for a shard: the same for everyone, independent between nodes and between shards.
pub(crate) fn draw(shard: u64, node: u64) -> u64 {
    mix(shard ^ node.rotate_left(32))
}

/// The number that stands for a shard in draws.
pub(crate) fn shard_number(shard: &ShardId) -> u64 {
    xxh64(
        shard.shard.as_str().as_bytes(),
        xxh64(shard.keyspace.as_str().as_bytes(), 1),
    )
}

/// The number that stands for a node in draws.
pub(crate) fn node_number(node: &NodeName) -> u64 {
    xxh64(node.as_str().as_bytes(), 2)
}

/// Scatters the bits of a number; equal inputs give equal outputs.
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_vectors_hold() {
        // The same table stands in docs/protocol.md.
        let check = |key: &str, hash: u64, of64: u32, of1000: u32| {
            assert_eq!(xxh64(key.as_bytes(), 0), hash, "{key}");
            assert_eq!(
                (
                    shard_index(key.as_bytes(), 64),
                    shard_index(key.as_bytes(), 1000)
                ),
                (of64, of1000),
                "{key}"
            );
        };
        check("", 0xef46_db37_51d8_e999, 59, 934);
        check("a", 0xd24e_c4f1_a98c_6e5b, 52, 821);
        check("user-42", 0x397e9d3a76af7c81, 14, 224);
        check("orders/17", 0x43e6_819a_09ff_1a1e, 16, 265);
        check("Zürich", 0x85f1_debc_bb1a_8279, 33, 523);
    }

    #[test]
    fn every_shard_is_in_range_and_gets_its_part_of_the_keys() {
        let mut counts = [0u32; 16];
        for i in 0..16_000 {
            counts[shard_index(format!("key-{i}").as_bytes(), 16) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
    }
}
