//! Commands that the program runs itself with: nodes and applications of `up` and of tests.

use std::process::ExitCode;

use clap::Subcommand;

use crate::cmd::sidecar::demo_app::DemoAppArgs;
use crate::cmd::up::counter_node::UpNodeArgs;
use crate::exit::Exit;

/// Hidden commands.
#[derive(Debug, Subcommand)]
pub(crate) enum InternalCommand {
    #[command(name = "__up-node", hide = true)]
    UpNode(UpNodeArgs),
    #[command(name = "__app", hide = true)]
    App(DemoAppArgs),
}

impl InternalCommand {
    pub(crate) fn run(self) -> Result<ExitCode, Exit> {
        match self {
            Self::UpNode(args) => within_runtime(args.run()),
            Self::App(args) => within_runtime(args.run()),
        }
    }
}

fn within_runtime(work: impl Future<Output = Result<ExitCode, Exit>>) -> Result<ExitCode, Exit> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|e| Exit::failed(format!("the async runtime cannot be started: {e}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}
