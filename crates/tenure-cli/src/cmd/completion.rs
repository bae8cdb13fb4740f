//! `tenure completion`: completion scripts for shells.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use crate::cli;
use crate::exit::Exit;
use crate::stdout;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure completion bash > ~/.local/share/bash-completion/completions/tenure\n  \
    tenure completion fish > ~/.config/fish/completions/tenure.fish")]
pub(crate) struct Completion {
    /// Shell that the script is for
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(&self) -> Result<ExitCode, Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "tenure", &mut script);
        stdout::text(&String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}
