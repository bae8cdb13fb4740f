//! `tenure-sim validate`: replay and checks of the traces of real nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tenure_sim::validate::{ValidationReport, validate};

use tenure_console::exit::Exit;
use tenure_console::stdout;

/// Check traces that nodes wrote with `--trace`, by replaying them
#[derive(Debug, Args)]
#[command(
    after_help = "Pass the traces of all nodes of a cluster together to compare them with each other.\n\
    Exits with 1 if there are violations, printed as FILE:LINE; with 2 if a file is unreadable or has another format.\n\n\
    Examples:\n  tenure exec --trace n1.jsonl --store sqlite:shop.db --cluster shop --singleton nightly -- ./cron\n  \
    tenure-sim validate n1.jsonl n2.jsonl\n  tenure-sim validate --json traces/*.jsonl"
)]
pub(super) struct Validate {
    /// Trace files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Validate {
    pub(super) fn run(&self) -> Result<ExitCode, Exit> {
        let report = validate(&self.files).map_err(|e| Exit::usage(e.to_string()))?;
        if report.processes == 0 {
            return Err(Exit::usage("the trace files are empty"));
        }
        if self.json {
            stdout::json(&report);
        } else {
            stdout::text(&told(&report));
        }
        Ok(match report.is_clean() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn told(report: &ValidationReport) -> String {
    let mut lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let described = lines.len() as u64;
    if report.violations > described {
        lines.push(format!("and {} more", report.violations - described));
    }
    lines.extend(report.gaps.iter().map(|gap| format!("incomplete: {gap}")));
    lines.extend([
        format!(
            "{} steps of {} processes of {} nodes; {} replayed with the same outcome; {} processes without an end",
            report.steps,
            report.processes,
            report.nodes.len(),
            report.replayed,
            report.cut_off
        ),
        format!("shards: {}", counts(&report.transitions)),
        format!(
            "successful writes: {}; failovers: {}; activations compared: {}",
            counts(&report.writes),
            report.failovers,
            report.openings
        ),
        format!(
            "maximum delay of a wake-up {:.1} ms, of a store response {:.1} ms; {} requests without a response",
            report.longest_wake_delay_ms, report.longest_answer_ms, report.unanswered
        ),
        format!("{} violations", report.violations),
    ]);
    lines.join("\n") + "\n"
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let all: Vec<String> = counts
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    match all.is_empty() {
        true => "none".to_owned(),
        false => all.join(", "),
    }
}
