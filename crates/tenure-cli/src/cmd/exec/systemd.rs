//! What a service manager is told: systemd's notifications, for units of `Type=notify`.
//!
//! Where nobody listens, nothing is sent. The watchdog's signs of life come from the same runtime that the children are
//! supervised on: one that stands still sends none, and is restarted.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::warn;

/// The service manager, if there is one that listens.
#[derive(Default)]
pub(super) struct Manager {
    socket: Option<UnixDatagram>,
}

/// Signs of life, for as long as it is kept.
pub(super) struct Watchdog(JoinHandle<()>);

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Manager {
    /// The one that the environment names.
    pub(super) fn from_env() -> Self {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
            return Self::default();
        };
        match connect(&path) {
            Ok(socket) => Self {
                socket: Some(socket),
            },
            Err(error) => {
                warn!(%error, "connecting to systemd failed");
                Self::default()
            }
        }
    }

    /// Tells it something, such as `READY=1`.
    pub(super) fn tell(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(what.as_bytes())
        {
            warn!(%error, notification = what, "notifying systemd failed");
        }
    }

    /// Sends signs of life, if it wants them from this process.
    pub(super) fn watchdog(&self) -> Option<Watchdog> {
        let socket = self.socket.as_ref()?.try_clone().ok()?;
        let every = interval(
            std::env::var("WATCHDOG_USEC").ok().as_deref(),
            std::env::var("WATCHDOG_PID").ok().as_deref(),
            std::process::id(),
        )?;
        Some(Watchdog(tokio::spawn(async move {
            let mut next = tokio::time::interval(every);
            loop {
                next.tick().await;
                // One that is lost is made up for by the next.
                let _ = socket.send(b"WATCHDOG=1");
            }
        })))
    }
}

fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Twice as often as is demanded, if it is this process that it is demanded of.
fn interval(micros: Option<&str>, pid: Option<&str>, me: u32) -> Option<Duration> {
    let micros: u64 = micros?.parse().ok().filter(|n| *n > 0)?;
    let for_me = pid.is_none_or(|pid| pid.parse() == Ok(me));
    for_me.then(|| Duration::from_micros(micros) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_are_sent_twice_as_often_as_demanded_and_only_by_whom_they_are_demanded_of() {
        let check = |micros, pid, wanted: Option<u64>| {
            assert_eq!(interval(micros, pid, 7), wanted.map(Duration::from_millis));
        };
        check(None, None, None);
        check(Some("3000000"), None, Some(1500));
        check(Some("3000000"), Some("7"), Some(1500));
        check(Some("3000000"), Some("8"), None);
        check(Some("0"), None, None);
        check(Some("soon"), None, None);
    }

    #[test]
    fn a_manager_hears_what_it_is_told_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("tenure-notify-{}", std::process::id());
        let abstracted = SocketAddr::from_abstract_name(&name).unwrap();
        for (server, at) in [
            (
                UnixDatagram::bind(&path).unwrap(),
                path.clone().into_os_string(),
            ),
            (
                UnixDatagram::bind_addr(&abstracted).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            let manager = Manager {
                socket: Some(connect(&at).unwrap()),
            };
            manager.tell("READY=1");
            let mut heard = [0; 64];
            let n = server.recv(&mut heard).unwrap();
            assert_eq!(&heard[..n], b"READY=1");
        }
    }
}
