//! What a run is made of: drawn from the seed once, so that parts of it can be left out and the rest stays as it was.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::ids::NodeName;
use tenure_core::record::{AssignedBy, PlanningSettings, Role};
use tenure_core::router::HoldLimits;
use tenure_core::settings::Timing;

use crate::clients::Traffic;
use crate::clock::{Clock, Instant, MS, SEC};
use crate::fault::Fault;
use crate::generate;
use crate::generate_features;
use crate::generate_traffic;
use crate::lease_tampering::LeaseTamperingConfig;
use crate::lifecycle;
use crate::mixed;
use crate::phase_faults::PhaseFault;
use crate::rng::Rng;
use crate::world::KEYSPACE;

/// What a store is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Sessions are records; changes are told as they happen (NATS, PostgreSQL).
    Watched,
    /// Sessions are records; all processes are on one machine and share its clock (SQLite).
    OneMachine,
    /// The store keeps the time of sessions by leases of its own (etcd).
    Leased,
    /// Sessions are records; changes are found by asking now and then (S3).
    Polled,
}

/// What a run is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Faults of all kinds, then healing: P1, P2, P6, P7.
    Chaos,
    /// The same with clocks that break the assumption of P1: everything but P1.
    Beyond,
    /// Nothing goes wrong: P7, and nothing moves once everything is served.
    Rest,
    /// One outage that nobody may notice (P5).
    ShortOutage,
    /// One outage that costs the leases, but no shard its owner (P5).
    LongOutage,
    /// One node dies and does not come back (P5).
    OneDeath,
    /// Nodes join, drain and are restarted in good order, and nothing goes wrong: P4.
    Planned,
}

impl Class {
    /// Whether one fault happens and nothing else, so that what may change is known exactly.
    pub(crate) fn is_local(self) -> bool {
        !matches!(self, Self::Chaos | Self::Beyond | Self::Planned)
    }
}

/// How messages travel. Probabilities are per thousand messages.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct NetMix {
    pub delay: (u64, u64),
    pub spike: u32,
    pub spike_max: u64,
    pub lose_request: u32,
    pub lose_reply: u32,
    pub duplicate: u32,
    pub late: u32,
    pub late_max: u64,
    pub refuse: u32,
}

/// How a watch tells. Probabilities are per thousand deliveries.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct WatchMix {
    pub delay: (u64, u64),
    pub late: u32,
    pub drop: u32,
    pub repeat: u32,
    pub breaks: u32,
    pub poll: u64,
}

/// How the application behaves. Probabilities are per thousand loads or drains.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct AppMix {
    pub load: (u64, u64),
    pub catch_up: (u64, u64),
    pub load_fails: u32,
    pub load_hangs: u32,
    pub drain: (u64, u64),
    pub stubborn: u32,
    pub run_ends: u32,
}

/// A keyspace beside the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its name.
    pub name: &'static str,
    /// Whether its shards are named: an operator creates each. Otherwise their number is fixed.
    pub named: bool,
    /// How many shards it has, in the end.
    pub shards: u32,
    /// Who assigns them.
    pub mode: AssignedBy,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Where chance comes from.
    pub seed: u64,
    /// What it is to show.
    pub class: Class,
    /// What the store is like.
    pub family: Family,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many shards the first keyspace has.
    pub shards: u32,
    /// Who assigns them.
    pub mode: AssignedBy,
    /// How a leader plans for them.
    pub spec: PlanningSettings,
    /// Whether the application can load a shard while another node serves it.
    pub catches_up: bool,
    /// Whether it then reads what the last owner wrote up to its seal: an application that does not loses it.
    pub reads_tail: bool,
    /// A fault that waits for a move.
    pub ambush: Option<PhaseFault>,
    /// Further keyspaces.
    pub others: Vec<Other>,
    /// How many processes look on and own nothing. They are numbered after the nodes.
    pub observers: usize,
    /// How many routers there are. They are numbered after the observers.
    pub routers: usize,
    /// Number of processes that plan and own nothing. They are numbered after the routers.
    pub planners: usize,
    /// Duration of pauses of planned moves; `None`: until they are resumed.
    pub pause_lasts: Option<Duration>,
    /// The numbers of the keyspaces that each node serves, the first one being 0; none at all: every node serves all of them.
    pub serves: Vec<BTreeSet<usize>>,
    /// What clients send through them.
    pub traffic: Traffic,
    /// The times and limits of every node.
    pub timing: Timing,
    /// The clock of each node's first machine.
    pub clocks: Vec<Clock>,
    /// When each node starts.
    pub starts: Vec<Instant>,
    /// How messages travel.
    pub net: NetMix,
    /// How watches tell.
    pub watch: WatchMix,
    /// How the application behaves.
    pub app: AppMix,
    /// How late timers are.
    pub jitter: u64,
    /// Whether a process that wakes up handles what it missed in any order.
    pub shuffle: bool,
    /// What goes wrong, and when.
    pub faults: Vec<(Instant, Fault)>,
    /// From here on nothing goes wrong any more.
    pub heal_at: Instant,
    /// Which of the dead nodes come back then.
    pub revive: Vec<bool>,
    /// The run is over.
    pub end_at: Instant,
    /// What hands do to leases.
    pub meddling: LeaseTamperingConfig,
    /// Whether nodes whose sessions ran out while others lived wait for an operator.
    pub manual: bool,
}

/// What to leave out of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// Numbers of faults.
    pub faults: BTreeSet<usize>,
    /// Delays, losses and repetitions of messages.
    pub net: bool,
    /// Faults of watches.
    pub watch: bool,
    /// Slow and failing applications.
    pub app: bool,
    /// Differences between clocks.
    pub clocks: bool,
}

impl RunConfig {
    /// What this seed means.
    pub fn draw(seed: u64) -> Self {
        let mut plan = Self::unmixed(seed);
        mixed::add(&mut plan);
        plan
    }

    /// The plan of this seed with equal nodes, as seeds were drawn before nodes differed.
    pub fn unmixed(seed: u64) -> Self {
        let mut plan = Self::undeleted(seed);
        lifecycle::add_deletions(&mut plan);
        plan
    }

    /// What this seed meant before named shards were deleted.
    pub fn undeleted(seed: u64) -> Self {
        let mut plan = Self::unrouted(seed);
        generate_traffic::add(&mut plan);
        plan
    }

    /// What this seed meant before there were routers and clients.
    pub fn unrouted(seed: u64) -> Self {
        let mut plan = generate::draw(seed, None);
        generate_features::add(&mut plan);
        lifecycle::add(&mut plan);
        plan
    }

    /// What this seed meant before there were further keyspaces, observers, modes and restored stores.
    pub fn plain(seed: u64) -> Self {
        generate::draw(seed, None)
    }

    /// What this seed means with so many nodes and shards.
    pub fn sized(seed: u64, nodes: usize, shards: u32) -> Self {
        generate::draw(seed, Some((nodes, shards)))
    }

    /// The numbers of all shards that somebody has to create.
    pub(crate) fn named_shards(&self) -> Vec<usize> {
        let mut next = self.shards as usize;
        let mut all = Vec::new();
        for other in &self.others {
            let end = next + other.shards as usize;
            if other.named {
                all.extend(next..end);
            }
            next = end;
        }
        all
    }

    /// The same run without what the mask names.
    #[must_use]
    pub fn masked(mut self, mask: &Mask) -> Self {
        let mut n = 0;
        self.faults.retain(|_| {
            n += 1;
            !mask.faults.contains(&(n - 1))
        });
        if mask.net {
            self.net = NetMix::calm();
        }
        if mask.watch {
            self.watch = WatchMix {
                poll: self.watch.poll,
                ..WatchMix::calm()
            };
        }
        if mask.app {
            self.app = AppMix::calm();
        }
        if mask.clocks {
            for clock in &mut self.clocks {
                clock.rate_ppm = 0;
            }
        }
        self
    }

    /// A plan in which nothing goes wrong: what scripts begin with.
    pub fn quiet(seed: u64, nodes: usize, shards: u32, timing: Timing) -> Self {
        Self {
            seed,
            class: Class::Chaos,
            family: Family::Watched,
            nodes,
            shards,
            mode: AssignedBy::Rendezvous,
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
            timing,
            clocks: vec![
                Clock {
                    offset: 1000 * SEC,
                    rate_ppm: 0
                };
                nodes
            ],
            starts: vec![0; nodes],
            net: NetMix::calm(),
            watch: WatchMix::calm(),
            app: AppMix::calm(),
            jitter: 0,
            shuffle: false,
            faults: Vec::new(),
            heal_at: Instant::MAX,
            revive: vec![true; nodes],
            end_at: Instant::MAX,
            meddling: LeaseTamperingConfig::default(),
            manual: false,
        }
    }

    /// How long after healing everything must be served: sessions of the dead expire, the living find out (at the latest
    /// on their slow tick), waits after failed loads run out, and what is restored waits for its witnesses.
    pub fn heal_bound(&self) -> u64 {
        let ttl = nanos(self.timing.ttl);
        8 * ttl
            + 2 * nanos(self.timing.tick_interval)
            + nanos(self.timing.relist_interval)
            + 2 * nanos(self.timing.load_retry_max)
            + 2 * nanos(self.timing.drain_timeout)
            + nanos(self.timing.move_retry_max)
            + nanos(self.timing.load_timeout)
            + self.calm()
            + 4 * self.watch.poll
            + 2 * SEC
            + self.meddling.delay(self.timing.ttl)
            + self.second_raise().unwrap_or(0)
    }

    /// When after healing an operator raises generations once more: for nodes that had seen the raise before they noticed
    /// that the store was put back, and so wait for another.
    pub(crate) fn second_raise(&self) -> Option<u64> {
        self.is_put_back().then(|| self.notice_time())
    }

    /// Whether the store is put back under running processes.
    fn is_put_back(&self) -> bool {
        let running =
            |(_, fault): &(Instant, Fault)| matches!(fault, Fault::Restore { running: true, .. });
        self.faults.iter().any(running)
    }

    /// Whether one owner at a time is demanded. Whoever revokes a living holder's lease breaks the assumption of P1 as fast
    /// clocks do.
    pub(crate) fn clocks_hold(&self) -> bool {
        self.class != Class::Beyond && !self.meddling.revokes_living
    }

    /// How long after healing everyone has noticed that the store was put back, or that generations were raised: by the
    /// second slow look, since a request of the first may have been lost before.
    pub(crate) fn notice_time(&self) -> u64 {
        2 * nanos(self.timing.tick_interval) + nanos(self.timing.ttl)
    }

    /// How long a cluster must have been whole to be called settled: by then every debounce, reservation and slow look at
    /// everything that could still change an owner has been, on the slowest clock of all.
    pub fn settle_time(&self) -> u64 {
        let t = &self.timing;
        // A session that lost its lease by hand is found one look at a time.
        let hand = |(_, fault): &(Instant, Fault)| matches!(fault, Fault::Hand { .. });
        let looks = self.faults.iter().filter(|fault| hand(fault)).count() as u64;
        // What a watch leaves out, or what a hand or a store that was put back dates back, is found when everything is looked
        // at.
        let unheard = if self.watch.drop > 0 || looks > 0 || self.is_put_back() {
            nanos(t.relist_interval)
        } else {
            0
        };
        // Where nothing is written at rest, it takes as long as a lease to see that others live, and to say so.
        let found_out = match self.family {
            Family::Leased => nanos(self.meddling.granted(t.ttl)) * 6 / 5 + 2 * SEC,
            _ => 0,
        };
        let own = looks * nanos(t.tick_interval)
            + found_out
            + nanos(t.tick_interval.max(t.ttl * 2))
            + nanos(t.assignment_settle_time)
            + nanos(t.drain_timeout)
            + nanos(t.ttl)
            + unheard
            + self.calm();
        let rates = self.clocks.iter().map(|clock| clock.rate_ppm);
        let slowest = rates.min().unwrap_or(0).min(0);
        own * 1_000_000 / (1_000_000 + slowest) as u64
    }

    /// How long a leader may wait before it moves something for balance: for others to come to rest, for a shard to have
    /// stayed, and for nodes that have come and gone to have stayed.
    fn calm(&self) -> u64 {
        if self.mode != AssignedBy::Leader {
            return 0;
        }
        let settings = self.spec.settings();
        nanos(settings.cool_down)
            + 10 * nanos(settings.settle_time)
            + 32 * nanos(settings.rejoin_after)
    }

    /// How long nothing but renewals may be seen once everything is served.
    pub fn rest_window(&self) -> u64 {
        nanos(self.timing.tick_interval) + 2 * nanos(self.timing.ttl)
    }

    /// How many shards there are in all keyspaces.
    pub fn all_shards(&self) -> usize {
        let others: u32 = self.others.iter().map(|other| other.shards).sum();
        (self.shards + others) as usize
    }

    /// What a process of this number is.
    pub fn role(&self, node: usize) -> Role {
        match node.checked_sub(self.nodes) {
            None => Role::Node,
            Some(n) if n < self.observers => Role::Shadow,
            Some(n) if n < self.observers + self.routers => Role::Router,
            Some(_) => Role::Planner,
        }
    }

    /// How many names of processes there are.
    pub fn processes(&self) -> usize {
        self.nodes + self.observers + self.routers + self.planners
    }

    /// Adds routers that begin with the run, on machines like those of the nodes.
    #[must_use]
    pub fn with_routers(mut self, routers: usize) -> Self {
        self.routers += routers;
        for n in 0..routers {
            self.clocks.push(self.clocks[n % self.nodes]);
            self.starts.push(0);
            self.revive.push(true);
        }
        self
    }

    /// The name of a node, an observer or a router.
    pub fn name(&self, node: usize) -> String {
        match node.checked_sub(self.nodes) {
            None => format!("n{node}"),
            Some(n) if n < self.observers => format!("o{n}"),
            Some(n) if n < self.observers + self.routers => format!("r{}", n - self.observers),
            Some(n) => format!("l{}", n - self.observers - self.routers),
        }
    }

    /// The number of the node of this name.
    pub(crate) fn node_named(&self, name: &NodeName) -> Option<usize> {
        let number = name.as_str().strip_prefix('n')?.parse().ok();
        number.filter(|node| *node < self.nodes)
    }

    /// Returns whether a node serves a keyspace, both by number.
    pub fn serves(&self, node: usize, keyspace: usize) -> bool {
        let served = self.serves.get(node);
        served.is_none_or(|served| served.contains(&keyspace))
    }

    /// The names of the keyspaces in the order of their numbers.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = &'static str> {
        let others = self.others.iter().map(|other| other.name);
        std::iter::once(KEYSPACE).chain(others)
    }

    /// The number of a shard's keyspace.
    pub(crate) fn keyspace_of(&self, shard: usize) -> usize {
        let mut end = self.shards as usize;
        let mut others = self.others.iter();
        let mut keyspace = 0;
        while shard >= end
            && let Some(other) = others.next()
        {
            end += other.shards as usize;
            keyspace += 1;
        }
        keyspace
    }

    /// From when on a node that is cordoned since then gets no shards: everyone has heard of it, and what was under way is over.
    pub(crate) fn cordon_by(&self, since: Instant) -> Instant {
        let t = &self.timing;
        let under_way = 2 * nanos(t.ttl)
            + nanos(t.drain_timeout)
            + nanos(t.take_timeout)
            + self.app.load.1
            + 4 * self.watch.poll;
        if matches!(self.class, Class::Rest | Class::OneDeath | Class::Planned) {
            return since + under_way;
        }
        let heard =
            self.notice_time() + nanos(t.relist_interval) + self.second_raise().unwrap_or(0);
        since.max(self.heal_at) + heard + under_way
    }

    /// How much routers hold, and for how long: as long as a move may take.
    pub(crate) fn hold_limits(&self) -> HoldLimits {
        let t = &self.timing;
        HoldLimits {
            count: self.traffic.held,
            age: t.router_hold_timeout
                + t.drain_timeout
                + t.take_timeout
                + t.ttl * 4
                + Duration::from_nanos(2 * self.app.load.1),
            ..HoldLimits::default()
        }
    }

    /// How long after its holder's death a session is over at the latest, but for the few messages in between.
    pub fn session_bound(&self) -> u64 {
        match self.family {
            Family::Leased => {
                nanos(crate::leases::granted(self.timing.ttl)) * 11 / 10 + crate::leases::LATE
            }
            _ => nanos(self.timing.ttl) * 6 / 5,
        }
    }

    /// Any source of chance of this run.
    pub fn rng(&self, label: u64) -> Rng {
        Rng::new(self.seed).fork(label)
    }
}

/// A duration in nanoseconds.
pub fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl NetMix {
    /// A good network.
    pub fn calm() -> Self {
        Self {
            delay: (MS / 5, MS / 2),
            spike: 0,
            spike_max: 0,
            lose_request: 0,
            lose_reply: 0,
            duplicate: 0,
            late: 0,
            late_max: 0,
            refuse: 0,
        }
    }
}

impl WatchMix {
    /// A good watch.
    pub fn calm() -> Self {
        Self {
            delay: (MS / 5, MS),
            late: 0,
            drop: 0,
            repeat: 0,
            breaks: 0,
            poll: 200 * MS,
        }
    }
}

impl AppMix {
    /// A good application.
    pub fn calm() -> Self {
        Self {
            load: (MS, 10 * MS),
            catch_up: (MS / 4, 5 * MS / 2),
            load_fails: 0,
            load_hangs: 0,
            drain: (0, 5 * MS),
            stubborn: 0,
            run_ends: 0,
        }
    }
}
