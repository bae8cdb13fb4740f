//! Stamps release builds of the program with their commit, so that results of long simulations can be told apart.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TENURE_COMMIT");
    if std::env::var_os("TENURE_COMMIT").is_some() {
        return;
    }
    // Other builds have no stamp: it would rebuild the simulator after every commit.
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_release || std::env::var_os("CARGO_FEATURE_CLI").is_none() {
        return;
    }
    // Without git, or outside a checkout, the program has no stamp either.
    let Some(commit) = git(&["rev-parse", "HEAD"]) else {
        return;
    };
    println!("cargo::rustc-env=TENURE_COMMIT={commit}");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
