//! An application that the node starts, and restarts whenever it ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use tenure::Time;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::backoff::Backoff;
use crate::process_tree::boot_now;
use crate::watchdog_client::Supervisor;
use crate::watchdog_protocol::{Limits, Start};

/// The application's process, which dies with the node, however that ends.
pub struct AppProcess {
    supervisor: Supervisor,
    end: oneshot::Sender<Duration>,
    living: JoinHandle<()>,
}

impl AppProcess {
    /// Starts the application, within a runtime.
    ///
    /// # Errors
    ///
    /// If this process cannot adopt orphans.
    pub fn begin(command: Vec<OsString>) -> io::Result<Self> {
        let supervisor = Supervisor::begin(command, false)?;
        let (end, ended) = oneshot::channel();
        let living = tokio::spawn(live(supervisor.clone(), ended));
        Ok(Self {
            supervisor,
            end,
            living,
        })
    }

    /// Asks the application to stop, and kills it after `grace`.
    pub async fn end(self, grace: Duration) {
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
