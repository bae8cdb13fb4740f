//! The node processes of `tenure up`: started, watched, started again, and ended.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_exec::{is_stopped, this_program};
use tokio::sync::mpsc;

use super::node_report::NodeReport;
use crate::cmd::exec::Signals;
use crate::config::duration;
use crate::exit::Exit;

/// How long a node that died stays dead: long enough to see the others take over.
const ABSENCE: Duration = Duration::from_secs(6);
/// How long a node may take to end in good order.
const FAREWELL: Duration = Duration::from_secs(5);

/// What is to be run.
#[derive(Clone, Debug)]
pub(super) struct UpConfig {
    pub(super) store: String,
    pub(super) cluster: String,
    pub(super) shards: u32,
    pub(super) nodes: u32,
    pub(super) ttl: Option<Duration>,
    pub(super) work: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) trace: Option<PathBuf>,
}

/// News and the number of the node that it is from, counted from one.
pub(super) type NumberedReport = (u32, NodeReport);

/// All node processes.
pub(super) struct NodeProcesses {
    plan: UpConfig,
    news: mpsc::UnboundedSender<NumberedReport>,
    members: Vec<Member>,
}

struct Member {
    number: u32,
    process: Child,
    // Its end tells the process to end.
    stdin: Option<ChildStdin>,
    state: NodeProcessState,
}

/// How a node process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeProcessState {
    Runs,
    Stopped,
    Dead(Instant),
}

impl NodeProcessState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "running",
            Self::Stopped => "paused",
            Self::Dead(_) => "dead",
        }
    }
}

impl NodeProcesses {
    pub(super) fn start(
        plan: UpConfig,
        news: mpsc::UnboundedSender<NumberedReport>,
    ) -> Result<Self, Exit> {
        let mut fleet = Self {
            members: Vec::new(),
            news,
            plan,
        };
        for number in 1..=fleet.plan.nodes {
            let member = fleet.spawn(number)?;
            fleet.members.push(member);
        }
        Ok(fleet)
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|m| m.process.id()).collect()
    }

    /// Number, process and state of each node.
    pub(super) fn states(&self) -> Vec<(u32, u32, NodeProcessState)> {
        let members = self.members.iter();
        members
            .map(|m| (m.number, m.process.id(), m.state))
            .collect()
    }

    /// Sees how the processes stand, starts dead ones again after a while, and says what changed.
    pub(super) fn look_after(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            let (number, pid) = (member.number, member.process.id());
            let state = match (member.state, member.process.try_wait()) {
                (NodeProcessState::Dead(since), _) if since.elapsed() >= ABSENCE => {
                    match self.spawn(number) {
                        Ok(again) => {
                            said.push(format!(
                                "n{number} restarted as process {}",
                                again.process.id()
                            ));
                            self.members[at] = again;
                            continue;
                        }
                        Err(fail) => {
                            said.push(format!("n{number} cannot be started: {fail}"));
                            NodeProcessState::Dead(Instant::now())
                        }
                    }
                }
                (NodeProcessState::Dead(since), _) => NodeProcessState::Dead(since),
                (_, Ok(Some(status))) => {
                    said.push(format!(
                        "n{number} (process {pid}) {}; restarting in {}",
                        ending(status),
                        duration::show(ABSENCE)
                    ));
                    NodeProcessState::Dead(Instant::now())
                }
                (before, _) => {
                    let now = if is_stopped(pid.cast_signed()) {
                        NodeProcessState::Stopped
                    } else {
                        NodeProcessState::Runs
                    };
                    match (before, now) {
                        (NodeProcessState::Runs, NodeProcessState::Stopped) => {
                            said.push(format!("n{number} (process {pid}) was paused"))
                        }
                        (NodeProcessState::Stopped, NodeProcessState::Runs) => {
                            said.push(format!("n{number} (process {pid}) continues"))
                        }
                        _ => {}
                    }
                    now
                }
            };
            self.members[at].state = state;
        }
        said
    }

    fn spawn(&self, number: u32) -> Result<Member, Exit> {
        let plan = &self.plan;
        let name = format!("n{number}");
        let mut command = this_program();
        command
            .arg("__up-node")
            .args(["--at", &plan.store, "--of", &plan.cluster, "--node", &name])
            .arg(format!("--shards={}", plan.shards))
            .arg("--data-dir")
            .arg(plan.dir.join(&name))
            .arg("--work")
            .arg(&plan.work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for `up`, which then ends its nodes in good order.
            .process_group(0);
        if let Some(ttl) = plan.ttl {
            command.arg("--ttl").arg(duration::show(ttl));
        }
        if let Some(dir) = &plan.trace {
            command
                .arg("--trace")
                .arg(dir.join(format!("{name}.jsonl")));
        }
        let mut process = command
            .spawn()
            .map_err(|e| Exit::failed(format!("node {name} cannot be started: {e}")))?;
        let news = self.news.clone();
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Ok(told) = serde_json::from_str(&line) {
                        let _ = news.send((number, told));
                    }
                }
                let _ = news.send((number, NodeReport::Gone));
            });
        }
        Ok(Member {
            number,
            stdin: process.stdin.take(),
            process,
            state: NodeProcessState::Runs,
        })
    }

    /// Ends all nodes in good order; whatever does not end in time, or when asked again, is killed.
    pub(super) async fn stop(&mut self, signals: &mut Signals) {
        for member in &mut self.members {
            member.stdin = None;
            // One that is stopped cannot hear it.
            signal(&member.process, Signal::CONT);
        }
        let until = tokio::time::sleep(FAREWELL);
        tokio::pin!(until);
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while self
            .members
            .iter_mut()
            .any(|m| !matches!(m.process.try_wait(), Ok(Some(_))))
        {
            tokio::select! {
                () = &mut until => break,
                () = signals.any() => break,
                _ = looks.tick() => {}
            }
        }
        for member in &mut self.members {
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

impl Drop for NodeProcesses {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.process.kill();
            let _ = member.process.wait();
        }
    }
}

fn signal(process: &Child, signal: Signal) {
    let _ = kill_process(Pid::from_child(process), signal);
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(9)) => "was killed".to_owned(),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        (code, None) => format!("exited with code {}", code.unwrap_or_default()),
    }
}
