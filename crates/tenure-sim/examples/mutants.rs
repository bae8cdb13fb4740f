//! Hunts every mutant and prints what came of it: `cargo run -p tenure-sim --features mutants --example mutants [SEEDS]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let most = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(tenure_sim::mutants::SEEDS);
    let hunt = tenure_sim::mutants::hunt(most);
    println!(
        "{}",
        serde_json::to_string_pretty(&hunt).unwrap_or_default()
    );
    if hunt.mutants.iter().all(|mutant| mutant.killed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
