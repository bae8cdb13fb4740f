//! Phase 3: how many shards each node should have.
//!
//! A node's share is its part by weight, between what it cannot give away and what it can hold. Shares are whole numbers
//! within one of the exact part. Of the nodes that could be rounded up, those that already have the shard are: this is what
//! makes the number of moves the least possible.

use super::builder::PlanBuilder;
use super::decision::PlanProblem;
use super::settings::ZoneRule;

/// One node in the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeShare {
    pub(crate) weight: u32,
    /// The least that it must get.
    pub(crate) low: u64,
    /// The most that it can get.
    pub(crate) high: u64,
    /// What it has.
    pub(crate) has: u64,
    /// Gets the odd one later than others do.
    pub(crate) reluctant: bool,
    /// Its share.
    pub(crate) share: u64,
}

/// Divides `total` by weight within everyone's limits, into whole numbers.
///
/// Whoever's part would be outside its limits is fixed at the limit, and the rest is divided among the others; of the two
/// kinds of limits the one that is broken by more goes first, as otherwise the other would be fixed too early.
pub(crate) fn divide(total: u64, parts: &mut [NodeShare]) {
    let mut open: Vec<usize> = (0..parts.len()).collect();
    let mut rest = i128::from(total);
    loop {
        let weights: i128 = open.iter().map(|&i| i128::from(parts[i].weight)).sum();
        if weights == 0 {
            open.iter().for_each(|&i| parts[i].share = parts[i].low);
            return;
        }
        // In units of 1/weights: how far all limits are broken, low ones positive.
        let broken = |p: &NodeShare| {
            let exact = rest * i128::from(p.weight);
            let low = i128::from(p.low) * weights - exact;
            let high = exact - i128::from(p.high) * weights;
            (low.max(0), high.max(0))
        };
        let (mut low, mut high) = (0, 0);
        for &i in &open {
            let (l, h) = broken(&parts[i]);
            low += l;
            high += h;
        }
        if low == 0 && high == 0 {
            return round(rest, weights, &open, parts);
        }
        let (fix_low, fix_high) = (low >= high, high >= low);
        let mut fixed = 0;
        open.retain(|&i| {
            let (l, h) = broken(&parts[i]);
            let share = if l > 0 && fix_low {
                parts[i].low
            } else if h > 0 && fix_high {
                parts[i].high
            } else {
                return true;
            };
            parts[i].share = share;
            fixed += i128::from(share);
            false
        });
        rest -= fixed;
    }
}

/// Whole numbers for those whose part is within their limits.
fn round(rest: i128, weights: i128, open: &[usize], parts: &mut [NodeShare]) {
    let mut given = 0;
    let mut odd = Vec::new();
    for &i in open {
        let exact = rest * i128::from(parts[i].weight);
        let part = &mut parts[i];
        // Not negative, as it is at least `low`, and not above `high`.
        part.share = u64::try_from(exact / weights).unwrap_or(0);
        given += i128::from(part.share);
        if exact % weights > 0 {
            let fraction = std::cmp::Reverse(exact % weights);
            odd.push((part.has <= part.share, part.reluctant, fraction, i));
        }
    }
    let up = usize::try_from(rest - given).unwrap_or(0).min(odd.len());
    if up > 0 && up < odd.len() {
        odd.select_nth_unstable(up - 1);
    }
    odd[..up].iter().for_each(|o| parts[o.3].share += 1);
}

impl PlanBuilder<'_> {
    /// Every node's share of all shards.
    pub(crate) fn shares(&mut self) -> Vec<u32> {
        let total = self.view.shard_count() as u64;
        let mut parts: Vec<NodeShare> = (0..self.fits.len()).map(|i| self.part(i)).collect();
        self.limit_zones(total, &parts);
        let room: u64 = parts.iter().map(|p| p.high).fold(0, u64::saturating_add);
        if room < total && self.any_takes {
            let shards = u32::try_from(total - room).unwrap_or(u32::MAX);
            self.problems.push(PlanProblem::NoRoom { shards });
        }
        let tiers = self.fits.iter().map(|f| f.tier).max().unwrap_or(0);
        let mut rest = total;
        for tier in 0..=tiers {
            let here: Vec<usize> = (0..parts.len())
                .filter(|&i| self.fits[i].tier == tier)
                .collect();
            if here.is_empty() {
                continue;
            }
            // Lower choices get what they cannot give away, and what higher ones cannot hold.
            let later = |i: &usize| self.fits[*i].tier > tier;
            let due: u64 = (0..parts.len()).filter(later).map(|i| parts[i].low).sum();
            let most = here.iter().map(|&i| parts[i].high);
            let most = most.fold(0, u64::saturating_add);
            let mut some: Vec<NodeShare> = here.iter().map(|&i| parts[i]).collect();
            self.divide_by_zone(rest.saturating_sub(due).min(most), &here, &mut some);
            for (&i, part) in here.iter().zip(some) {
                rest = rest.saturating_sub(part.share);
                parts[i] = part;
            }
        }
        // A share is at most the number of shards, or what the node has.
        let whole = |p: &NodeShare| u32::try_from(p.share).unwrap_or(u32::MAX);
        parts.iter().map(whole).collect()
    }

    fn part(&self, i: usize) -> NodeShare {
        let (fit, seat) = (&self.fits[i], &self.seats[i]);
        let placed = u64::from(seat.placed);
        let (low, high) = if fit.fixed {
            (placed, placed)
        } else if fit.takes {
            let low = u64::from(seat.pinned);
            (low, u64::from(fit.most).max(low))
        } else if fit.keeps.is_ok() {
            (u64::from(seat.pinned), placed)
        } else {
            (0, 0)
        };
        NodeShare {
            weight: fit.weight,
            low,
            high,
            has: placed,
            reluctant: !fit.fills,
            share: 0,
        }
    }

    /// Finds out how many shards a zone may have: as set, or as few more as it takes to hold them all.
    fn limit_zones(&mut self, total: u64, parts: &[NodeShare]) {
        let ZoneRule::Spread { most_percent } = self.rules.zones else {
            return;
        };
        let mut rooms = vec![0u64; self.index.zones];
        for (i, part) in parts.iter().enumerate() {
            let room = &mut rooms[self.index.zone[i] as usize];
            *room = room.saturating_add(part.high);
        }
        let holds = |limit: u64| rooms.iter().map(|r| r.min(&limit)).sum::<u64>();
        let asked = (total * u64::from(most_percent) / 100).max(1);
        let goal = total.min(holds(total));
        let (mut low, mut high) = (asked, total.max(asked));
        while low < high {
            let middle = u64::midpoint(low, high);
            if holds(middle) >= goal {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.zone_most = u32::try_from(low).unwrap_or(u32::MAX);
        if low > asked {
            self.problems.push(PlanProblem::ZoneLimitGivesWay {
                asked_percent: most_percent,
                most: self.zone_most,
            });
        }
    }

    /// Divides within the zones' limits: a zone that would get more gets its limit, and the others the rest.
    fn divide_by_zone(&self, total: u64, nodes: &[usize], parts: &mut [NodeShare]) {
        let zone = |k: usize| self.index.zone[nodes[k]] as usize;
        let mut open: Vec<usize> = (0..parts.len()).collect();
        let mut rest = total;
        loop {
            let mut some: Vec<NodeShare> = open.iter().map(|&k| parts[k]).collect();
            divide(rest, &mut some);
            let mut sums = vec![0u64; self.index.zones];
            for (&k, part) in open.iter().zip(&some) {
                parts[k] = *part;
                sums[zone(k)] += part.share;
            }
            let limit = u64::from(self.zone_most);
            if sums.iter().all(|s| *s <= limit) {
                return;
            }
            for (z, _) in sums.iter().enumerate().filter(|(_, s)| **s > limit) {
                let here: Vec<usize> = open.iter().copied().filter(|&k| zone(k) == z).collect();
                let mut some: Vec<NodeShare> = here.iter().map(|&k| parts[k]).collect();
                divide(limit, &mut some);
                for (&k, part) in here.iter().zip(some) {
                    rest = rest.saturating_sub(part.share);
                    parts[k] = part;
                }
            }
            open.retain(|&k| sums[zone(k)] <= limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(total: u64, parts: &[(u32, u64, u64, u64)]) -> Vec<u64> {
        let mut parts: Vec<NodeShare> = parts
            .iter()
            .map(|&(weight, low, high, has)| NodeShare {
                weight,
                low,
                high,
                has,
                reluctant: false,
                share: 0,
            })
            .collect();
        divide(total, &mut parts);
        parts.iter().map(|p| p.share).collect()
    }

    const MANY: u64 = 1_000_000;

    #[test]
    fn parts_follow_the_weights_and_add_up() {
        let check = |total, weights: &[u32], expected: &[u64]| {
            let parts: Vec<_> = weights.iter().map(|w| (*w, 0, MANY, 0)).collect();
            assert_eq!(shares(total, &parts), expected);
        };
        check(12, &[1, 1, 2], &[3, 3, 6]);
        check(10, &[1, 1, 1], &[4, 3, 3]);
        check(1, &[100, 100], &[1, 0]);
        check(0, &[1, 2], &[0, 0]);
        check(7, &[0, 1], &[0, 7]);
    }

    #[test]
    fn the_odd_ones_go_to_those_that_have_them() {
        let parts = [(1, 0, MANY, 3), (1, 0, MANY, 4), (1, 0, MANY, 3)];
        assert_eq!(shares(10, &parts), [3, 4, 3]);
    }

    #[test]
    fn limits_are_kept_and_the_rest_is_divided() {
        assert_eq!(shares(12, &[(1, 0, 2, 0), (1, 0, MANY, 0)]), [2, 10]);
        assert_eq!(shares(12, &[(1, 9, MANY, 9), (1, 0, MANY, 0)]), [9, 3]);
        let both = [(1, 6, MANY, 0), (1, 0, 1, 0), (2, 0, MANY, 0)];
        assert_eq!(shares(12, &both), [6, 1, 5]);
    }

    #[test]
    fn too_little_and_too_much_end_at_the_limits() {
        assert_eq!(shares(12, &[(1, 0, 2, 0), (1, 0, 3, 0)]), [2, 3]);
        assert_eq!(shares(1, &[(1, 2, 9, 0), (1, 3, 9, 0)]), [2, 3]);
        assert_eq!(shares(5, &[(0, 0, 9, 0)]), [0]);
    }
}
