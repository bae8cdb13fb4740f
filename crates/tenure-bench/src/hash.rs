//! From a key to its shard, beside hashing the same key with the standard library.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::hint::black_box;

use tenure_core::hash::shard_index;

use super::measure::{ReportRow, nanos_per_call};

const CALLS: u32 = 1_000_000;

pub(crate) fn measure(repeat: u32) -> Vec<ReportRow> {
    let sip = BuildHasherDefault::<DefaultHasher>::default();
    let keys = [
        ("8-byte key", "user-042"),
        ("36-byte key", "0b5f8c1e-7d7a-4a3c-9c0e-2f1d5e6a7b8c"),
    ];
    keys.into_iter()
        .map(|(case, key)| {
            let ours = || {
                black_box(shard_index(black_box(key.as_bytes()), 1024));
            };
            let theirs = || {
                black_box(sip.hash_one(black_box(key.as_bytes())));
            };
            let pairs = (0..repeat)
                .map(|_| (nanos_per_call(CALLS, ours), nanos_per_call(CALLS, theirs)))
                .collect();
            ReportRow::beside(
                "key → shard",
                case,
                "ns",
                "hash of the standard library",
                pairs,
            )
        })
        .collect()
}
