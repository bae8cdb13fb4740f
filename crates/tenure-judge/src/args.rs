//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tenure_judge::{Requirements, parse_duration};

const EXAMPLES: &str = "\
Exit code: 0 no violation found, 1 violations found, 2 the logs cannot be checked.

Examples:
  tenure-judge run1/                                    safety of everything under run1/*.jsonl
  tenure-judge --shards 32 --keyspace orders run1/      the same, and each of orders/0..31 must have been served
  tenure-judge --shard cron --max-gap 2.4s --covered-by 1s cron-*.log
  tenure-judge --allow-restarts run1/                   restarted children keep the epoch of their supervisor
  tenure-judge --expect-overlap baseline/               a lock known to be unsafe: exits 0 only if an overlap is found
  tenure-judge --json run1/ | jq .overlaps.listed[0]

A line of a log:
  {\"t\":81234567890123,\"pid\":4711,\"shard\":\"orders/17\",\"epoch\":4294967297,\"ev\":\"start\",\"node\":\"n1\"}
with t in nanoseconds of CLOCK_BOOTTIME and ev one of start, beat, effect, end. One file per process.
An incomplete last line (a process killed while writing) is tolerated.";

/// Checks the logs of real processes for overlapping owners of a shard.
#[derive(Debug, Parser)]
#[command(name = "tenure-judge", version, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Log files, and directories to search for *.jsonl files
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) logs: Vec<PathBuf>,

    /// Print the verdict as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Require that exactly the shards 0..N-1 of --keyspace were served
    #[arg(
        long,
        value_name = "N",
        requires = "keyspace",
        conflicts_with = "shard"
    )]
    shards: Option<u32>,

    /// Keyspace of the shards that --shards counts
    #[arg(long, value_name = "K", requires = "shards")]
    keyspace: Option<String>,

    /// Require that exactly the shards named by this option were served (repeatable)
    #[arg(long, value_name = "NAME")]
    shard: Vec<String>,

    /// Report shards that were not served for longer than D
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub(crate) max_gap: Option<u64>,

    /// Require that every shard was served in the last D of the run (1s, 500ms; a bare number is nanoseconds)
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    covered_by: Option<u64>,

    /// Check gaps and coverage from this timestamp on [default: the first line]
    #[arg(long, value_name = "NS")]
    from: Option<u64>,

    /// Check gaps and coverage up to this timestamp [default: the last line]
    #[arg(long, value_name = "NS")]
    until: Option<u64>,

    /// Allow successive processes of one node at one epoch
    #[arg(long)]
    allow_restarts: bool,

    /// Exit 0 if an overlap is found and 1 if not; ignore all other checks
    #[arg(long)]
    pub(crate) expect_overlap: bool,
}

impl Args {
    pub(crate) fn demands(&self) -> Requirements {
        let of_keyspace = self.shards.zip(self.keyspace.as_ref());
        let shards = match of_keyspace {
            Some((count, keyspace)) => Requirements::of_keyspace(keyspace, count).shards,
            None => Some(self.shard.iter().cloned().collect()).filter(|_| !self.shard.is_empty()),
        };
        Requirements {
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
        let expected = Requirements {
            max_gap: Some(1_000),
            covered_by: Some(7),
            from: Some(3),
            until: Some(9),
            restarts: true,
            ..Requirements::of_keyspace("k", 2)
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
            Requirements::default()
        );
    }
}
