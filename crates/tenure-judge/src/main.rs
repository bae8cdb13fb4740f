//! The `tenure-judge` command: reads logs, prints the verdict, exits with it.

mod args;
mod report;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tenure_judge::{Judge, ReadSummary, Verdict, read_logs};

use args::Args;

/// Nothing speaks against the run, or the expected overlap was found.
const CLEAN: u8 = 0;
/// Something speaks against the run, or the expected overlap was not found.
const AGAINST: u8 = 1;
/// The logs cannot be judged; the same code as for a wrong flag.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok((verdict, reading)) => {
            let passed = if args.expect_overlap {
                verdict.overlaps.count > 0
            } else {
                verdict.is_clean()
            };
            let text = match args.json {
                true => report::json(&verdict, reading, passed),
                false => report::text(&verdict, reading, &args),
            };
            // A reader that went away early (`| head`) has seen enough; the exit code still tells.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::from(if passed { CLEAN } else { AGAINST })
        }
        Err(reason) => {
            eprintln!("tenure-judge: {reason}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn run(args: &Args) -> Result<(Verdict, ReadSummary), String> {
    let mut judge = Judge::default();
    let reading = read_logs(&args.logs, &mut judge).map_err(|trouble| trouble.to_string())?;
    let Some(seen) = judge.seen() else {
        return Err(format!(
            "nothing to check: no complete line in {} file(s)",
            reading.files
        ));
    };
    let demands = args.demands();
    let (from, until) = (
        demands.from.unwrap_or(seen.from),
        demands.until.unwrap_or(seen.until),
    );
    if from > until {
        return Err(format!(
            "the window from {from} to {until} is empty; check --from and --until"
        ));
    }
    Ok((judge.verdict(&demands), reading))
}
