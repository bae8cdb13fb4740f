//! `tenure completions`: the script that lets a shell complete our commands.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::Exit;
use crate::stdout;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure completions bash > ~/.local/share/bash-completion/completions/tenure\n  \
    tenure completions fish > ~/.config/fish/completions/tenure.fish")]
pub(crate) struct Completions {
    /// The shell to complete for
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self) -> Result<ExitCode, Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tenure", &mut script);
        stdout::text(&String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}
