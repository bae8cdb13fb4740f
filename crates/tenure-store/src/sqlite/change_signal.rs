//! Waiting for somebody to write to the database, in this process or another.

use std::path::Path;
use std::time::Duration;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// A commit has become visible.
    Committed,
    /// The log was written to; a commit may become visible soon.
    Written,
    /// Somebody called [`Waker::wake`].
    Woken,
    /// Nothing happened in the time given.
    Silence,
}

/// How often to look when the system does not tell of changes.
pub(super) const BLIND_LOOK: Duration = Duration::from_millis(25);

/// How often to look when it does, in case a message was missed.
pub(super) const SAFETY_LOOK: Duration = Duration::from_secs(1);

pub(super) use imp::{ChangeListener, Waker};

#[cfg(target_os = "linux")]
mod imp {
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

    use super::{Duration, Path, WaitEnd};

    /// Listens to the kernel's messages about the log file.
    #[derive(Debug)]
    pub(in super::super) struct ChangeListener {
        /// `None` if the system has no more of these to give: then one looks now and then.
        inotify: Option<OwnedFd>,
        bell: Arc<OwnedFd>,
    }

    /// Ends a wait early.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Waker(Arc<OwnedFd>);

    impl Waker {
        pub(in super::super) fn wake(&self) {
            // Fails only if it has rung four thousand million million times unheard; then it rings already.
            let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
        }
    }

    impl ChangeListener {
        pub(in super::super) fn open(log: &Path) -> io::Result<(Self, Waker)> {
            let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let inotify = match listen(log) {
                Ok(inotify) => Some(inotify),
                Err(e) => {
                    tracing::warn!(path = %log.display(), error = %e, "file change notifications unavailable, polling the database instead");
                    None
                }
            };
            let waker = Waker(bell.clone());
            Ok((Self { inotify, bell }, waker))
        }

        /// An ear that hears nothing but its waker, as where the system gives no notification.
        #[cfg(test)]
        pub(in super::super) fn deaf() -> io::Result<(Self, Waker)> {
            let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let waker = Waker(bell.clone());
            Ok((
                Self {
                    inotify: None,
                    bell,
                },
                waker,
            ))
        }

        pub(in super::super) fn is_deaf(&self) -> bool {
            self.inotify.is_none()
        }

        pub(in super::super) fn wait(&mut self, at_most: Duration) -> WaitEnd {
            let timeout = Timespec {
                tv_sec: at_most.as_secs().cast_signed(),
                tv_nsec: at_most.subsec_nanos().into(),
            };
            let mut fds = vec![PollFd::new(&*self.bell, PollFlags::IN)];
            if let Some(inotify) = &self.inotify {
                fds.push(PollFd::new(inotify, PollFlags::IN));
            }
            // An interrupted wait looks like silence: one look too many does no harm.
            let _ = poll(&mut fds, Some(&timeout));
            let heard = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
            let (rung, told) = (heard(0), heard(1));
            drop(fds);
            let told = if told { self.drain() } else { WaitEnd::Silence };
            if rung {
                let mut count = [0u8; 8];
                let _ = rustix::io::read(&*self.bell, &mut count);
            }
            match (told, rung) {
                (WaitEnd::Silence, true) => WaitEnd::Woken,
                (told, _) => told,
            }
        }

        fn drain(&mut self) -> WaitEnd {
            let mut signal = WaitEnd::Silence;
            let mut lost = false;
            if let Some(fd) = &self.inotify {
                let mut buffer = [MaybeUninit::uninit(); 4096];
                let mut reader = inotify::Reader::new(fd, &mut buffer);
                while let Ok(event) = reader.next() {
                    let what = event.events();
                    lost |= what.contains(ReadFlags::IGNORED);
                    if what.intersects(ReadFlags::ATTRIB | ReadFlags::QUEUE_OVERFLOW) {
                        signal = WaitEnd::Committed;
                    } else if signal == WaitEnd::Silence {
                        signal = WaitEnd::Written;
                    }
                }
            }
            if lost {
                self.inotify = None;
            }
            signal
        }
    }

    fn listen(log: &Path) -> io::Result<OwnedFd> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&fd, log, WatchFlags::MODIFY | WatchFlags::ATTRIB)?;
        Ok(fd)
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::io;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::{Duration, Path, WaitEnd};

    /// Hears nothing but its waker.
    #[derive(Debug)]
    pub(in super::super) struct ChangeListener(Receiver<()>);

    /// Ends a wait early.
    #[derive(Clone, Debug)]
    pub(in super::super) struct Waker(SyncSender<()>);

    impl Waker {
        pub(in super::super) fn wake(&self) {
            let _ = self.0.try_send(());
        }
    }

    impl ChangeListener {
        pub(in super::super) fn open(_log: &Path) -> io::Result<(Self, Waker)> {
            let (bell, ear) = sync_channel(1);
            Ok((Self(ear), Waker(bell)))
        }

        pub(in super::super) fn is_deaf(&self) -> bool {
            true
        }

        pub(in super::super) fn wait(&mut self, at_most: Duration) -> WaitEnd {
            match self.0.recv_timeout(at_most) {
                Ok(()) => WaitEnd::Woken,
                Err(_) => WaitEnd::Silence,
            }
        }
    }
}
