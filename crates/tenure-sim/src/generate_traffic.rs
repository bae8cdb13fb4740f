//! Drawing routers and clients for a run, and runs in which nothing happens but what an operator does on purpose.
//!
//! Drawn from a source of its own, after everything else: what a seed meant before is still known ([`Plan::unrouted`]).

use tenure_core::record::AssignedBy;

use crate::clients::Traffic;
use crate::clock::{MS, SEC};
use crate::fault::{Cut, Fault, Mode, Target};
use crate::rng::Rng;
use crate::run_config::{AppMix, Class, NetMix, RunConfig, WatchMix, nanos};

/// Adds to a plan the routers and clients that its seed has in store.
pub(crate) fn add(plan: &mut RunConfig) {
    let mut rng = plan.rng(11);
    if plan.class == Class::Chaos && plan.nodes > 1 && rng.permille(60) {
        return planned(plan, &mut rng);
    }
    if plan.class == Class::Chaos && plan.mode == AssignedBy::Leader && rng.permille(200) {
        for _ in 0..rng.between(1, 4) {
            lose_leader(plan, &mut rng);
        }
        plan.faults.sort_by_key(|(at, _)| *at);
    }
    let share = match plan.class {
        Class::Chaos | Class::Beyond => 200,
        _ => 300,
    };
    if !rng.permille(share) {
        return;
    }
    add_routers(plan, &mut rng);
    plan.traffic = draw_traffic(plan, &mut rng);
    if matches!(plan.class, Class::Chaos | Class::Beyond) {
        add_faults(plan, &mut rng);
        plan.faults.sort_by_key(|(at, _)| *at);
    }
}

/// Somebody removes the leader's record, or makes it unreadable.
pub(crate) fn lose_leader(plan: &mut RunConfig, rng: &mut Rng) {
    let at = rng.between(3 * SEC, plan.heal_at - SEC);
    let target = Target::Leader;
    let fault = match rng.permille(700) {
        true => Fault::Delete { target },
        false => Fault::Corrupt { target },
    };
    plan.faults.push((at, fault));
}

pub(crate) fn add_routers(plan: &mut RunConfig, rng: &mut Rng) {
    plan.routers = rng.between(1, 3) as usize;
    for _ in 0..plan.routers {
        let clock = *rng.pick(&plan.clocks[..plan.nodes]);
        plan.clocks.push(clock);
        plan.starts.push(rng.skewed(0, 5 * SEC));
        plan.revive.push(rng.permille(600));
    }
}

fn draw_traffic(plan: &RunConfig, rng: &mut Rng) -> Traffic {
    let ttl = nanos(plan.timing.ttl);
    let every = ttl / rng.between(10, 40);
    if !matches!(plan.class, Class::Chaos | Class::Beyond) {
        return Traffic {
            every,
            ..Traffic::calm()
        };
    }
    Traffic {
        every,
        burst: rng.below(5),
        errors: *rng.pick(&[0, 20, 200]),
        lose_reply: *rng.pick(&[0, 0, 20]),
        delay: (MS / 20, *rng.pick(&[MS / 2, 5 * MS, 50 * MS])),
        work: (0, *rng.pick(&[MS, 20 * MS, ttl / 4])),
        held: *rng.pick(&[10_000, 10_000, 8]),
    }
}

/// What happens to routers: the same as to any process, and cuts between them and nodes.
fn add_faults(plan: &mut RunConfig, rng: &mut Rng) {
    let ttl = nanos(plan.timing.ttl);
    let first = plan.nodes + plan.observers;
    for _ in 0..rng.skewed(0, 10) {
        let node = first + rng.below(plan.routers as u64) as usize;
        let at = rng.between(3 * SEC, plan.heal_at - SEC);
        let span = rng.skewed(MS, 4 * ttl);
        let how = *rng.pick(&[Cut::Requests, Cut::Replies, Cut::Both]);
        let back = at + rng.skewed(MS, 2 * ttl);
        let again = Fault::Restart {
            node,
            dir: rng.permille(600),
        };
        let fault = match rng.below(7) {
            0 => Fault::Pause { node, span },
            1 | 2 => {
                plan.faults.push((back, again));
                match rng.permille(500) {
                    true => Fault::Kill { node },
                    false => Fault::Stop { node },
                }
            }
            3 => Fault::Cut { node, how, span },
            4 => Fault::WatchMute { node, span },
            5 => Fault::Slow {
                node,
                by: rng.skewed(MS, ttl / 4),
                span,
            },
            _ => Fault::Sever {
                node,
                other: rng.below(plan.nodes as u64) as usize,
                how,
                span: span.min(2 * ttl),
            },
        };
        plan.faults.push((at, fault));
    }
}

/// Nothing goes wrong: nodes join late, are drained and taken back, and are restarted one after the other.
fn planned(plan: &mut RunConfig, rng: &mut Rng) {
    plan.class = Class::Planned;
    (plan.net, plan.app) = (NetMix::calm(), AppMix::calm());
    plan.watch = WatchMix {
        poll: plan.watch.poll,
        ..WatchMix::calm()
    };
    plan.app.load = (MS, *rng.pick(&[10 * MS, 500 * MS]));
    plan.jitter = plan.jitter.min(5 * MS);
    plan.meddling = Default::default();
    plan.others.clear();
    plan.faults.clear();
    plan.observers = 0;
    plan.clocks.truncate(plan.nodes);
    plan.starts.truncate(plan.nodes);
    plan.revive = vec![true; plan.nodes];
    if rng.permille(500) {
        let late = plan.nodes - 1;
        plan.starts[late] = rng.between(8 * SEC, 12 * SEC);
    }
    if rng.permille(500) && plan.mode == AssignedBy::Rendezvous {
        plan.mode = AssignedBy::Leader;
    }
    add_routers(plan, rng);
    plan.starts[plan.nodes..].fill(0);
    plan.revive[plan.nodes..].fill(true);
    plan.traffic = draw_traffic(plan, rng);
    plan.traffic.burst = rng.between(1, 4);
    plan.traffic.delay.1 = *rng.pick(&[MS / 2, 30 * MS]);
    roll(plan, rng);
    plan.end_at = plan.heal_at + plan.heal_bound() + plan.rest_window();
}

/// One node, or one router, after the other.
fn roll(plan: &mut RunConfig, rng: &mut Rng) {
    let away = nanos(plan.timing.drain_timeout) + 6 * nanos(plan.timing.ttl);
    let mut at = 15 * SEC;
    while at + away < plan.heal_at {
        let node = match rng.permille(200) {
            true => plan.nodes + rng.below(plan.routers as u64) as usize,
            false => rng.below(plan.nodes as u64) as usize,
        };
        if node < plan.nodes && rng.permille(300) {
            let mode = Mode::Draining;
            plan.faults.push((at, Fault::Mode { node, mode }));
            let back = at + rng.between(away / 4, away * 3 / 4);
            let mode = Mode::Active;
            plan.faults.push((back, Fault::Mode { node, mode }));
        } else {
            plan.faults.push((at, Fault::Stop { node }));
            // Started again once it is gone.
            for tenth in 2..9 {
                let back = at + away * tenth / 10;
                plan.faults.push((back, Fault::Restart { node, dir: true }));
            }
        }
        at += away + rng.below(3 * SEC);
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}
