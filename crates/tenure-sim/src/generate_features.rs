//! What came to be simulated later: further keyspaces, named shards, observers, operators' modes, restored stores.
//!
//! Drawn from a source of its own, after everything else, so that what a seed meant before is still known
//! ([`Plan::plain`]): a seed that once failed tells the same story for ever.

use tenure_core::record::AssignedBy;

use crate::clock::SEC;
use crate::fault::{Fault, Mode, Target};
use crate::rng::Rng;
use crate::run_config::{Class, Family, Other, RunConfig, nanos};

/// Adds to a plan what its seed has in store besides.
pub(crate) fn add(plan: &mut RunConfig) {
    if !matches!(plan.class, Class::Chaos | Class::Beyond | Class::Rest) {
        return;
    }
    let mut rng = plan.rng(9);
    if rng.permille(300) {
        plan.others = draw_others(&mut rng);
    }
    if rng.permille(200) {
        add_observers(plan, &mut rng);
    }
    if plan.class == Class::Rest {
        return;
    }
    if rng.permille(200) {
        add_modes(plan, &mut rng);
    }
    if rng.permille(250) {
        add_losses(plan, &mut rng);
    }
    // What becomes of leases in a store that was put back is not simulated.
    if rng.permille(120) && plan.family != Family::Leased {
        add_restore(plan, &mut rng);
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

fn draw_others(rng: &mut Rng) -> Vec<Other> {
    let mode = |rng: &mut Rng| *rng.pick(&[AssignedBy::Rendezvous, AssignedBy::FairShare]);
    let hashed = Other {
        name: "parts",
        named: false,
        shards: rng.between(1, 4) as u32,
        mode: mode(rng),
    };
    let named = Other {
        name: "rooms",
        named: true,
        shards: rng.between(1, 4) as u32,
        mode: mode(rng),
    };
    match rng.below(3) {
        0 => vec![hashed],
        1 => vec![named],
        _ => vec![hashed, named],
    }
}

fn add_observers(plan: &mut RunConfig, rng: &mut Rng) {
    plan.observers = rng.between(1, 2) as usize;
    for _ in 0..plan.observers {
        let clock = *rng.pick(&plan.clocks);
        plan.clocks.push(clock);
        plan.starts.push(rng.skewed(0, 20 * SEC));
        plan.revive.push(rng.permille(600));
    }
    if plan.class == Class::Rest {
        return;
    }
    let ttl = nanos(plan.timing.ttl);
    for node in plan.nodes..plan.nodes + plan.observers {
        let at = rng.between(5 * SEC, plan.heal_at - SEC);
        let fault = match rng.below(4) {
            0 => Fault::Kill { node },
            1 => Fault::Pause {
                node,
                span: rng.skewed(0, 4 * ttl),
            },
            2 => Fault::Twin { node, copy: false },
            _ => Fault::Stop { node },
        };
        plan.faults.push((at, fault));
        let again = at + rng.skewed(0, 2 * ttl);
        plan.faults
            .push((again, Fault::Restart { node, dir: true }));
    }
}

fn add_modes(plan: &mut RunConfig, rng: &mut Rng) {
    for _ in 0..rng.between(1, 8) {
        let at = rng.between(SEC, plan.heal_at - SEC);
        let node = rng.below(plan.nodes as u64) as usize;
        let mode = *rng.pick(&[Mode::Active, Mode::Draining, Mode::Drained]);
        plan.faults.push((at, Fault::Mode { node, mode }));
    }
}

/// Losses of a few records again and again, with no time in between to recover from one, the keyspace's own among them.
fn add_losses(plan: &mut RunConfig, rng: &mut Rng) {
    let shard = rng.below(u64::from(plan.shards)) as usize;
    let around = rng.between(2 * SEC, plan.heal_at - 2 * SEC);
    let within = *rng.pick(&[nanos(plan.timing.ttl), 8 * nanos(plan.timing.ttl)]);
    for _ in 0..rng.between(2, 8) {
        let at = (around + rng.below(within)).min(plan.heal_at - SEC);
        let target = *rng.pick(&[Target::Shard(shard), Target::Shard(0), Target::Keyspace]);
        let fault = if rng.permille(700) {
            Fault::Delete { target }
        } else {
            Fault::Corrupt { target }
        };
        plan.faults.push((at, fault));
    }
}

/// One restore at most, and never together with the loss of a keyspace's record: nodes that wait for a raised generation
/// make nothing anew, so that an operator would have to do both.
fn add_restore(plan: &mut RunConfig, rng: &mut Rng) {
    let lost = |fault: &Fault| {
        matches!(
            fault,
            Fault::Delete {
                target: Target::Keyspace
            } | Fault::Corrupt {
                target: Target::Keyspace
            }
        )
    };
    plan.faults.retain(|(_, fault)| !lost(fault));
    let ttl = nanos(plan.timing.ttl);
    let wait = rng.skewed(0, 4 * ttl);
    let at = rng.between(8 * SEC, plan.heal_at - wait - SEC);
    let fault = Fault::Restore {
        back: rng.skewed(1, 300),
        wait,
        exchanged: rng.permille(300),
        running: rng.permille(350),
    };
    plan.faults.push((at, fault));
}
