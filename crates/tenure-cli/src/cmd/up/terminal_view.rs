//! What `tenure up` shows: changes as they come, and the picture of who owns what.

use std::collections::BTreeMap;
use std::time::Instant;

use tenure::Epoch;

use super::node_report::NodeReport;
use super::nodes::{NodeProcessState, NumberedReport};
use crate::stdout;

/// Without a terminal, the picture is a line every so many ticks.
const PLAIN_EVERY: u32 = 4;

/// What is known, and how much of it has been shown.
pub(super) struct TerminalView {
    begun: Instant,
    live: bool,
    /// Lines of the picture that stand on the terminal.
    standing: usize,
    ticks: u32,
    owners: Vec<Option<(u64, u32)>>,
    made: BTreeMap<u32, u64>,
    refused: BTreeMap<u32, u64>,
    shown: (u64, Instant),
    changes: u64,
    /// Steps of shards since the last tick, those of one kind together.
    steps: BTreeMap<(u32, String, String), Vec<u32>>,
    refusals: BTreeMap<u32, (u64, String)>,
}

impl TerminalView {
    pub(super) fn new(shards: u32, live: bool) -> Self {
        Self {
            begun: Instant::now(),
            live,
            standing: 0,
            ticks: 0,
            owners: vec![None; shards as usize],
            made: BTreeMap::new(),
            refused: BTreeMap::new(),
            shown: (0, Instant::now()),
            changes: 0,
            steps: BTreeMap::new(),
            refusals: BTreeMap::new(),
        }
    }

    /// Takes note of what a node tells.
    pub(super) fn hear(&mut self, (node, news): NumberedReport) {
        match news {
            NodeReport::Made(made) => *self.made.entry(node).or_default() += made,
            NodeReport::Refused { shard, epoch, seen } => {
                *self.refused.entry(node).or_default() += 1;
                let example = format!(
                    "such as shard {shard} at epoch {}, now at {}",
                    Epoch(epoch),
                    Epoch(seen)
                );
                self.refusals.entry(node).or_insert((0, example)).0 += 1;
            }
            NodeReport::Lease(text) => self.say(&format!("n{node}: {text}")),
            NodeReport::Trouble(text) => self.say(&format!("n{node}: {text}")),
            NodeReport::Gone => {}
            NodeReport::Step {
                shard,
                step,
                epoch,
                from,
                reason,
            } => self.step(node, shard, &step, epoch, from, &reason),
        }
    }

    fn step(
        &mut self,
        node: u32,
        shard: u32,
        step: &str,
        epoch: u64,
        from: Option<String>,
        reason: &str,
    ) {
        let Some(owner) = self.owners.get_mut(shard as usize) else {
            return;
        };
        let newest = owner.is_none_or(|(known, _)| epoch >= known);
        let what = match step {
            "claimed" => {
                self.changes += 1;
                match from.filter(|from| *from != format!("n{node}")) {
                    Some(from) => format!("claimed from {from}"),
                    None => "claimed".to_owned(),
                }
            }
            "released" => "released".to_owned(),
            "cancelled" => "cancelled work on".to_owned(),
            "quarantined" | "restored" => step.to_owned(),
            _ => String::new(),
        };
        if newest && matches!(step, "claimed" | "serving") {
            *owner = Some((epoch, node));
        } else if newest && step == "released" {
            *owner = None;
        }
        if !what.is_empty() {
            self.steps
                .entry((node, what, reason.to_owned()))
                .or_default()
                .push(shard);
        }
    }

    /// Shows what has happened since the last time.
    pub(super) fn flush(&mut self) {
        for ((node, what, reason), mut shards) in std::mem::take(&mut self.steps) {
            shards.sort_unstable();
            let (count, noun) = (
                shards.len(),
                if shards.len() == 1 { "shard" } else { "shards" },
            );
            let step = match what.split_once(" from ") {
                Some((verb, from)) => format!("{verb} {count} {noun} from {from}"),
                None => format!("{what} {count} {noun}"),
            };
            self.say(&format!("n{node} {step} ({reason}): {}", listed(&shards)));
        }
        for (node, (count, example)) in std::mem::take(&mut self.refusals) {
            self.say(&format!(
                "n{node}: {count} stale writes rejected by the resource, {example}"
            ));
        }
    }

    /// One tick: what has happened, then the picture.
    pub(super) fn draw(&mut self, nodes: &[(u32, u32, NodeProcessState)]) {
        self.flush();
        self.ticks += 1;
        if self.live {
            let picture = self.picture(nodes);
            self.wipe();
            self.standing = picture.lines().count();
            stdout::text(&picture);
        } else if self.ticks.is_multiple_of(PLAIN_EVERY) {
            let line = self.line(nodes);
            self.say(&line);
        }
    }

    /// A line that stays.
    pub(super) fn say(&mut self, line: &str) {
        self.wipe();
        stdout::line(format!(
            "{:6.1}s  {line}",
            self.begun.elapsed().as_secs_f64()
        ));
    }

    /// The last line.
    pub(super) fn summary(&self) -> String {
        format!(
            "{} changes made, {} stale writes rejected, {} owner changes",
            self.made.values().sum::<u64>(),
            self.refused.values().sum::<u64>(),
            self.changes
        )
    }

    fn wipe(&mut self) {
        if self.standing > 0 {
            stdout::text(&format!("\x1b[{}A\x1b[J", self.standing));
            self.standing = 0;
        }
    }

    fn owned(&self, node: u32) -> usize {
        self.owners
            .iter()
            .flatten()
            .filter(|(_, owner)| *owner == node)
            .count()
    }

    fn pace(&mut self) -> f64 {
        let (before, since) = self.shown;
        let made = self.made.values().sum::<u64>();
        self.shown = (made, Instant::now());
        made.saturating_sub(before) as f64 / since.elapsed().as_secs_f64().max(0.001)
    }

    fn line(&mut self, nodes: &[(u32, u32, NodeProcessState)]) -> String {
        let parts: Vec<String> = nodes
            .iter()
            .map(|(n, _, state)| match state {
                NodeProcessState::Runs => format!("n{n}: {}", self.owned(*n)),
                other => format!("n{n} ({}): {}", other.as_str(), self.owned(*n)),
            })
            .collect();
        let refused = self.refused.values().sum::<u64>();
        let pace = self.pace();
        format!(
            "shards {} · {pace:.0} changes/s · {refused} stale writes rejected",
            parts.join(", ")
        )
    }

    fn picture(&mut self, nodes: &[(u32, u32, NodeProcessState)]) -> String {
        let mut text = String::from("\n");
        for (n, pid, state) in nodes {
            let made = self.made.get(n).copied().unwrap_or_default();
            let refused = self.refused.get(n).copied().unwrap_or_default();
            text += &format!(
                "  n{n:<3} process {pid:<8} {:<8} {:>4} shards  {made:>8} changes  {refused:>4} stale writes rejected\n",
                state.as_str(),
                self.owned(*n),
            );
        }
        for (at, row) in self.owners.chunks(64).enumerate() {
            let row: String = row
                .iter()
                .map(|owner| owner.map_or('.', |(_, node)| mark(node)))
                .collect();
            text += &format!("  {:>5}  {row}\n", at * 64);
        }
        let pace = self.pace();
        text + &format!("  {pace:.0} changes/s\n")
    }
}

fn mark(node: u32) -> char {
    char::from_digit(node % 36, 36).unwrap_or('?')
}

fn listed(shards: &[u32]) -> String {
    let first: Vec<String> = shards.iter().take(12).map(ToString::to_string).collect();
    let more = if shards.len() > first.len() {
        " …"
    } else {
        ""
    };
    first.join(" ") + more
}
