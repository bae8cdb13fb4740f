//! Handler that runs one child per activation of a shard.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::{Clock, Grant, Handler, Result, Shard, SharedState, Time};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::backoff::{Backoff, STEADY};
use crate::grant_file::{GrantFile, GrantFiles, GrantState};
use crate::process_tree::boot_now;
use crate::watchdog_client::{Running, Supervisor};
use crate::watchdog_protocol::{ChildEnd, Limits, Start};

/// Number of short-lived children in a row that is reported as a crash loop.
const LOOP: u32 = 2;

/// Names of the cluster, keyspace and node, for the environment of children.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// The cluster.
    pub cluster: String,
    /// The keyspace.
    pub keyspace: String,
    /// The node.
    pub node: String,
}

/// Condition for the restart of a child that exited while its node owns the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartCondition {
    /// Restart after every exit.
    Always,
    /// Restart if the exit code is not 0.
    OnFailure,
    /// Start again only when the node owns the shard again.
    Never,
}

/// Handler with one child process per activation. Cheap to clone.
#[derive(Clone)]
pub struct ChildHandler(Arc<Inner>);

struct Inner {
    identity: NodeIdentity,
    boot_id: Option<String>,
    files: GrantFiles,
    supervisor: Supervisor,
    restart: RestartCondition,
    kill_grace: Duration,
    hurried: watch::Receiver<bool>,
    next: AtomicU64,
}

impl ChildHandler {
    /// Creates the handler. Children get `kill_grace` between SIGTERM and SIGKILL, and none once `hurried` is true.
    pub fn new(
        identity: NodeIdentity,
        files: GrantFiles,
        supervisor: Supervisor,
        restart: RestartCondition,
        kill_grace: Duration,
        hurried: watch::Receiver<bool>,
    ) -> Self {
        Self(Arc::new(Inner {
            identity,
            boot_id: Clock::boot().id(),
            files,
            supervisor,
            restart,
            kill_grace,
            hurried,
            next: AtomicU64::new(0),
        }))
    }
}

/// State of one activation.
pub struct ChildState {
    /// Grant of the whole activation, which ends only when the shard is lost. Its use keeps the activation from ending.
    whole: Grant,
    /// Metadata of the shard.
    meta: Option<String>,
}

impl Handler for ChildHandler {
    type State = ChildState;

    async fn load(&self, shard: &Shard) -> Result<ChildState> {
        Ok(ChildState {
            whole: shard.grant().clone(),
            meta: shard.meta().map(str::to_owned),
        })
    }

    async fn run(&self, grant: Grant, state: SharedState<ChildState>) -> Result<()> {
        // A task of its own: this call is dropped when the shard is lost, the child must be seen to its end.
        let inner = self.0.clone();
        Ok(tokio::spawn(async move { inner.live(grant, state).await }).await?)
    }
}

impl Inner {
    /// Runs children one after the other until the activation ends.
    async fn live(&self, grant: Grant, state: SharedState<ChildState>) {
        // P1: the activation does not end, and the shard is not released, while the state is in use; and it is in
        // use until the child is dead and reaped.
        let Ok(state) = state.lock().await else {
            return;
        };
        let mut backoff = Backoff::default();
        let mut troubled = false;
        while grant.check().is_ok() {
            let begun = boot_now();
            let child = self.one_child(&grant, &state);
            let ended = well_in_time(&grant, &mut troubled, child).await;
            if grant.check().is_err() {
                break;
            }
            let shard = grant.shard();
            let wait = match ended {
                // Not the child's doing: the next one begins at once.
                ChildEnd::Stopped | ChildEnd::WatchdogLost => continue,
                ChildEnd::Exited(code) if !self.starts_again(code) => {
                    info!(%shard, code, "child process exited, restart condition not met");
                    if troubled {
                        grant.report_trouble(None);
                    }
                    grant.cancelled().await;
                    break;
                }
                ChildEnd::Exited(_) | ChildEnd::NotStarted(_) => {
                    backoff.after(boot_now().since(begun))
                }
            };
            let short_runs = backoff.short_lives();
            warn!(%shard, short_runs, end = %ended, restart_in = ?wait, "child process ended, restarting");
            if short_runs >= LOOP {
                troubled = true;
                grant.report_trouble(Some(&format!(
                    "the command restarts in {wait:?} after {short_runs} crashes: the last run {ended}"
                )));
            }
            tokio::select! {
                () = grant.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn starts_again(&self, code: i32) -> bool {
        match self.restart {
            RestartCondition::Always => true,
            RestartCondition::OnFailure => code != 0,
            RestartCondition::Never => false,
        }
    }

    /// Runs one child. Returns when it is dead and reaped.
    async fn one_child(&self, grant: &Grant, state: &ChildState) -> ChildEnd {
        let whole = &state.whole;
        let file = self.files.of(grant.shard().shard.as_str());
        let mut known = whole.deadline();
        let limits = self.limits(whole);
        self.tell(&file, grant, limits);
        let mut child = self
            .supervisor
            .start(self.start(&file, grant, state, limits));
        let mut hurried = self.hurried.clone();
        let (mut asked, mut lost, mut hurry) = (false, false, false);
        let ended = loop {
            tokio::select! {
                biased;
                ended = child.ended() => break ended,
                () = whole.cancelled(), if !lost => {
                    lost = true;
                    file.remove();
                    self.stop(&child, boot_now() + self.kill_grace);
                }
                _ = hurried.wait_for(|hurry| *hurry), if !hurry => {
                    hurry = true;
                    self.stop(&child, boot_now());
                }
                () = grant.cancelled(), if !asked => {
                    asked = true;
                    // Time for good order, as much as the lease gives or the node's drain timeout.
                    self.stop(&child, Time::NEVER);
                }
                () = whole.renewed(known), if !lost => {
                    known = whole.deadline();
                    let limits = self.limits(whole);
                    self.supervisor.lease(&child, limits);
                    self.tell(&file, grant, limits);
                }
            }
        };
        file.remove();
        ended
    }

    fn stop(&self, child: &Running, kill_at: Time) {
        self.supervisor.stop(child, kill_at);
    }

    fn limits(&self, whole: &Grant) -> Limits {
        Limits::of_lease(whole.closes_at(), whole.deadline(), self.kill_grace)
    }

    fn start(&self, file: &GrantFile, grant: &Grant, state: &ChildState, limits: Limits) -> Start {
        let shard = grant.shard();
        let mut env = BTreeMap::from([
            ("TENURE_CLUSTER", self.identity.cluster.clone()),
            ("TENURE_KEYSPACE", self.identity.keyspace.clone()),
            ("TENURE_SHARD", shard.shard.to_string()),
            ("TENURE_EPOCH", grant.epoch().0.to_string()),
            ("TENURE_NODE", self.identity.node.clone()),
            ("TENURE_GRANT", file.path().to_string_lossy().into_owned()),
        ]);
        if let Some(meta) = &state.meta {
            env.insert("TENURE_META", meta.clone());
        }
        Start {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            label: shard.to_string(),
            env: env.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            limits,
        }
    }

    fn tell(&self, file: &GrantFile, grant: &Grant, limits: Limits) {
        let state = GrantState {
            cluster: self.identity.cluster.clone(),
            keyspace: self.identity.keyspace.clone(),
            shard: grant.shard().shard.to_string(),
            node: self.identity.node.clone(),
            epoch: grant.epoch().0,
            boot_id: self.boot_id.clone(),
            stop_time_ns: limits.closes_at,
            deadline_ns: limits.deadline,
        };
        if let Err(error) = file.write(&state) {
            // A file that is old says "no longer" too soon, never too late.
            warn!(shard = %grant.shard(), %error, file = %file.path().display(), "writing the grant file of a child failed");
        }
    }
}

/// Sees a child to its end, and takes back what was said of its predecessors once it has lived for long enough.
async fn well_in_time(
    grant: &Grant,
    troubled: &mut bool,
    child: impl Future<Output = ChildEnd>,
) -> ChildEnd {
    let mut child = pin!(child);
    if *troubled {
        tokio::select! {
            biased;
            ended = &mut child => return ended,
            () = tokio::time::sleep(STEADY) => {
                *troubled = false;
                grant.report_trouble(None);
            }
        }
    }
    child.await
}
