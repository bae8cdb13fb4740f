//! Everything at random, from a seed; and a lease that does not stand it, so that it is known that the judge can see.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::Process;
use crate::test_cluster::{TTL, TestCluster};
use crate::worker::{Effects, Role};

const SHARDS: u32 = 16;
const NODES: [&str; 4] = ["a", "b", "c", "d"];

#[test]
fn whatever_is_killed_paused_and_restarted_no_shard_has_two_owners_and_all_come_back() {
    let site = TestCluster::new(SHARDS).with_effects();
    let lasting = if std::env::var_os("TENURE_LONG").is_some_and(|v| v == "1") {
        Duration::from_secs(60)
    } else {
        Duration::from_secs(12)
    };
    let mut chaos = Chaos::begin(&site);
    site.await_settled(&NODES);
    chaos.rage(lasting);
    chaos.calm();
    let calm = Instant::now();
    site.await_settled(&NODES);
    let verdict = site.assert_clean();
    println!(
        "{:?}: {} works, {} resumed, settled {:?} after",
        chaos.done,
        verdict.works,
        verdict.resumed,
        calm.elapsed()
    );
    assert!(
        verdict.works > SHARDS as usize * 3,
        "nothing happened: {verdict:?}"
    );
    drop(chaos);
    // P2: the resource has seen the epochs in order, and each from one process alone.
    let effects = Effects::open(&site.path("")).and_then(|effects| effects.all());
    let effects = effects.expect("the resource");
    assert!(effects.len() > 1000, "{} effects", effects.len());
    let mut known: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for (shard, epoch, pid) in effects {
        let last = known
            .insert(shard.clone(), (epoch, pid))
            .unwrap_or((epoch, pid));
        assert!(
            last == (epoch, pid) || last.0 < epoch,
            "{shard}: {last:?}, then {epoch} by {pid}"
        );
    }
    assert_eq!(known.len(), SHARDS as usize);
}

#[test]
fn the_judge_catches_a_lease_whose_owner_does_not_look_at_the_clock() {
    let site = TestCluster::new(SHARDS).with_role(Role::Naive);
    let mut processes = NODES.map(|node| site.start(node));
    site.await_served("somebody has each", |_| true);
    // Whether a sleeper works before it looks is up to the scheduler, so it is given several chances.
    for round in 0..20 {
        let sleeper = &mut processes[round % NODES.len()];
        sleeper.signal(Signal::STOP);
        thread::sleep(TTL * 3 / 2);
        sleeper.signal(Signal::CONT);
        thread::sleep(TTL / 4);
        let verdict = site.verdict();
        if verdict.overlaps.count > 0 {
            println!("caught in round {round}: {:?}", verdict.against());
            return;
        }
    }
    panic!("the judge sees nothing: {:#?}", site.verdict());
}

/// Four processes to which things happen.
struct Chaos<'a> {
    site: &'a TestCluster,
    victims: Vec<Victim>,
    /// How often what was done.
    done: BTreeMap<&'static str, u32>,
}

struct Victim {
    node: &'static str,
    process: Process,
    state: State,
    next: Instant,
    random: Random,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    Paused,
    Leaving,
    Dead,
}

impl<'a> Chaos<'a> {
    fn begin(site: &'a TestCluster) -> Self {
        let seed = std::env::var("TENURE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or(1);
        println!("TENURE_SEED={seed}");
        let victim = |(number, node): (u64, &'static str)| Victim {
            node,
            process: site.start(node),
            state: State::Running,
            next: Instant::now(),
            random: Random(seed << 8 | number),
        };
        Self {
            site,
            victims: (0..).zip(NODES).map(victim).collect(),
            done: BTreeMap::new(),
        }
    }

    /// Does something to one of them after the other.
    fn rage(&mut self, lasting: Duration) {
        let end = Instant::now() + lasting;
        for victim in &mut self.victims {
            victim.after(0.0, 1.0);
        }
        loop {
            let victim = self
                .victims
                .iter_mut()
                .min_by_key(|v| v.next)
                .expect("four");
            if victim.next > end {
                break;
            }
            thread::sleep(victim.next.saturating_duration_since(Instant::now()));
            let what = victim.happen(self.site);
            *self.done.entry(what).or_default() += 1;
        }
        let kinds = self.done.len();
        assert_eq!(kinds, 5, "not everything has happened: {:?}", self.done);
    }

    /// Everybody lives again.
    fn calm(&mut self) {
        for victim in &mut self.victims {
            while !matches!(victim.state, State::Running) {
                victim.happen(self.site);
            }
        }
    }
}

impl Victim {
    /// Does the next thing to it, and says what.
    fn happen(&mut self, site: &TestCluster) -> &'static str {
        match self.state {
            State::Running if let Some(status) = self.process.ended() => {
                panic!("{} has ended: {status}\n{}", self.node, site.scene())
            }
            State::Running => self.strike(),
            State::Paused => {
                self.process.signal(Signal::CONT);
                self.revive("woken")
            }
            State::Leaving => {
                // As an init system does it: who has not left by now is killed.
                if self.process.ended().is_none() {
                    self.process.kill();
                }
                self.process = site.start(self.node);
                self.revive("restarted")
            }
            State::Dead => {
                self.process = site.start(self.node);
                self.revive("restarted")
            }
        }
    }

    fn strike(&mut self) -> &'static str {
        match self.random.below(3) {
            0 => {
                self.process.kill();
                self.state = State::Dead;
                self.after(0.0, 1.6);
                "killed"
            }
            1 => {
                self.process.signal(Signal::TERM);
                self.state = State::Leaving;
                self.after(0.1, 1.0);
                "told to stop"
            }
            _ => {
                self.process.signal(Signal::STOP);
                self.state = State::Paused;
                self.after(0.1, 2.5);
                "paused"
            }
        }
    }

    fn revive(&mut self, how: &'static str) -> &'static str {
        self.state = State::Running;
        self.after(0.2, 1.5);
        how
    }

    /// The next thing happens between so many times the ttl from now.
    fn after(&mut self, least: f64, most: f64) {
        let part = self.random.below(1000) as f64 / 1000.0;
        self.next = Instant::now() + TTL.mul_f64(least + (most - least) * part);
    }
}

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % limit
    }
}
