//! An application that the node starts itself, and again whenever it ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use tenure::Time;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::cmd::exec::backoff::Backoff;
use crate::exit::Exit;
use crate::supervise::{Limits, Start, Supervisor, boot_now};

/// The application's process. It dies with the node, whatever becomes of that.
pub(super) struct AppProcess {
    supervisor: Supervisor,
    end: oneshot::Sender<Duration>,
    living: JoinHandle<()>,
}

impl AppProcess {
    pub(super) fn begin(command: Vec<OsString>) -> Result<Self, Exit> {
        let supervisor = Supervisor::begin(command, false).map_err(|e| {
            Exit::failed(format!(
                "the process cannot become the parent of orphaned processes \
                (PR_SET_CHILD_SUBREAPER): {e}"
            ))
        })?;
        let (end, ended) = oneshot::channel();
        let living = tokio::spawn(live(supervisor.clone(), ended));
        Ok(Self {
            supervisor,
            end,
            living,
        })
    }

    /// Asks it to stop, and kills it after `grace`.
    pub(super) async fn end(self, grace: Duration) {
        let _ = self.end.send(grace);
        let _ = self.living.await;
        self.supervisor.shutdown().await;
    }
}

async fn live(supervisor: Supervisor, mut end: oneshot::Receiver<Duration>) {
    let mut backoff = Backoff::default();
    for id in 0.. {
        let begun = boot_now();
        // No lease bounds it: nothing reaches it but through the gate, and the gate closes by the clock.
        let limits = Limits::of_lease(Time::NEVER, Time::NEVER, Duration::ZERO);
        let mut child = supervisor.start(Start {
            id,
            label: "app".to_owned(),
            env: BTreeMap::new(),
            limits,
        });
        let ended = tokio::select! {
            ended = child.ended() => ended,
            grace = &mut end => {
                supervisor.stop(&child, boot_now() + grace.unwrap_or_default());
                child.ended().await;
                return;
            }
        };
        let wait = backoff.after(boot_now().since(begun));
        warn!(end = %ended, restart_in = ?wait, "application ended, restarting");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = &mut end => return,
        }
    }
}
