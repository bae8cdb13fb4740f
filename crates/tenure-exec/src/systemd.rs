//! Notifications of systemd, for units of `Type=notify`.
//!
//! Without a listening service manager, nothing is sent. The watchdog's signs of life come from the same runtime that the children are
//! supervised on: one that stands still sends none, and is restarted.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::task::JoinHandle;
use tracing::warn;

/// The service manager, if one listens.
#[derive(Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
}

/// Sends signs of life until dropped.
pub struct KeepAlive(JoinHandle<()>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServiceManager {
    /// The service manager that NOTIFY_SOCKET names.
    pub fn from_env() -> Self {
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

    /// Sends a notification, such as `READY=1`.
    pub fn notify(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(what.as_bytes())
        {
            warn!(%error, notification = what, "notifying systemd failed");
        }
    }

    /// Starts sending signs of life, within a runtime, if the service manager demands them from this process.
    pub fn keep_alive(&self) -> Option<KeepAlive> {
        let socket = self.socket.as_ref()?.try_clone().ok()?;
        let every = interval(
            std::env::var("WATCHDOG_USEC").ok().as_deref(),
            std::env::var("WATCHDOG_PID").ok().as_deref(),
            std::process::id(),
        )?;
        Some(KeepAlive(tokio::spawn(async move {
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
            let manager = ServiceManager {
                socket: Some(connect(&at).unwrap()),
            };
            manager.notify("READY=1");
            let mut heard = [0; 64];
            let n = server.recv(&mut heard).unwrap();
            assert_eq!(&heard[..n], b"READY=1");
        }
    }
}
