//! Takes lines one by one and passes judgement at the end.

use std::collections::BTreeMap;

use crate::checks;
use crate::history::ShardHistory;
use crate::{LogLine, Requirements, TimeWindow, Verdict};

/// Judges lines by the rules of safety alone; see [`Judge`] for demands beyond those.
pub fn judge<'a>(lines: impl IntoIterator<Item = LogLine<'a>>) -> Verdict {
    let mut judge = Judge::default();
    for line in lines {
        judge.see(&line);
    }
    judge.verdict(&Requirements::default())
}

/// Takes lines one by one, in any order, and passes judgement at the end.
#[derive(Debug, Default)]
pub struct Judge {
    lines: u64,
    seen: Option<TimeWindow>,
    shards: BTreeMap<String, ShardHistory>,
}

impl Judge {
    /// Takes note of one line.
    pub fn see(&mut self, line: &LogLine<'_>) {
        self.lines += 1;
        let seen = self.seen.get_or_insert(TimeWindow {
            from: line.t,
            until: line.t,
        });
        seen.from = seen.from.min(line.t);
        seen.until = seen.until.max(line.t);
        if !self.shards.contains_key(line.shard.as_ref()) {
            self.shards
                .insert(line.shard.clone().into_owned(), ShardHistory::default());
        }
        if let Some(shard) = self.shards.get_mut(line.shard.as_ref()) {
            shard.see(line.t, line.epoch, line.pid, line.ev, &line.node);
        }
    }

    /// How many lines there were.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// The stamps of the first and the last line in time.
    pub fn seen(&self) -> Option<TimeWindow> {
        self.seen
    }

    /// Judges what was seen.
    pub fn verdict(self, demands: &Requirements) -> Verdict {
        let mut verdict = Verdict {
            lines: self.lines,
            shards: self.shards.len(),
            ..Verdict::default()
        };
        verdict.window = self.seen.map(|seen| TimeWindow {
            from: demands.from.unwrap_or(seen.from),
            until: demands.until.unwrap_or(seen.until),
        });
        for unseen in demands
            .shards
            .iter()
            .flatten()
            .filter(|name| !self.shards.contains_key(*name))
        {
            verdict.unseen.add(|| unseen.clone());
            checks::presence(unseen, &[], demands, &mut verdict);
        }
        for (shard, log) in self.shards {
            let told = log.tell();
            checks::safety(&shard, &told, demands, &mut verdict);
            if demands
                .shards
                .as_ref()
                .is_none_or(|names| names.contains(&shard))
            {
                checks::presence(&shard, &told, demands, &mut verdict);
            } else {
                verdict.unexpected.add(|| shard.clone());
            }
        }
        verdict
            .gaps
            .sort_by_key(|gap| std::cmp::Reverse(gap.nanos()));
        verdict
    }
}
