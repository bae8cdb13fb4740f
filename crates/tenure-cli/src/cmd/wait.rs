//! Waits of commands: interrupted by a signal, with a message about the state that remains.

use std::time::Duration;

use tenure::AdminError;

use super::exec::Signals;
use crate::exit::Exit;

/// Waits for `work`. After Ctrl-C or SIGTERM fails with `left`, which names the state that remains.
pub(crate) async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, AdminError>>,
    left: &str,
) -> Result<T, Exit> {
    // Registered before the work begins, so that Ctrl-C works from its first progress on.
    let mut signals = Signals::new()?;
    tokio::select! {
        done = work => done.map_err(Exit::from),
        () = signals.any() => Err(Exit::failed(format!("interrupted: {left}"))),
    }
}

/// Returns `true` for a limit of zero: the command does not wait.
pub(crate) fn at_once(limit: Duration) -> bool {
    limit.is_zero()
}
