//! The planner: how long a plan takes, how much it moves, how even it ends; beside other ways of placing shards.

mod baseline;

use std::hint::black_box;
use std::time::{Duration, Instant};

use tenure_core::ids::{KeyspaceName, NodeName, ShardName};
use tenure_core::plan::{
    BalanceBy, Decision, NodeIx, NodeState, Plan, PlanNode, PlanRules, PlanSettings,
    PlanShardRecord, PlanView, Planner, ViewChange, plan,
};
use tenure_core::time::Time;

use super::measure::ReportRow;
use crate::exit::Exit;
use baseline::{Placer, placers};

/// Shards and nodes, with what we aim for: a plan from nothing, and one after a small change.
const SIZES: [(u32, u32, Option<&str>, Option<&str>); 4] = [
    (1_000, 100, None, None),
    (100_000, 1_000, None, None),
    (100_000, 10_000, None, Some("≤ 5 ms")),
    (1_000_000, 1_000, Some("≤ 100 ms"), None),
];
/// The sizes at which other ways of placing shards are run, too: rendezvous looks at every node for every shard.
const COMPARED: [(u32, u32); 2] = [(1_000, 100), (100_000, 1_000)];
const LOADED: (u32, u32) = (10_000, 100);
/// Long after everything has come to rest.
const NOW: Time = Time(1_000_000_000_000_000);

pub(crate) fn measure(repeat: u32) -> Result<Vec<ReportRow>, Exit> {
    let mut rows = Vec::new();
    for (shards, nodes, full, small) in SIZES {
        let size = Size::new(shards, nodes)?;
        rows.extend(size.speed(repeat, full, small)?);
        rows.extend(size.movement()?);
    }
    for (shards, nodes) in COMPARED {
        for placer in placers() {
            rows.extend(compare(shards, nodes, &*placer));
        }
    }
    rows.extend(loads()?);
    // What is measured together is told apart.
    rows.sort_by_key(|row| row.area);
    Ok(rows)
}

fn fail(problem: impl std::fmt::Debug) -> Exit {
    Exit::failed(format!(
        "setting up the planner benchmark failed: {problem:?}"
    ))
}

fn node_name(i: u32) -> Result<NodeName, Exit> {
    NodeName::new(format!("node-{i:05}")).map_err(fail)
}

fn rules(measure: BalanceBy) -> Result<PlanRules, Exit> {
    let settings = PlanSettings {
        balance_by: measure,
        ..PlanSettings::default()
    };
    Ok(settings.check().map_err(fail)?.at_once())
}

/// One size of cluster, balanced.
struct Size {
    shards: u32,
    nodes: u32,
    view: PlanView,
    rules: PlanRules,
}

impl Size {
    fn new(shards: u32, nodes: u32) -> Result<Self, Exit> {
        let keyspace = KeyspaceName::new("bench").map_err(fail)?;
        let names = (0..nodes).map(node_name).collect::<Result<Vec<_>, _>>()?;
        let specs = (0..shards)
            .map(|i| {
                let owner = names[(i % nodes) as usize].clone();
                PlanShardRecord::owned(ShardName::index(i), owner)
            })
            .collect();
        let all = names
            .into_iter()
            .map(|n| PlanNode::new(n, Time::ZERO))
            .collect();
        Ok(Self {
            shards,
            nodes,
            view: PlanView::new(keyspace, all, specs).map_err(fail)?,
            rules: rules(BalanceBy::Shards)?,
        })
    }

    fn name(&self) -> String {
        format!("{} × {}", short(self.shards), short(self.nodes))
    }

    /// The view with one node more, in the middle of the order of names.
    fn joined(&self) -> Result<PlanView, Exit> {
        let mut view = self.view.clone();
        view.put_node(newcomer(self.nodes)?);
        Ok(view)
    }

    fn speed(
        &self,
        repeat: u32,
        aim_full: Option<&'static str>,
        aim_small: Option<&'static str>,
    ) -> Result<Vec<ReportRow>, Exit> {
        let size = self.name();
        let row = |case: &str, values: Vec<f64>, aim: Option<&'static str>| {
            let row = ReportRow::plain("planner, time", format!("{size} {case}"), "ms", values);
            match aim {
                Some(aim) => row.aiming_at(aim),
                None => row,
            }
        };
        let times = |work: &dyn Fn() -> Duration| -> Vec<f64> {
            (0..repeat).map(|_| millis(work())).collect()
        };
        let joined = self.joined()?;
        let full = times(&|| timed(|| plan(&joined, &self.rules, NOW)));
        let mut free = self.view.clone();
        for i in 0..self.shards {
            free.set_shard(tenure_core::plan::ShardIx(i), Default::default());
        }
        let first = times(&|| timed(|| plan(&free, &self.rules, NOW)));
        let planner = Planner::new(self.view.clone(), self.rules.clone());
        let mut drained = self.view.node(NodeIx(self.nodes / 2)).clone();
        drained.state = NodeState::Draining;
        let changed = PlanShardRecord::owned(ShardName::index(0), node_name(1)?);
        let after = |delta: &ViewChange| {
            let mut planner = planner.clone();
            timed(|| {
                planner.apply(delta.clone());
                planner.plan(NOW)
            })
        };
        let join = ViewChange::Node(newcomer(self.nodes)?);
        let small = [
            ("one node joins", join),
            ("one node drains", ViewChange::Node(drained)),
            ("one shard changed", ViewChange::Shard(changed)),
        ];
        let mut rows = vec![
            row("full, one node joins", full, aim_full),
            row("full, all shards free", first, None),
        ];
        for (case, delta) in &small {
            let case = format!("incremental, {case}");
            rows.push(row(&case, times(&|| after(delta)), aim_small));
        }
        let each = planner.bytes() as f64 / f64::from(self.shards);
        rows.push(ReportRow::plain(
            "planner, memory",
            size,
            "B per shard",
            vec![each],
        ));
        Ok(rows)
    }

    /// Moves beside the fewest that any planner could make for the same balance.
    fn movement(&self) -> Result<Vec<ReportRow>, Exit> {
        let size = self.name();
        let row = |case: &str, plan: &Plan, fewest: u32| {
            let pair = (f64::from(plan.moves_wanted), f64::from(fewest));
            let case = format!("{size} {case}");
            let name = "the fewest possible";
            ReportRow::beside("planner, moves", case, "moves", name, vec![pair]).aiming_at("≤ 1.05")
        };
        let mut gone = self.view.clone();
        let mut node = gone.node(NodeIx(self.nodes / 2)).clone();
        node.state = NodeState::Draining;
        gone.put_node(node);
        Ok(vec![
            row(
                "one node joins",
                &plan(&self.joined()?, &self.rules, NOW),
                self.shards / (self.nodes + 1),
            ),
            row(
                "one node drains",
                &plan(&gone, &self.rules, NOW),
                self.shards / self.nodes,
            ),
        ])
    }
}

fn newcomer(nodes: u32) -> Result<PlanNode, Exit> {
    let name = NodeName::new(format!("node-{:05}-new", nodes / 2)).map_err(fail)?;
    Ok(PlanNode::new(name, NOW))
}

fn short(n: u32) -> String {
    match n {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{}M", n / 1_000_000),
        n if n >= 1_000 && n % 1_000 == 0 => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let begun = Instant::now();
    let done = black_box(work());
    let time = begun.elapsed();
    drop(done);
    time
}

/// Where the planner puts shards, given where they are.
fn sticky(shards: u32, nodes: &[u32], now: Option<&[u32]>) -> Result<Vec<u32>, Exit> {
    let keyspace = KeyspaceName::new("bench").map_err(fail)?;
    let mut specs = Vec::new();
    for i in 0..shards {
        let mut spec = PlanShardRecord::free(ShardName::index(i));
        if let Some(owner) = now.and_then(|now| now.get(i as usize)) {
            spec.owner = Some(node_name(*owner)?);
        }
        specs.push(spec);
    }
    let mut all = Vec::new();
    for n in nodes {
        all.push(PlanNode::new(node_name(*n)?, Time::ZERO));
    }
    let mut view = PlanView::new(keyspace, all, specs).map_err(fail)?;
    let plan = plan(&view, &rules(BalanceBy::Shards)?, NOW);
    for d in plan.actions() {
        if let Decision::Intend { shard, to, .. } | Decision::Move { shard, to, .. } = *d {
            let mut state = view.shard(shard);
            state.owner = Some(to);
            view.set_shard(shard, state);
        }
    }
    // From the order of names back to the nodes' own numbers.
    let number = |n: u32| nodes.get(n as usize).copied().unwrap_or(0);
    Ok(placed(&view, shards).into_iter().map(number).collect())
}

/// How even a way of placing is, and what part of the shards changes place when a node joins or leaves.
fn compare(shards: u32, nodes: u32, placer: &dyn Placer) -> Vec<ReportRow> {
    let all: Vec<u32> = (0..nodes).collect();
    let before = placer.place(shards, &all, None);
    let joined: Vec<u32> = (0..=nodes).collect();
    let after_join = placer.place(shards, &joined, Some(&before));
    let left: Vec<u32> = all.iter().copied().filter(|n| *n != nodes / 2).collect();
    let after_leave = placer.place(shards, &left, Some(&before));
    let changed = |after: &[u32]| {
        let moved = before.iter().zip(after).filter(|(b, a)| b != a).count();
        moved as f64 * 100.0 / f64::from(shards)
    };
    let mut counts = vec![0u32; nodes as usize];
    before.iter().for_each(|n| counts[*n as usize] += 1);
    let most = counts.iter().copied().max().unwrap_or(0);
    let even = f64::from(most) * f64::from(nodes) / f64::from(shards);
    let size = format!("{} × {} {}", short(shards), short(nodes), placer.name());
    let row = |case: &str, unit, value| {
        let area = "planner, compared with others";
        ReportRow::plain(area, format!("{size}: {case}"), unit, vec![value])
    };
    vec![
        row("max/mean", "×", even),
        row("moved by a join", "%", changed(&after_join)),
        row("moved by a leave", "%", changed(&after_leave)),
    ]
}

/// The load of the shards is as unequal as the popularity of words: the n-th has one n-th of the first.
fn loads() -> Result<Vec<ReportRow>, Exit> {
    let (shards, nodes) = LOADED;
    let loads = zipf(shards);
    let size = Size::new(shards, nodes)?;
    let row = |case: String, unit, value| {
        let case = format!("{}, Zipf: {case}", size.name());
        ReportRow::plain("planner, cost", case, unit, vec![value])
    };
    let mut rows = Vec::new();
    let mut tell = |who: &str, placed: &[u32], nodes: u32| {
        let (mean, part) = evenness(&loads, placed, nodes);
        rows.push(row(format!("{who}, max/mean"), "×", mean));
        rows.push(row(format!("{who}, max/part"), "×", part));
    };
    let all: Vec<u32> = (0..nodes).collect();
    for placer in placers() {
        tell(&placer.name(), &placer.place(shards, &all, None), nodes);
    }
    let mut view = size.view.clone();
    for (i, load) in (0..).zip(&loads) {
        if let Some(ix) = view.find_shard(&ShardName::index(i)) {
            let mut shard = view.shard(ix);
            shard.load = *load;
            view.set_shard(ix, shard);
        }
    }
    let rules = rules(BalanceBy::Cost)?;
    let settling = carry_out(&mut view, &rules);
    tell("sticky by cost", &placed(&view, shards), nodes);
    view.put_node(newcomer(nodes)?);
    let joining = carry_out(&mut view, &rules);
    tell(
        "sticky by cost after a join",
        &placed(&view, shards),
        nodes + 1,
    );
    let total: u64 = loads.iter().copied().map(u64::from).sum();
    let share = |load: u64| load as f64 * 100.0 / total as f64;
    for (what, load) in [("moved to balance", settling), ("moved by a join", joining)] {
        rows.push(row(what.to_owned(), "% of the cost", share(load)));
    }
    Ok(rows)
}

fn zipf(shards: u32) -> Vec<u32> {
    (1..=shards).map(|i| 10_000_000 / i).collect()
}

/// The most loaded node over the mean, and the worst node over its part: a shard that is hotter than the mean cannot be
/// split, so that it is its node's part, and the other nodes divide the rest.
fn evenness(loads: &[u32], placed: &[u32], nodes: u32) -> (f64, f64) {
    let mut rest: u64 = loads.iter().copied().map(u64::from).sum();
    let mean = rest as f64 / f64::from(nodes);
    let mut sorted = loads.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = u64::from(nodes);
    let mut hot = u32::MAX;
    for load in sorted {
        if left < 2 || u64::from(load) * left <= rest {
            break;
        }
        rest -= u64::from(load);
        left -= 1;
        hot = load;
    }
    let part = rest as f64 / left as f64;
    let mut carried = vec![(0u64, part); nodes as usize];
    for (node, load) in placed.iter().zip(loads) {
        let (sum, part) = &mut carried[*node as usize];
        *sum += u64::from(*load);
        if *load >= hot {
            *part = part.max(f64::from(*load));
        }
    }
    let most = carried.iter().map(|c| c.0).max().unwrap_or(0) as f64;
    let over = carried.iter().map(|(sum, part)| *sum as f64 / part);
    (most / mean, over.fold(0.0, f64::max))
}

/// The node of every shard, by the shards' own numbers.
fn placed(view: &PlanView, shards: u32) -> Vec<u32> {
    let mut placed = vec![0; shards as usize];
    for (ix, shard) in view.shards() {
        let number = view.shard_name(ix).as_str().parse::<usize>().ok();
        if let (Some(number), Some(NodeIx(node))) = (number, shard.owner) {
            placed[number] = node;
        }
    }
    placed
}

/// Plans and carries out until nothing more is wanted; gives the load that was moved.
fn carry_out(view: &mut PlanView, rules: &PlanRules) -> u64 {
    let mut moved = 0;
    loop {
        let plan = plan(view, rules, NOW);
        if plan.is_quiet() {
            return moved;
        }
        for d in plan.actions() {
            if let Decision::Move { shard: ix, to, .. } = *d {
                let mut shard = view.shard(ix);
                moved += u64::from(shard.load);
                shard.owner = Some(to);
                view.set_shard(ix, shard);
            }
        }
    }
}
