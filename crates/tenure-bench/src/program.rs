//! The `tenure` program that benchmarks start as processes.

use std::path::PathBuf;

use clap::Args;
use tenure_console::program;

use crate::exit::Exit;

/// Option of benchmarks that start `tenure` processes.
#[derive(Clone, Debug, Args)]
pub(crate) struct TenureProgram {
    /// `tenure` program to start; default: TENURE_BIN, else the file beside this program
    #[arg(long, value_name = "FILE")]
    tenure_bin: Option<PathBuf>,
}

impl TenureProgram {
    /// Path of the program.
    pub(crate) fn path(&self) -> Result<PathBuf, Exit> {
        program::tenure(self.tenure_bin.as_deref()).map_err(Exit::usage)
    }
}
