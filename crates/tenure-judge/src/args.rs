//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tenure_judge::{Demands, parse_duration};

const EXAMPLES: &str = "\
Exit code: 0 nothing speaks against the run, 1 something does, 2 the logs cannot be judged.

Examples:
  tenure-judge run1/                                    safety of everything under run1/*.jsonl
  tenure-judge --shards 32 --keyspace orders run1/      the same, and all of orders/0..31 must have been worked on
  tenure-judge --shard cron --max-gap 2.4s --covered-by 1s cron-*.log
  tenure-judge --allow-restarts run1/                   children started again by their supervisor keep its epoch
  tenure-judge --expect-overlap baseline/               a lock known to be unsafe: exits 0 only if caught
  tenure-judge --json run1/ | jq .overlaps.listed[0]

A line of a log:
  {\"t\":81234567890123,\"pid\":4711,\"shard\":\"orders/17\",\"epoch\":4294967297,\"ev\":\"start\",\"node\":\"n1\"}
with t in nanoseconds of CLOCK_BOOTTIME and ev one of start, beat, effect, end. One file per process.
Half a line at the end of a file (a process killed while writing) is tolerated.";

/// Judges the logs of real processes: was there ever more than one owner?
#[derive(Debug, Parser)]
#[command(name = "tenure-judge", version, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Log files, and directories to be searched for *.jsonl files
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) logs: Vec<PathBuf>,

    /// Print the verdict as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Demand work on the shards 0..N-1 of --keyspace, and on no others
    #[arg(
        long,
        value_name = "N",
        requires = "keyspace",
        conflicts_with = "shard"
    )]
    shards: Option<u32>,

    /// The keyspace that --shards counts
    #[arg(long, value_name = "K", requires = "shards")]
    keyspace: Option<String>,

    /// Demand work on this shard, and on no others but those named alike (repeatable)
    #[arg(long, value_name = "NAME")]
    shard: Vec<String>,

    /// Nobody alive on a shard for longer than this counts against the run
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub(crate) max_gap: Option<u64>,

    /// Every shard must be alive in the last D of the run (1s, 500ms; a bare number is nanoseconds)
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    covered_by: Option<u64>,

    /// Ask for gaps and coverage from this stamp on [default: the first line]
    #[arg(long, value_name = "NS")]
    from: Option<u64>,

    /// Ask for gaps and coverage up to this stamp [default: the last line]
    #[arg(long, value_name = "NS")]
    until: Option<u64>,

    /// Let processes of one node follow each other at one epoch
    #[arg(long)]
    allow_restarts: bool,

    /// Exit 0 if an overlap is found and 1 if none is; nothing else counts
    #[arg(long)]
    pub(crate) expect_overlap: bool,
}

impl Args {
    pub(crate) fn demands(&self) -> Demands {
        let of_keyspace = self.shards.zip(self.keyspace.as_ref());
        let shards = match of_keyspace {
            Some((count, keyspace)) => Demands::of_keyspace(keyspace, count).shards,
            None => Some(self.shard.iter().cloned().collect()).filter(|_| !self.shard.is_empty()),
        };
        Demands {
            shards,
            max_gap: self.max_gap,
            covered_by: self.covered_by,
            from: self.from,
            until: self.until,
            restarts: self.allow_restarts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_flag_reaches_the_demands() {
        let line = "tenure-judge --shards 2 --keyspace k --max-gap 1us --covered-by 7 --from 3 --until 9 --allow-restarts x";
        let demands = Args::parse_from(line.split(' ')).demands();
        let expected = Demands {
            max_gap: Some(1_000),
            covered_by: Some(7),
            from: Some(3),
            until: Some(9),
            restarts: true,
            ..Demands::of_keyspace("k", 2)
        };
        assert_eq!(demands, expected);
        let named =
            Args::parse_from(["tenure-judge", "--shard", "a", "--shard", "b", "x"]).demands();
        assert_eq!(
            named.shards.unwrap().into_iter().collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(
            Args::parse_from(["tenure-judge", "x"]).demands(),
            Demands::default()
        );
    }
}
