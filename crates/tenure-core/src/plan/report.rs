//! A plan for people and programs: names instead of numbers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::decision::{Balance, Decision, Plan};
use super::input::{NodeIx, PlanView};
use super::reason::PlanReason;

/// A plan with names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PlanReport {
    /// The keyspace.
    pub keyspace: String,
    /// How many shards it has.
    pub shards: usize,
    /// What is to be done, the most urgent first.
    pub changes: Vec<PlannedChange>,
    /// How many shards stay although they would go elsewhere, by reason.
    pub stays: Vec<UnchangedShards>,
    /// How many moves there would be without budgets.
    pub moves_wanted: u32,
    /// How many of them are made now.
    pub moves_allowed: u32,
    /// What is put off for the sake of calm: how many shards, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<UnchangedShards>,
    /// How evenly things are spread now, and after this plan.
    pub balance: BalanceBeforeAfter,
    /// Every node.
    pub nodes: Vec<PlannedNode>,
    /// What somebody should put right.
    pub problems: Vec<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PlannedChange {
    /// `intend`, `move` or `cancel`.
    pub action: &'static str,
    /// The shard, without its keyspace.
    pub shard: String,
    /// Who has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Who is to have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, as half a sentence.
    pub explanation: &'static str,
}

/// Shards that stay for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UnchangedShards {
    /// Why, as one word.
    pub reason: &'static str,
    /// Why, as half a sentence.
    pub explanation: &'static str,
    /// How many.
    pub shards: u32,
    /// The first few of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
}

/// Balance, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BalanceBeforeAfter {
    /// Now.
    pub before: Evenness,
    /// After this plan.
    pub after: Evenness,
}

/// How evenly things are spread over the nodes that take shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Evenness {
    /// The most shards that a node has.
    pub most: u32,
    /// The fewest.
    pub least: u32,
    /// The fullest node over its share, in thousandths.
    pub shards_permille: u32,
    /// The same for load.
    pub load_permille: u32,
    /// Shards that no node has or is to have.
    pub homeless: u32,
}

impl From<Balance> for Evenness {
    fn from(b: Balance) -> Self {
        Self {
            most: b.most,
            least: b.least,
            shards_permille: b.shards_permille,
            load_permille: b.load_permille,
            homeless: b.homeless,
        }
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PlannedNode {
    /// Its name.
    pub node: String,
    /// Whether it takes and keeps shards.
    pub state: String,
    /// Its part.
    pub weight: u32,
    /// Its zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its shards now and after this plan.
    pub shards: (u32, u32),
    /// Their load now and after this plan.
    pub load: (u64, u64),
}

/// How many shards of a kind are named before "…".
const SUCH_AS: usize = 3;
/// How many changes are shown as text before "and so many more".
const SHOWN: usize = 40;

impl PlanReport {
    /// The report of a plan that was made on this view.
    pub fn new(view: &PlanView, plan: &Plan) -> Self {
        let shard = |d: &Decision| view.shard_name(d.shard()).to_string();
        let node = |n: NodeIx| view.node(n).name.to_string();
        let change = |d: &Decision| {
            let (action, from, to) = match *d {
                Decision::Intend { to, .. } => ("assign", None, Some(node(to))),
                Decision::Move { from, to, .. } => ("move", Some(node(from)), Some(node(to))),
                Decision::Cancel { .. } => ("abort", None, None),
                Decision::Stay { .. } => return None,
            };
            Some(PlannedChange {
                action,
                shard: shard(d),
                from,
                to,
                reason: d.reason().as_str(),
                explanation: d.reason().text(),
            })
        };
        let mut stays: BTreeMap<PlanReason, (u32, Vec<String>)> = BTreeMap::new();
        for d in plan.decisions.iter().filter(|d| !d.acts()) {
            let (count, names) = stays.entry(d.reason()).or_default();
            *count += 1;
            if names.len() < SUCH_AS {
                names.push(shard(d));
            }
        }
        let stay = |reason: PlanReason, shards: u32, examples: Vec<String>| UnchangedShards {
            reason: reason.as_str(),
            explanation: reason.text(),
            shards,
            examples,
        };
        Self {
            keyspace: view.keyspace().to_string(),
            shards: view.shard_count(),
            changes: plan.decisions.iter().filter_map(change).collect(),
            stays: stays
                .into_iter()
                .map(|(reason, (n, names))| stay(reason, n, names))
                .collect(),
            moves_wanted: plan.moves_wanted,
            moves_allowed: plan.moves_allowed,
            deferred: plan.put_off.map(|p| stay(p.reason, p.shards, Vec::new())),
            balance: BalanceBeforeAfter {
                before: plan.before.into(),
                after: plan.after.into(),
            },
            nodes: node_lines(view, plan),
            problems: plan.problems.iter().map(ToString::to_string).collect(),
        }
    }
}

fn node_lines(view: &PlanView, plan: &Plan) -> Vec<PlannedNode> {
    let mut before = vec![(0u32, 0u64); view.nodes().len()];
    for (_, shard) in view.shards() {
        if let Some(node) = shard.bound_for() {
            let (shards, load) = &mut before[node.at()];
            *shards += 1;
            *load += u64::from(shard.load);
        }
    }
    let mut after = before.clone();
    for d in plan.actions() {
        let shard = view.shard(d.shard());
        let load = u64::from(shard.load);
        if let Some(at) = shard.bound_for() {
            after[at.at()].0 -= 1;
            after[at.at()].1 -= load;
        }
        let to = match *d {
            Decision::Intend { to, .. } | Decision::Move { to, .. } => Some(to),
            _ => shard.owner,
        };
        if let Some(to) = to {
            after[to.at()].0 += 1;
            after[to.at()].1 += load;
        }
    }
    let line = |(i, n): (usize, &super::input::PlanNode)| PlannedNode {
        node: n.name.to_string(),
        state: n.state.to_string(),
        weight: n.weight,
        zone: n.zone.clone(),
        shards: (before[i].0, after[i].0),
        load: (before[i].1, after[i].1),
    };
    view.nodes().iter().enumerate().map(line).collect()
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |action: &str| self.changes.iter().filter(|c| c.action == action).count();
        writeln!(
            f,
            "keyspace {}: {} shards; {} to claim, {} of {} moves now, {} to abort",
            self.keyspace,
            self.shards,
            count("assign"),
            self.moves_allowed,
            self.moves_wanted,
            count("abort"),
        )?;
        for (when, b) in [
            ("before", &self.balance.before),
            ("after", &self.balance.after),
        ] {
            writeln!(
                f,
                "{when:<7} {} to {} shards per node, fullest {}.{:03} of its target, cost {}.{:03}, {} unassigned",
                b.least,
                b.most,
                b.shards_permille / 1000,
                b.shards_permille % 1000,
                b.load_permille / 1000,
                b.load_permille % 1000,
                b.homeless
            )?;
        }
        self.fmt_nodes(f)?;
        self.fmt_changes(f)?;
        for stay in self.stays.iter().chain(&self.deferred) {
            let such_as = match stay.examples.as_slice() {
                [] => String::new(),
                some => format!(" ({}, …)", some.join(", ")),
            };
            writeln!(
                f,
                "{} shard(s) stay, each because {}{such_as}",
                stay.shards, stay.explanation
            )?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        Ok(())
    }
}

impl PlanReport {
    fn fmt_nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changed: Vec<_> = self
            .nodes
            .iter()
            .filter(|n| n.shards.0 != n.shards.1)
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let width = changed.iter().map(|n| n.node.chars().count()).max();
        let width = width.unwrap_or(4).max(4);
        writeln!(f, "\n{:<width$}  STATE     WEIGHT  SHARDS", "NODE")?;
        for n in changed.iter().take(SHOWN) {
            writeln!(
                f,
                "{:<width$}  {:<8}  {:>6}  {} → {}",
                n.node, n.state, n.weight, n.shards.0, n.shards.1
            )?;
        }
        more(f, changed.len())
    }

    fn fmt_changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.changes.is_empty() {
            writeln!(f)?;
        }
        for c in self.changes.iter().take(SHOWN) {
            let shard = &c.shard;
            match (&c.from, &c.to) {
                (Some(from), Some(to)) => write!(f, "move {shard} from {from} to {to}")?,
                (None, Some(to)) => write!(f, "assign {shard} to {to}")?,
                _ => write!(f, "abort the move of {shard}")?,
            }
            writeln!(f, ": {}", c.explanation)?;
        }
        more(f, self.changes.len())?;
        if !self.changes.is_empty() && !self.stays.is_empty() {
            writeln!(f)?;
        }
        Ok(())
    }
}

fn more(f: &mut fmt::Formatter<'_>, lines: usize) -> fmt::Result {
    match lines.checked_sub(SHOWN) {
        None | Some(0) => Ok(()),
        Some(n) => writeln!(f, "and {n} more"),
    }
}
