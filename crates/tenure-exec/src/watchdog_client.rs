//! Supervisor in the node's process: orders to the watchdog, its reports, and the end of a lost or stopped watchdog.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;

use tenure::{Clock, Time};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{error, warn};

use crate::helper;
use crate::process_tree::{self, boot_now};
use crate::watchdog_protocol::{ChildEnd, Limits, Start, WatchdogCommand, WatchdogReport};

/// How long a watchdog may take to begin, and how long to wait before the next one is tried.
const BIRTH: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(200);
/// How long to look for reports that are there already.
const GLANCE: Duration = Duration::from_millis(5);
/// How long after the time that a stop named the watchdog may take to report.
const SLOW: Duration = Duration::from_secs(1);

/// Runs children under a watchdog, and a new watchdog when one is lost. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor(mpsc::UnboundedSender<Command>);

/// A child that was started.
#[derive(Debug)]
pub struct Running {
    id: u64,
    ended: oneshot::Receiver<ChildEnd>,
}

enum Command {
    Order(WatchdogCommand),
    Start(Start, oneshot::Sender<ChildEnd>),
    Shutdown(oneshot::Sender<()>),
}

impl Supervisor {
    /// Starts supervising, within a runtime. Every child runs `command`, with its output prefixed if `prefix`.
    ///
    /// # Errors
    ///
    /// If this process cannot adopt orphans.
    pub fn begin(command: Vec<OsString>, prefix: bool) -> io::Result<Self> {
        // What a lost watchdog leaves behind falls to this process.
        process_tree::adopt_orphans()?;
        let (sender, commands) = mpsc::unbounded_channel();
        let client = Client {
            command,
            prefix,
            children: BTreeMap::new(),
        };
        tokio::spawn(client.run(commands));
        Ok(Self(sender))
    }

    /// Starts a child.
    pub fn start(&self, start: Start) -> Running {
        let (sender, ended) = oneshot::channel();
        let id = start.id;
        self.send(Command::Start(start, sender));
        Running { id, ended }
    }

    /// Tells the watchdog that the lease was renewed.
    pub fn lease(&self, child: &Running, limits: Limits) {
        let id = child.id;
        self.send(Command::Order(WatchdogCommand::Lease { id, limits }));
    }

    /// Asks a child to stop; it is killed at `kill_at` or at the end of its lease, whichever is earlier.
    pub fn stop(&self, child: &Running, kill_at: Time) {
        let id = child.id;
        self.send(Command::Order(WatchdogCommand::Stop { id, kill_at }));
    }

    /// Ends the watchdog, and returns when it is gone.
    pub async fn shutdown(self) {
        let (sender, done) = oneshot::channel();
        self.send(Command::Shutdown(sender));
        let _ = done.await;
    }

    fn send(&self, command: Command) {
        // The other end lives as long as the runtime.
        let _ = self.0.send(command);
    }
}

impl Running {
    /// Waits until the child is dead and reaped, with everything that it forked.
    pub async fn ended(&mut self) -> ChildEnd {
        (&mut self.ended).await.unwrap_or(ChildEnd::WatchdogLost)
    }
}

struct Client {
    command: Vec<OsString>,
    prefix: bool,
    children: BTreeMap<u64, Child>,
}

/// A child as this side knows it.
struct Child {
    ended: oneshot::Sender<ChildEnd>,
    limits: Limits,
    /// When the watchdog is taken for unable to kill it.
    last_resort: Time,
}

/// The connection to a watchdog.
struct Link {
    process: rustix::process::Pid,
    orders: mpsc::UnboundedSender<String>,
    reports: Lines<BufReader<OwnedReadHalf>>,
    writing: JoinHandle<()>,
}

enum Next {
    Command(Option<Command>),
    Report(Option<WatchdogReport>),
    TooLate,
}

impl Client {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let clock = Clock::boot();
        let mut link: Option<Link> = None;
        loop {
            let late = self.children.values().map(|c| c.last_resort).min();
            let reports = link.as_mut().map(|link| &mut link.reports);
            let next = tokio::select! {
                biased;
                report = next_report(reports) => Next::Report(report),
                () = clock.sleep_until(late.unwrap_or(Time::NEVER)) => Next::TooLate,
                command = commands.recv() => Next::Command(command),
            };
            match next {
                Next::Report(Some(report)) => self.hear(report),
                Next::Report(None) => {
                    warn!(
                        "watchdog process exited, killing its child processes and starting a new watchdog"
                    );
                    self.end_watchdog(link.take()).await;
                }
                Next::TooLate => {
                    if self.is_late(link.as_mut()).await {
                        warn!(
                            "watchdog process did not kill its child processes in time, killing them and the watchdog"
                        );
                        self.end_watchdog(link.take()).await;
                    }
                }
                Next::Command(Some(Command::Start(start, ended))) => {
                    if link.is_none() {
                        link = Some(self.new_watchdog().await);
                    }
                    self.start(link.as_ref(), start, ended);
                }
                Next::Command(Some(Command::Order(order))) => self.order(link.as_ref(), order),
                Next::Command(Some(Command::Shutdown(done))) => {
                    self.end(link.take()).await;
                    let _ = done.send(());
                    return;
                }
                Next::Command(None) => return,
            }
        }
    }

    async fn new_watchdog(&self) -> Link {
        loop {
            match timeout(BIRTH, self.spawn()).await {
                Ok(Ok(link)) => return link,
                Ok(Err(error)) => error!(%error, "starting the watchdog process failed, retrying"),
                Err(_) => error!("watchdog process did not become ready, starting another one"),
            }
            end_all().await;
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn spawn(&self) -> io::Result<Link> {
        let (ours, theirs) = StdStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut watchdog = process_tree::this_program();
        watchdog.arg(helper::WATCHDOG);
        if self.prefix {
            watchdog.arg("--prefix");
        }
        watchdog
            .arg("--")
            .args(&self.command)
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let process = rustix::process::Pid::from_child(&watchdog.spawn()?);
        drop(watchdog);
        let (reports, mut socket) = UnixStream::from_std(ours)?.into_split();
        let (orders, mut outbox) = mpsc::unbounded_channel::<String>();
        // A watchdog that is stopped reads nothing: then orders wait, and this side does not.
        let writing = tokio::spawn(async move {
            while let Some(line) = outbox.recv().await {
                if socket.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let mut reports = BufReader::new(reports).lines();
        match next_report(Some(&mut reports)).await {
            Some(WatchdogReport::Ready) => Ok(Link {
                process,
                orders,
                reports,
                writing,
            }),
            _ => Err(io::Error::other(
                "the watchdog process exited before it was ready",
            )),
        }
    }

    fn start(&mut self, link: Option<&Link>, start: Start, ended: oneshot::Sender<ChildEnd>) {
        let limits = start.limits;
        let child = Child {
            ended,
            limits,
            last_resort: limits.last_resort(),
        };
        self.children.insert(start.id, child);
        send(link, &WatchdogCommand::Start(start));
    }

    fn order(&mut self, link: Option<&Link>, order: WatchdogCommand) {
        match order {
            WatchdogCommand::Lease { id, limits } => {
                if let Some(child) = self.children.get_mut(&id) {
                    child.limits = limits;
                    child.last_resort = limits.last_resort();
                }
            }
            WatchdogCommand::Stop { id, kill_at } if kill_at != Time::NEVER => {
                if let Some(child) = self.children.get_mut(&id) {
                    let late = (kill_at + SLOW).min(child.limits.last_resort());
                    child.last_resort = late;
                }
            }
            _ => {}
        }
        send(link, &order);
    }

    fn hear(&mut self, report: WatchdogReport) {
        if let WatchdogReport::Ended { id, how } = report
            && let Some(child) = self.children.remove(&id)
        {
            // Whoever waited may be gone.
            let _ = child.ended.send(how);
        }
    }

    /// Whether the watchdog is late indeed. Perhaps it was this process that did not run: then its reports are there to read.
    async fn is_late(&mut self, link: Option<&mut Link>) -> bool {
        if let Some(link) = link {
            while let Ok(report) = timeout(GLANCE, next_report(Some(&mut link.reports))).await {
                match report {
                    Some(report) => self.hear(report),
                    None => return true,
                }
            }
        }
        let now = boot_now();
        self.children.values().any(|c| c.last_resort <= now)
    }

    /// Ends a watchdog that is dead or must be, and everything that it left; only then says that its children are.
    async fn end_watchdog(&mut self, link: Option<Link>) {
        drop(link);
        end_all().await;
        for (_, child) in std::mem::take(&mut self.children) {
            let _ = child.ended.send(ChildEnd::WatchdogLost);
        }
    }

    /// Lets a watchdog end by itself, with its children, and sees that it does.
    async fn end(&mut self, link: Option<Link>) {
        if let Some(Link {
            process,
            orders,
            mut reports,
            writing,
        }) = link
        {
            drop(orders);
            // Dropping the writer ends the stream only after all that was ordered has been written.
            let _ = writing.await;
            let longest = self.children.values().map(|c| c.last_resort).max();
            let limit = longest
                .unwrap_or_else(|| boot_now() + SLOW)
                .since(boot_now());
            let _ = timeout(limit, async {
                while let Some(report) = next_report(Some(&mut reports)).await {
                    self.hear(report);
                }
            })
            .await;
            tracing::debug!(
                watchdog_pid = process.as_raw_nonzero().get(),
                "watchdog process stopped"
            );
        }
        self.end_watchdog(None).await;
    }
}

/// Kills and reaps all children of this process; its only ones are a watchdog and what a watchdog left.
async fn end_all() {
    let ended = tokio::task::spawn_blocking(process_tree::end_descendants).await;
    if let Ok(Err(error)) = ended {
        error!(%error, "killing child processes of an exited watchdog failed");
    }
}

fn send(link: Option<&Link>, order: &WatchdogCommand) {
    if let Some(link) = link {
        let line = serde_json::to_string(order).unwrap_or_default() + "\n";
        // If the writer is gone so is the watchdog, and its end is about to be read.
        let _ = link.orders.send(line);
    }
}

/// The next report; `None` if the watchdog is gone or out of its mind. Waits for ever without a watchdog.
async fn next_report(
    reports: Option<&mut Lines<BufReader<OwnedReadHalf>>>,
) -> Option<WatchdogReport> {
    match reports {
        Some(reports) => {
            let line = reports.next_line().await.ok().flatten()?;
            serde_json::from_str(&line).ok()
        }
        None => std::future::pending().await,
    }
}
