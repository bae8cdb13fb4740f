//! Runs seeds, or tells the story of one: `seeds FROM COUNT`, `seeds speed COUNT` (5 nodes, 16 shards, one thread),
//! `seeds replay SEED`, `seeds unmixed SEED` (what it meant before nodes differed), `seeds unrouted SEED` (what it meant before there were routers), `seeds shrink SEED`, `seeds same FROM COUNT` (all their stories as one number: a change that is
//! meant to change no story leaves it as it is).

use std::process::ExitCode;

use tenure_sim::run::{RunOptions, fingerprint, replay, replay_plan, run_seeds};
use tenure_sim::run_config::{Mask, RunConfig};
use tenure_sim::shrink::shrink;
use tenure_sim::world::ProtocolVariant;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize| args.get(n).and_then(|text| text.parse::<u64>().ok());
    match args.first().map(String::as_str) {
        Some("replay") => {
            for line in replay(
                number(1).unwrap_or(0),
                &Mask::default(),
                ProtocolVariant::default(),
            )
            .lines
            {
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Some("unmixed") => {
            let plan = RunConfig::unmixed(number(1).unwrap_or(0));
            for line in replay_plan(plan, ProtocolVariant::default()).lines {
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Some("unrouted") => {
            let plan = RunConfig::unrouted(number(1).unwrap_or(0));
            for line in replay_plan(plan, ProtocolVariant::default()).lines {
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Some("shrink") => {
            let seed = number(1).unwrap_or(0);
            let Some(shrunk) = shrink(seed, ProtocolVariant::default()) else {
                eprintln!("seed {seed} keeps every promise");
                return ExitCode::SUCCESS;
            };
            eprintln!(
                "{} with {} faults: {:?}",
                shrunk.violation, shrunk.faults, shrunk.mask
            );
            for line in replay(seed, &shrunk.mask, ProtocolVariant::default()).lines {
                println!("{line}");
            }
            ExitCode::SUCCESS
        }
        Some("speed") => {
            let options = RunOptions {
                threads: Some(1),
                size: Some((5, 16)),
                ..RunOptions::default()
            };
            let summary = run_seeds(0..number(1).unwrap_or(200), &options, |_, _| ());
            let simulated = summary.coverage.simulated_seconds as f64;
            println!(
                "{:.0} seeds/s of {:.0} simulated seconds each: {:.0} seeds/s of 120; {} failed",
                summary.seeds_per_second,
                simulated / summary.seeds as f64,
                simulated / 120.0 / summary.seconds,
                summary.failed
            );
            ExitCode::SUCCESS
        }
        Some("same") => {
            let (from, count) = (number(1).unwrap_or(0), number(2).unwrap_or(1000));
            let all = (from..from + count).fold(0u64, |all, seed| {
                all.rotate_left(1) ^ fingerprint(seed, ProtocolVariant::default())
            });
            println!("{all:016x}");
            ExitCode::SUCCESS
        }
        _ => {
            let (from, count) = (number(0).unwrap_or(0), number(1).unwrap_or(1000));
            let summary = run_seeds(from..from + count, &RunOptions::default(), |_, _| ());
            println!(
                "{}",
                serde_json::to_string_pretty(&summary).unwrap_or_default()
            );
            if summary.failed > 0 {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            }
        }
    }
}
