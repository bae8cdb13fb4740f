//! Drawing a run from a seed. Each run has a mix of its own: what never happens together with anything else in an even mix
//! happens alone in some runs and often in others.

use std::time::Duration;

use tenure_core::record::{AssignedBy, PlanningSettings};
use tenure_core::settings::{Settings, Timing};

use crate::clients::Traffic;
use crate::clock::{Clock, Instant, MS, SEC};
use crate::fault::{Cut, Fault, Outage, Target};
use crate::lease_tampering::{self, LeaseTamperingConfig};
use crate::rng::Rng;
use crate::run_config::{AppMix, Class, Family, NetMix, RunConfig, WatchMix, nanos};

/// Kinds of faults that a run may use; each run draws which.
const KINDS: usize = 14;

/// Draws a run; its size too, unless that is given as nodes and shards.
pub(crate) fn draw(seed: u64, size: Option<(usize, u32)>) -> RunConfig {
    let mut rng = Rng::new(seed).fork(1);
    let class = match rng.below(20) {
        0 => Class::Beyond,
        1 => Class::Rest,
        2 => Class::ShortOutage,
        3 => Class::LongOutage,
        4 => Class::OneDeath,
        _ => Class::Chaos,
    };
    let family = *rng.pick(&[
        Family::Watched,
        Family::Watched,
        Family::OneMachine,
        Family::Polled,
    ]);
    // From a source of its own: what a seed means otherwise stays what it was.
    let leased = family == Family::Watched && Rng::new(seed).fork(7).permille(500);
    let family = if leased { Family::Leased } else { family };
    let nodes = rng.between(if class == Class::OneDeath { 2 } else { 1 }, 5) as usize;
    let shards = *rng.pick(&[1, 2, 4, 8, 16]);
    let (nodes, shards) = size.unwrap_or((nodes, shards));
    let mut timing = draw_timing(&mut rng);
    if class.is_local() && family == Family::Polled {
        // Everything is to be in its place before the one thing goes wrong: not one move after the other, where each
        // takes a few looks at the store.
        timing.release_batch = timing.release_batch.max(4);
    }
    let ttl = nanos(timing.ttl);
    let heal_at = 60 * SEC;
    let chaos = matches!(class, Class::Chaos | Class::Beyond);
    let mut plan = RunConfig {
        seed,
        class,
        family,
        nodes,
        shards,
        mode: *rng.pick(&[
            AssignedBy::Rendezvous,
            AssignedBy::Rendezvous,
            AssignedBy::FairShare,
        ]),
        spec: PlanningSettings::default(),
        catches_up: false,
        reads_tail: true,
        ambush: None,
        others: Vec::new(),
        observers: 0,
        routers: 0,
        planners: 0,
        pause_lasts: None,
        serves: Vec::new(),
        traffic: Traffic::calm(),
        clocks: draw_clocks(&mut rng, class, family, nodes, &timing),
        starts: (0..nodes).map(|_| rng.skewed(0, 3 * SEC)).collect(),
        net: if chaos {
            draw_net(&mut rng, ttl)
        } else {
            NetMix::calm()
        },
        watch: if chaos {
            draw_watch(&mut rng, ttl)
        } else {
            WatchMix::calm()
        },
        app: if chaos {
            draw_app(&mut rng, ttl)
        } else {
            AppMix::calm()
        },
        jitter: *rng.pick(&[0, MS, 5 * MS, if chaos { ttl / 40 } else { MS }]),
        shuffle: rng.permille(500),
        faults: Vec::new(),
        heal_at,
        revive: (0..nodes).map(|_| rng.permille(600)).collect(),
        end_at: 0,
        meddling: LeaseTamperingConfig::default(),
        manual: false,
        timing,
    };
    plan.catches_up = Rng::new(seed).fork(10).permille(600);
    let mut led = Rng::new(seed).fork(8);
    if plan.mode == AssignedBy::Rendezvous && led.permille(500) {
        plan.mode = AssignedBy::Leader;
        plan.spec = PlanningSettings {
            settle_time: Some(Duration::from_millis(led.between(50, 1500))),
            rejoin_after: Some(Duration::from_millis(led.between(50, 400))),
            cool_down: Some(Duration::from_millis(led.between(100, 4000))),
            ..PlanningSettings::default()
        };
    }
    plan.watch.poll = rng.between(ttl / 20, ttl / 4);
    plan.faults = match class {
        Class::Chaos | Class::Beyond => draw_faults(&mut rng, &plan),
        // What is planned is drawn later (`generate_traffic.rs`).
        Class::Rest | Class::Planned => Vec::new(),
        Class::ShortOutage => vec![(30 * SEC, short_outage(&mut rng, &plan))],
        Class::LongOutage => {
            let how = *rng.pick(&[Outage::Refuse, Outage::Hang, Outage::Forget]);
            vec![(
                30 * SEC,
                Fault::Outage {
                    how,
                    span: rng.between(ttl, 5 * ttl),
                },
            )]
        }
        Class::OneDeath => {
            let node = rng.below(nodes as u64) as usize;
            plan.revive[node] = false;
            vec![(30 * SEC, Fault::Kill { node })]
        }
    };
    lease_tampering::draw(&mut plan);
    plan.end_at = heal_at + plan.heal_bound() + plan.rest_window();
    plan
}

/// Checks settings that are known to fit together.
pub(crate) fn checked(settings: &Settings) -> Timing {
    match settings.check(Duration::ZERO) {
        Ok(timing) => timing,
        Err(problems) => panic!("the simulator drew settings that do not fit: {problems:?}"),
    }
}

fn draw_timing(rng: &mut Rng) -> Timing {
    let ttl = Duration::from_millis(*rng.pick(&[1500, 2500, 2500, 4000, 6000]));
    let settings = Settings {
        ttl,
        claim_retry_window: *rng.pick(&[
            Duration::ZERO,
            Duration::from_secs(2),
            Duration::from_secs(2),
        ]),
        claim_watch_enabled: !rng.permille(200),
        assignment_settle_time: Duration::from_millis(rng.between(50, 1500)),
        release_batch: *rng.pick(&[1, 4, 64]),
        drain_timeout: Duration::from_millis(rng.between(200, 4000)),
        router_hold_timeout: ttl / 2,
        move_retry_max: ttl,
        take_timeout: ttl * 2,
        load_retry_max: Duration::from_secs(2),
        load_timeout: Duration::from_millis(rng.between(3000, 6000)),
        load_attempts: rng.between(1, 4) as u32,
        clock_drift_max_permille: *rng.pick(&[1, 10, 10, 30]),
        tick_interval: Some(ttl * *rng.pick(&[1, 2, 2, 4])),
        relist_interval: Some(ttl * *rng.pick(&[4, 8, 16])),
        ..Settings::default()
    };
    checked(&settings)
}

fn draw_clocks(
    rng: &mut Rng,
    class: Class,
    family: Family,
    nodes: usize,
    timing: &Timing,
) -> Vec<Clock> {
    // Two rates that are each off by a little less than half the bound have a ratio within the bound.
    let within = i64::from(timing.clock_drift_max_permille) * 490;
    let one = Clock {
        offset: rng.between(1, 1_000_000) * SEC,
        rate_ppm: 0,
    };
    let extreme = rng.permille(500);
    (0..nodes)
        .map(|_| {
            if family == Family::OneMachine {
                return one;
            }
            let bound = if class == Class::Beyond {
                300_000
            } else {
                within
            };
            let rate_ppm = if extreme {
                if rng.permille(500) { bound } else { -bound }
            } else {
                rng.below(2 * bound as u64 + 1) as i64 - bound
            };
            Clock {
                offset: rng.between(1, 1_000_000) * SEC,
                rate_ppm,
            }
        })
        .collect()
}

/// Never, a little, or a lot.
fn some(rng: &mut Rng, most: u32) -> u32 {
    match rng.below(8) {
        0..4 => 0,
        4..7 => rng.between(1, u64::from(most)) as u32,
        _ => rng.between(1, u64::from(most) * 5).min(400) as u32,
    }
}

fn draw_net(rng: &mut Rng, ttl: u64) -> NetMix {
    NetMix {
        delay: (MS / 5, *rng.pick(&[MS / 2, 5 * MS, 30 * MS])),
        spike: some(rng, 60),
        spike_max: ttl / 5,
        lose_request: some(rng, 80),
        lose_reply: some(rng, 80),
        duplicate: some(rng, 80),
        late: some(rng, 40),
        late_max: 3 * ttl,
        refuse: some(rng, 80),
    }
}

fn draw_watch(rng: &mut Rng, ttl: u64) -> WatchMix {
    WatchMix {
        delay: (MS / 5, *rng.pick(&[MS, 20 * MS, ttl / 10])),
        late: some(rng, 60),
        drop: some(rng, 40),
        repeat: some(rng, 100),
        breaks: some(rng, 10),
        poll: 0,
    }
}

fn draw_app(rng: &mut Rng, ttl: u64) -> AppMix {
    let load = (MS, *rng.pick(&[MS, 50 * MS, ttl / 2]));
    AppMix {
        load,
        catch_up: (load.0 / 4, (load.1 / 4).max(MS)),
        load_fails: some(rng, 150),
        load_hangs: some(rng, 30),
        drain: (0, *rng.pick(&[0, 20 * MS, ttl / 2, 2 * ttl])),
        stubborn: some(rng, 200),
        run_ends: some(rng, 30),
    }
}

fn short_outage(rng: &mut Rng, plan: &RunConfig) -> Fault {
    let t = &plan.timing;
    // Of a time that the store keeps, a node counts on what is left if its own clock is the slower one.
    let ttl = match plan.family {
        Family::Leased => t.sure_of(t.ttl),
        _ => t.ttl,
    };
    let room = nanos(ttl - t.lease_detach_margin - t.renew_interval);
    // A request that the store forgets costs its timeout and the wait until the next try on top.
    let retry = nanos(t.renew_retry_interval) + 2 * plan.jitter + 10 * MS;
    let (how, lost) = *rng.pick(&[
        (Outage::Refuse, 0),
        (Outage::Hang, nanos(t.request_timeout)),
        (Outage::Forget, nanos(t.request_timeout)),
    ]);
    let most = room.saturating_sub(retry + lost + room / 50);
    Fault::Outage {
        how,
        span: rng.between(most / 2, most),
    }
}

fn draw_faults(rng: &mut Rng, plan: &RunConfig) -> Vec<(Instant, Fault)> {
    let used: Vec<usize> = (0..KINDS).filter(|_| rng.permille(400)).collect();
    if used.is_empty() {
        return Vec::new();
    }
    // A run loses the keyspace or shards of it; the losses that are drawn later (`generate_features.rs`) lose both.
    let keyspace_hit = rng.permille(500);
    let count = rng.skewed(1, 40);
    let mut faults = Vec::new();
    for _ in 0..count {
        let at = rng.between(SEC, plan.heal_at - SEC);
        let kind = *rng.pick(&used);
        one_fault(rng, plan, kind, at, keyspace_hit, &mut faults);
    }
    faults.sort_by_key(|(at, _)| *at);
    space_losses(&mut faults, 8 * nanos(plan.timing.ttl));
    faults
}

/// Leaves time between two losses of one record that knows epochs: whoever has not yet heard of its restoring may make it
/// anew at a rev that others have seen. The losses that are drawn later (`generate_features.rs`) leave none.
fn space_losses(faults: &mut Vec<(Instant, Fault)>, apart: u64) {
    let mut lost: Vec<(Target, Instant)> = Vec::new();
    faults.retain(|(at, fault)| {
        let target = match fault {
            Fault::Delete { target } | Fault::Corrupt { target } => *target,
            _ => return true,
        };
        if !matches!(target, Target::Shard(_) | Target::Keyspace) {
            return true;
        }
        let soon = lost
            .iter()
            .any(|(t, last)| *t == target && *at < last + apart);
        if !soon {
            lost.push((target, *at));
        }
        !soon
    });
}

fn one_fault(
    rng: &mut Rng,
    plan: &RunConfig,
    kind: usize,
    at: Instant,
    keyspace_hit: bool,
    faults: &mut Vec<(Instant, Fault)>,
) {
    let ttl = nanos(plan.timing.ttl);
    let node = rng.below(plan.nodes as u64) as usize;
    let span = rng.skewed(MS, 4 * ttl);
    let target = match rng.below(4) {
        0 | 1 if keyspace_hit => Target::Keyspace,
        0 | 1 => Target::Shard(rng.below(u64::from(plan.shards)) as usize),
        2 => Target::Session(node),
        _ => Target::Node(node),
    };
    let fault = match kind {
        0 => Fault::Pause { node, span },
        1 => Fault::PauseMidway {
            node,
            after: rng.below(4) as u32,
            span,
        },
        2 => {
            let dir = rng.permille(600);
            faults.push((at + rng.skewed(MS, 3 * ttl), Fault::Restart { node, dir }));
            Fault::Kill { node }
        }
        3 => Fault::Kill { node },
        4 => Fault::Twin {
            node,
            copy: rng.permille(600),
        },
        5 => {
            faults.push((
                at + rng.skewed(MS, 3 * ttl),
                Fault::Restart { node, dir: true },
            ));
            Fault::Stop { node }
        }
        6 => {
            let how = *rng.pick(&[Outage::Refuse, Outage::Hang, Outage::Forget]);
            Fault::Outage {
                how,
                span: rng.skewed(MS, 2 * ttl),
            }
        }
        7 => Fault::Cut {
            node,
            how: *rng.pick(&[Cut::Requests, Cut::Replies, Cut::Both]),
            span,
        },
        8 => Fault::Slow {
            node,
            by: rng.skewed(MS, ttl / 4),
            span,
        },
        9 => Fault::WatchBreaks {
            node,
            span: rng.skewed(MS, ttl),
        },
        10 => Fault::WatchMute { node, span },
        11 => Fault::Wedge { node, span },
        12 => Fault::Delete { target },
        _ => Fault::Corrupt { target },
    };
    faults.push((at, fault));
}
