//! A network that misbehaves on demand: a TCP proxy between a client and a server.
//!
//! It runs in a thread with a runtime of its own, so that a test that blocks does not block its network.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// What happens to bytes that go one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficMode {
    /// They arrive.
    Pass,
    /// They arrive, in order, this much later.
    Delay(Duration),
    /// They wait until the flow changes, as segments do that a network drops: TCP sends them again for a long time.
    Hold,
    /// They are lost, and so is every later byte of a connection that has lost one, also when the network heals: as behind a
    /// firewall that has forgotten the connection. Nobody is told.
    Lose,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Live,
    /// The client's side is reset, the server's side is closed.
    Reset,
    /// The server's side is closed; the client is not told.
    HalfOpen,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    to_server: TrafficMode,
    to_client: TrafficMode,
    accepts: bool,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    /// The open connections, by the order of their coming.
    fates: Mutex<BTreeMap<u64, watch::Sender<Fate>>>,
    accepted: watch::Sender<u64>,
}

impl Shared {
    fn fates(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<Fate>>> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running proxy. Dropping it closes all its connections.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _stop: mpsc::Sender<()>,
}

impl TcpProxy {
    /// Starts a proxy on a free loopback port that leads to `target` and lets everything pass.
    pub fn start(target: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(Rules {
                to_server: TrafficMode::Pass,
                to_client: TrafficMode::Pass,
                accepts: true,
            }),
            fates: Mutex::default(),
            accepted: watch::Sender::new(0),
        });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, super::free_port()));
        let (stop, stopped) = mpsc::channel(1);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let inside = shared.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let runtime = runtime.expect("a runtime can be started");
            let listening = Listening {
                address,
                target,
                shared: inside,
            };
            runtime.block_on(listening.run(stopped, ready));
        };
        let thread = thread::Builder::new().name("test-proxy".to_owned());
        thread.spawn(run).expect("a thread can be started");
        is_ready.recv().expect("the proxy listens");
        Self {
            address,
            shared,
            _stop: stop,
        }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Lets everything pass again, and takes new connections.
    pub fn heal(&self) {
        self.shared.rules.send_replace(Rules {
            to_server: TrafficMode::Pass,
            to_client: TrafficMode::Pass,
            accepts: true,
        });
    }

    /// Sets what happens to bytes from the clients to the server.
    pub fn to_server(&self, flow: TrafficMode) {
        self.shared.rules.send_modify(|r| r.to_server = flow);
    }

    /// Sets what happens to bytes from the server to the clients.
    pub fn to_client(&self, flow: TrafficMode) {
        self.shared.rules.send_modify(|r| r.to_client = flow);
    }

    /// Sets what happens to bytes in both directions.
    pub fn both_ways(&self, flow: TrafficMode) {
        self.shared.rules.send_modify(|r| {
            r.to_server = flow;
            r.to_client = flow;
        });
    }

    /// Refuses new connections, as a port does on which nobody listens; those that are open stay.
    pub fn refuse(&self) {
        self.shared.rules.send_modify(|r| r.accepts = false);
    }

    /// Resets every open connection.
    pub fn reset(&self) {
        self.end_all(Fate::Reset);
    }

    /// Closes every open connection to the server and tells the clients nothing, as a server does that lost its power.
    pub fn half_open(&self) {
        self.end_all(Fate::HalfOpen);
    }

    /// How many connections there are.
    pub fn open(&self) -> usize {
        self.shared.fates().len()
    }

    /// How many connections have ever been accepted.
    pub fn accepted(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    /// Waits until that many connections have been accepted since the start.
    pub async fn until_accepted(&self, count: u64) {
        let mut accepted = self.shared.accepted.subscribe();
        // The sender is within `self`.
        let _ = accepted.wait_for(|n| *n >= count).await;
    }

    fn end_all(&self, fate: Fate) {
        for one in self.shared.fates().values() {
            one.send_replace(fate);
        }
    }
}

struct Listening {
    address: SocketAddr,
    target: SocketAddr,
    shared: Arc<Shared>,
}

impl Listening {
    async fn run(self, mut stopped: mpsc::Receiver<()>, ready: std::sync::mpsc::Sender<()>) {
        let mut rules = self.shared.rules.subscribe();
        let mut listener = TcpListener::bind(self.address).await.ok();
        if listener.is_some() {
            // Otherwise the channel closes, and the test hears of it.
            let _ = ready.send(());
        }
        drop(ready);
        loop {
            let accepts = rules.borrow_and_update().accepts;
            match (&listener, accepts) {
                (Some(_), false) => listener = None,
                (None, true) => {
                    let bound = TcpListener::bind(self.address).await;
                    listener = Some(bound.expect("the proxy's port is still free"));
                }
                _ => {}
            }
            tokio::select! {
                _ = stopped.recv() => return,
                changed = rules.changed() => if changed.is_err() { return },
                client = accept(listener.as_ref()) => self.connect(client),
            }
        }
    }

    fn connect(&self, client: TcpStream) {
        let shared = self.shared.clone();
        let (fate, mut fated) = watch::channel(Fate::Live);
        let mut number = 0;
        shared.accepted.send_modify(|n| {
            *n += 1;
            number = *n;
        });
        shared.fates().insert(number, fate);
        let target = self.target;
        tokio::spawn(async move {
            carry(client, target, &shared, &mut fated).await;
            shared.fates().remove(&number);
        });
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    match listener {
        None => std::future::pending().await,
        Some(listener) => loop {
            if let Ok((client, _)) = listener.accept().await {
                return client;
            }
        },
    }
}

/// Carries one connection to its end.
async fn carry(
    client: TcpStream,
    target: SocketAddr,
    shared: &Shared,
    fated: &mut watch::Receiver<Fate>,
) {
    let Ok(server) = TcpStream::connect(target).await else {
        return reset(client);
    };
    // Small packets in both directions: waiting to fill them would be a delay of our own making.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let mut rules = (shared.rules.subscribe(), shared.rules.subscribe());
    let ended = {
        let there = pump(&mut client_in, &mut server_out, &mut rules.0, |r| {
            r.to_server
        });
        let back = pump(&mut server_in, &mut client_out, &mut rules.1, |r| {
            r.to_client
        });
        let fate = fated.wait_for(|fate| *fate != Fate::Live);
        tokio::select! {
            fate = fate => fate.map_or(Fate::Reset, |fate| *fate),
            _ = async { tokio::join!(there, back) } => return,
        }
    };
    match ended {
        Fate::Live => {}
        Fate::Reset => {
            let _ = client_in.as_ref().set_zero_linger();
        }
        Fate::HalfOpen => {
            drop((server_in, server_out));
            swallow(&mut client_in, fated).await;
        }
    }
    // Dropping this half would say goodbye first, and then it is no reset.
    client_out.forget();
}

/// Reads what the client of a half-open connection still sends, until it gives up or is reset.
async fn swallow(client: &mut OwnedReadHalf, fated: &mut watch::Receiver<Fate>) {
    let mut buffer = vec![0; 4096];
    loop {
        tokio::select! {
            read = client.read(&mut buffer) => if matches!(read, Ok(0) | Err(_)) { return },
            _ = fated.wait_for(|fate| *fate == Fate::Reset) => {
                let _ = client.as_ref().set_zero_linger();
                return;
            }
        }
    }
}

fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// Carries bytes one way until either side ends.
async fn pump(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    rules: &mut watch::Receiver<Rules>,
    which: fn(&Rules) -> TrafficMode,
) {
    let (sender, mut late) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = read_in(from, sender);
    let writing = async move {
        let mut lost = false;
        while let Some((came, bytes)) = late.recv().await {
            // A stream with a hole in it is nothing that TCP could bring about.
            lost = lost || !admit(came, rules, which).await;
            if lost {
                continue;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // An end of the stream waits its turn behind the bytes, and is held with them.
        if !lost && admit(Instant::now(), rules, which).await {
            let _ = to.shutdown().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::join!(reading, writing);
}

async fn read_in(
    from: &mut OwnedReadHalf,
    sender: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0
            || sender
                .send((Instant::now(), buffer[..read].to_vec()))
                .is_err()
        {
            return Ok(());
        }
    }
}

/// Waits until bytes that came at `came` may go on; false if they are lost.
async fn admit(
    came: Instant,
    rules: &mut watch::Receiver<Rules>,
    which: fn(&Rules) -> TrafficMode,
) -> bool {
    loop {
        let flow = which(&rules.borrow_and_update());
        match flow {
            TrafficMode::Pass => return true,
            TrafficMode::Lose => return false,
            TrafficMode::Delay(late) => {
                tokio::select! {
                    () = sleep_until(came + late) => return true,
                    changed = rules.changed() => if changed.is_err() { return false },
                }
            }
            TrafficMode::Hold => {
                if rules.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
