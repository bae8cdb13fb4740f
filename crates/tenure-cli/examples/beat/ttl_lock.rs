//! A lock with a ttl and without fencing, which the tests must catch.
//!
//! A process takes the lock when it is expired, renews it in time, and works in between without reading the clock. A paused
//! holder continues to work when it resumes, beside its successor.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tenure::Time;

use super::boot_now;

/// The lock, as one process sees it.
pub(crate) struct PlainLock {
    file: File,
    ttl: Duration,
    pid: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct Held {
    by: u32,
    epoch: u64,
    until: Time,
}

impl PlainLock {
    pub(crate) fn open(path: &Path, ttl: Duration) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let pid = std::process::id();
        Ok(Self { file, ttl, pid })
    }

    /// The epoch, if the lock was free.
    pub(crate) fn try_take(&mut self) -> io::Result<Option<u64>> {
        self.change(|held, now, pid| {
            (now >= held.until).then(|| {
                held.by = pid;
                held.epoch += 1;
                held.epoch
            })
        })
    }

    /// Renews the lock; returns whether this process still has it.
    pub(crate) fn renew(&mut self) -> io::Result<bool> {
        let renewed = self.change(|held, _, pid| (held.by == pid).then_some(held.epoch))?;
        Ok(renewed.is_some())
    }

    fn change(
        &mut self,
        change: impl FnOnce(&mut Held, Time, u32) -> Option<u64>,
    ) -> io::Result<Option<u64>> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        self.file.rewind()?;
        self.file.read_to_string(&mut text)?;
        let mut held: Held = serde_json::from_str(&text).unwrap_or_default();
        let now = boot_now();
        let changed = change(&mut held, now, self.pid);
        if changed.is_some() {
            held.until = now + self.ttl;
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(&serde_json::to_vec(&held)?)?;
        }
        flock(&self.file, FlockOperation::Unlock)?;
        Ok(changed)
    }
}
