//! Watchdog: starts the children, and kills them in time by its own clock.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, setsid};
use tenure::Time;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::helper::{HelperArgs, reaper_command};
use crate::process_tree::{self, boot_now};
use crate::watchdog_protocol::{ChildEnd, Limits, Start, WatchdogCommand, WatchdogReport};

/// Timers stand still while the machine is suspended, the clock does not: no sleep is longer than this without a look at it.
const SLICE: Duration = Duration::from_millis(250);

/// Runs until `exec` is gone and all children are dead. The standard input is the socket to `exec`.
pub(crate) fn watchdog(args: HelperArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(watch(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The reapers kill the children when this process ends.
            eprintln!("error: the watchdog process failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn watch(args: HelperArgs) -> io::Result<()> {
    // Out of reach of the terminal: Ctrl-Z and Ctrl-C are for `exec`.
    setsid()?;
    process_tree::adopt_orphans()?;
    let mut died = signal(SignalKind::child())?;
    let socket = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (orders, reports) = UnixStream::from_std(socket)?.into_split();
    let mut orders = BufReader::new(orders).lines();
    let (reporter, mut outbox) = mpsc::unbounded_channel::<WatchdogReport>();
    // `exec` may be stopped and read nothing: then reports wait, and killing does not.
    tokio::spawn(async move {
        let mut reports = reports;
        while let Some(report) = outbox.recv().await {
            let line = serde_json::to_string(&report).unwrap_or_default() + "\n";
            if reports.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let mut dog = Watchdog {
        args,
        reporter,
        children: HashMap::new(),
        unreported: Vec::new(),
        master: true,
    };
    dog.report(WatchdogReport::Ready);
    while dog.master || !dog.children.is_empty() || !dog.unreported.is_empty() {
        tokio::select! {
            biased;
            () = tokio::time::sleep(dog.patience()) => {}
            _ = died.recv() => dog.reap()?,
            line = orders.next_line(), if dog.master => {
                match line.ok().flatten().map(|line| serde_json::from_str(&line)) {
                    Some(Ok(order)) => dog.obey(order),
                    // Gone, or out of its mind.
                    Some(Err(_)) | None => dog.orphaned(),
                }
            }
        }
        dog.enforce();
    }
    Ok(())
}

struct Watchdog {
    args: HelperArgs,
    reporter: mpsc::UnboundedSender<WatchdogReport>,
    /// By the number of its reaper, which leads the child's process group.
    children: HashMap<Pid, Child>,
    /// Dead, but something that they forked may be alive.
    unreported: Vec<WatchdogReport>,
    /// Whether `exec` is there.
    master: bool,
}

struct Child {
    id: u64,
    limits: Limits,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// Asked to stop; killed at this time or at the end of the lease, whichever is earlier.
    Asked(Time),
    Killed,
}

impl Child {
    /// When the next thing has to happen to it.
    fn due(&self) -> Time {
        match self.stage {
            Stage::Running => self.limits.closes_at,
            Stage::Asked(kill_at) => kill_at.min(self.limits.kill_at),
            Stage::Killed => Time::NEVER,
        }
    }

    fn ask(&mut self, reaper: Pid, kill_at: Time) {
        match self.stage {
            Stage::Running => {
                let _ = kill_process_group(reaper, Signal::TERM);
                // A stopped process acts on it only when it goes on.
                let _ = kill_process_group(reaper, Signal::CONT);
                self.stage = Stage::Asked(kill_at);
            }
            Stage::Asked(before) => self.stage = Stage::Asked(before.min(kill_at)),
            Stage::Killed => {}
        }
    }
}

impl Watchdog {
    fn report(&self, report: WatchdogReport) {
        // Without a reader nobody needs to know.
        let _ = self.reporter.send(report);
    }

    /// How long to sleep at most.
    fn patience(&self) -> Duration {
        let due = self.children.values().map(Child::due).min();
        due.map_or(SLICE, |due| due.since(boot_now()).min(SLICE))
    }

    fn obey(&mut self, order: WatchdogCommand) {
        match order {
            WatchdogCommand::Start(start) => self.start(&start),
            WatchdogCommand::Lease { id, limits } => {
                // Whoever was asked to stop stays asked, and keeps the limits that it was asked under.
                if let Some((_, child)) = self.child(id)
                    && child.stage == Stage::Running
                {
                    child.limits = limits;
                }
            }
            WatchdogCommand::Stop { id, kill_at } => {
                if let Some((reaper, child)) = self.child(id) {
                    child.ask(reaper, kill_at);
                }
            }
        }
    }

    fn child(&mut self, id: u64) -> Option<(Pid, &mut Child)> {
        let mut children = self.children.iter_mut();
        children.find(|(_, c)| c.id == id).map(|(pid, c)| (*pid, c))
    }

    fn start(&mut self, start: &Start) {
        let how = if boot_now() >= start.limits.closes_at {
            ChildEnd::Stopped
        } else {
            match self.spawn(start) {
                Ok(reaper) => {
                    let child = Child {
                        id: start.id,
                        limits: start.limits,
                        stage: Stage::Running,
                    };
                    self.children.insert(reaper, child);
                    return;
                }
                Err(error) => ChildEnd::NotStarted(error.to_string()),
            }
        };
        self.report(WatchdogReport::Ended { id: start.id, how });
    }

    fn spawn(&self, start: &Start) -> io::Result<Pid> {
        let mut reaper = reaper_command(process_tree::this_program());
        if self.args.prefix {
            reaper.arg(format!("--label={}", start.label));
        }
        reaper
            .arg("--")
            .args(&self.args.command)
            .envs(&start.env)
            .stdin(Stdio::null());
        // From the main thread, which lives as long as this process: the reaper's life is bound to it.
        Ok(Pid::from_child(&reaper.spawn()?))
    }

    /// `exec` is dead: all children are asked to stop now and killed a grace later, never later than they would be anyway.
    fn orphaned(&mut self) {
        self.master = false;
        let now = boot_now();
        for (reaper, child) in &mut self.children {
            child.ask(*reaper, now + child.limits.grace());
        }
    }

    /// Does to every child what its time has come for.
    fn enforce(&mut self) {
        let now = boot_now();
        for (reaper, child) in &mut self.children {
            if child.stage == Stage::Running && now >= child.due() {
                child.ask(*reaper, Time::NEVER);
            }
            if matches!(child.stage, Stage::Asked(_)) && now >= child.due() {
                let _ = kill_process_group(*reaper, Signal::KILL);
                child.stage = Stage::Killed;
            }
        }
    }

    /// Reaps the dead, and kills what the children of dead reapers left behind.
    fn reap(&mut self) -> io::Result<()> {
        let mut look = !self.unreported.is_empty();
        while let Ok(Some((pid, status))) = process_tree::reap() {
            let Some(child) = self.children.remove(&pid) else {
                continue;
            };
            let asked = child.stage != Stage::Running;
            let how = match asked {
                true => ChildEnd::Stopped,
                false => ChildEnd::Exited(process_tree::exit_code(status)),
            };
            let report = WatchdogReport::Ended { id: child.id, how };
            // A reaper that exits has seen to everything below it; one that was killed has not.
            if status.terminating_signal().is_some() {
                self.unreported.push(report);
                look = true;
            } else {
                self.report(report);
            }
        }
        if look {
            let known = &self.children;
            let mut strays = process_tree::children()?;
            strays.retain(|pid| !known.contains_key(pid));
            strays.iter().copied().for_each(process_tree::kill_child);
            if strays.is_empty() {
                for report in std::mem::take(&mut self.unreported) {
                    self.report(report);
                }
            }
        }
        Ok(())
    }
}
