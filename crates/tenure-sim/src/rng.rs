//! A small seeded source of chance. The same seed gives the same numbers on every machine, for ever.

/// Chance that can be repeated: xoshiro256** seeded by splitmix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Self {
            state: std::array::from_fn(|_| splitmix(&mut x)),
        }
    }

    /// An independent source: what is drawn from it moves nothing here, so that leaving out one part of a run does not
    /// reshuffle the others.
    pub fn fork(&self, label: u64) -> Self {
        let mut x = self.state[0] ^ label.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            state: std::array::from_fn(|_| splitmix(&mut x)),
        }
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True this many times in a thousand.
    #[inline]
    pub fn permille(&mut self, p: u32) -> bool {
        p > 0 && self.below(1000) < u64::from(p)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A number up to `high` that is small more often than large: short faults and long ones are both tried.
    pub fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        match self.below(3) {
            0 => low + self.below(span / 16 + 1),
            1 => low + self.below(span / 4 + 1),
            _ => low + self.below(span + 1),
        }
    }
}

fn splitmix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut rng = Rng::new(7);
        let drawn: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        let mut again = Rng::new(7);
        assert_eq!(drawn, (0..3).map(|_| again.bits()).collect::<Vec<_>>());
        assert_ne!(drawn[0], Rng::new(8).bits());
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            assert!(rng.below(3) < 3);
            assert!((5..=9).contains(&rng.between(5, 9)));
            assert!((5..=90).contains(&rng.skewed(5, 90)));
            assert!(!rng.permille(0));
            assert!(rng.permille(1000));
        }
    }
}
