//! Tries everything that a node does with a store, on a key that is nobody's.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tenure_core::ids::{LeaseId, SessionId};
use tenure_store::store_check::Finding;
use tenure_store::{
    Delete, DeleteIf, Leases, Put, PutIf, Revision, Store, StoreError, Version, Watch,
};

use super::report::{Report, shown};
use crate::connect::{random_id, within};
use crate::exit::Exit;

/// What the keys of this command begin with. No cluster's name is spelled like this in a key, so nobody mistakes it.
pub(super) const PREFIX: &str = "=doctor/";

/// How many times each thing is measured.
const ROUNDS: usize = 20;

/// How long a watch may take to show a change.
const WATCH_PATIENCE: Duration = Duration::from_secs(5);

/// A clock that is further off than this makes times in logs and records confusing.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

pub(super) struct Probe {
    store: Arc<dyn Store>,
    ttl: Duration,
    key: String,
}

impl Probe {
    pub(super) fn new(store: Arc<dyn Store>, ttl: Duration) -> Self {
        let id = SessionId(random_id());
        Self {
            store,
            ttl,
            key: format!("{PREFIX}{id}"),
        }
    }

    pub(super) async fn run(&self, report: &mut Report) -> Result<(), Exit> {
        self.read(report).await?;
        self.clock(report).await?;
        let Some(revision) = self.list(report).await? else {
            return Ok(());
        };
        let watch = self.watch(report, revision).await?;
        if let Some(leases) = self.store.leases() {
            self.lease(leases, report).await?;
        }
        let Some(version) = self.create(report).await? else {
            return Ok(());
        };
        let version = self.update(report, version).await?;
        self.stale(report, &version).await?;
        if let Some(watch) = watch {
            self.seen(report, watch).await;
        }
        self.delete(report, version).await
    }

    async fn read(&self, report: &mut Report) -> Result<(), Exit> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            if let Err(e) = within("reading a record", self.store.get(&self.key)).await? {
                report.add(refused("read", &e));
                return Ok(());
            }
            times.push(begun.elapsed());
        }
        self.time("read", times, report);
        Ok(())
    }

    /// Says how long something took, and whether that is too long for the ttl.
    fn time(&self, about: &'static str, mut times: Vec<Duration>, report: &mut Report) {
        times.sort_unstable();
        let Some(max) = times.last().copied() else {
            return;
        };
        let p50 = times[times.len() / 2];
        report.measured(about, p50, max);
        let found = format!("median {}, maximum {}", shown(p50), shown(max));
        let ttl = crate::config::duration::show(self.ttl);
        // A renewal is due every sixth of the ttl, and retried every twentieth.
        report.add(if p50 > self.ttl / 6 {
            let advice = format!(
                "too slow for a ttl of {ttl}: raise ttl to at least six times the median, or find the cause of the latency"
            );
            Finding::fail(about, found, advice)
        } else if max > self.ttl / 20 {
            let advice = format!("slow for a ttl of {ttl}: raise ttl if this latency is usual");
            Finding::warn(about, found, advice)
        } else {
            Finding::ok(about, found)
        });
    }

    async fn clock(&self, report: &mut Report) -> Result<(), Exit> {
        let before = SystemTime::now();
        let now = within("reading its clock", self.store.now()).await?;
        let after = SystemTime::now();
        report.add(match now {
            Ok(None) => Finding::ok("clock", "the store has no clock"),
            Ok(Some(now)) => {
                let ahead = now.duration_since(after).unwrap_or_default();
                let behind = before.duration_since(now).unwrap_or_default();
                let off = ahead.max(behind);
                if off > CLOCK_TOLERANCE {
                    let found = format!("{} apart from the clock of this machine", shown(off));
                    let advice = "safety does not depend on it, but times in records and logs differ: synchronize both clocks";
                    Finding::warn("clock", found, advice)
                } else {
                    Finding::ok("clock", "agrees with the clock of this machine")
                }
            }
            Err(e) => refused("clock", &e),
        });
        Ok(())
    }

    async fn list(&self, report: &mut Report) -> Result<Option<Revision>, Exit> {
        let listed = within("listing records", self.store.list(PREFIX)).await?;
        Ok(match listed {
            Ok(listing) => {
                let left = listing.entries.len();
                report.add(match left {
                    0 => Finding::ok("list", "allowed"),
                    left => Finding::warn(
                        "list",
                        format!("{left} keys of earlier checks are left"),
                        "those checks were interrupted; delete the keys that begin with `=doctor/`",
                    ),
                });
                Some(listing.revision)
            }
            Err(e) => {
                report.add(refused("list", &e));
                None
            }
        })
    }

    async fn watch(&self, report: &mut Report, from: Revision) -> Result<Option<Watch>, Exit> {
        let watch = within("starting a watch", self.store.watch(PREFIX, from)).await?;
        Ok(match watch {
            Ok(watch) => Some(watch),
            Err(e) => {
                report.add(refused("watch", &e));
                None
            }
        })
    }

    async fn lease(&self, leases: &dyn Leases, report: &mut Report) -> Result<(), Exit> {
        let id = LeaseId::of(SessionId(random_id()));
        let granted = within("granting a lease", leases.grant(id, self.ttl)).await?;
        report.add(match granted {
            Ok(granted) => {
                let shown = crate::config::duration::show;
                let found = format!("requested {}, granted {}", shown(self.ttl), shown(granted));
                if granted > self.ttl {
                    let advice = "failover takes as long as the granted ttl: the server has a higher minimum";
                    Finding::warn("lease", found, advice)
                } else {
                    Finding::ok("lease", found)
                }
            }
            Err(e) => refused("lease", &e),
        });
        Ok(())
    }

    async fn create(&self, report: &mut Report) -> Result<Option<Version>, Exit> {
        let put = PutIf::create(&self.key, *b"{}");
        Ok(
            match within("writing a record", self.store.put_if(put)).await? {
                Ok(Put::Won(version)) => {
                    report.add(Finding::ok("create", "allowed"));
                    Some(version)
                }
                Ok(Put::Lost) => {
                    report.add(broken(
                        "create",
                        "the creation of a missing key was rejected",
                    ));
                    None
                }
                Err(e) => {
                    report.add(refused("create", &e));
                    None
                }
            },
        )
    }

    async fn update(&self, report: &mut Report, version: Version) -> Result<Version, Exit> {
        let mut version = version;
        let mut times = Vec::new();
        for n in 0..ROUNDS {
            let value = format!("{{\"round\":{n}}}").into_bytes();
            let put = PutIf::update(&self.key, value, version.clone());
            let begun = Instant::now();
            match within("writing a record", self.store.put_if(put)).await? {
                Ok(Put::Won(newer)) => version = newer,
                Ok(Put::Lost) => {
                    report.add(broken(
                        "update",
                        "an update of the current version was rejected",
                    ));
                    return Ok(version);
                }
                Err(e) => {
                    report.add(refused("update", &e));
                    return Ok(version);
                }
            }
            times.push(begun.elapsed());
        }
        self.time("update", times, report);
        Ok(version)
    }

    /// A write on an outdated condition must lose: everything hangs on that.
    async fn stale(&self, report: &mut Report, present: &Version) -> Result<(), Exit> {
        let create = PutIf::create(&self.key, *b"{}");
        let outdated = within("writing a record", self.store.put_if(create)).await?;
        let late = match present {
            Version::Number(n) => Version::Number(n.wrapping_sub(1)),
            Version::Text(_) => Version::Text("outdated".into()),
        };
        let update = PutIf::update(&self.key, *b"{}", late);
        let late = within("writing a record", self.store.put_if(update)).await?;
        report.add(match (outdated, late) {
            (Ok(Put::Lost), Ok(Put::Lost)) => {
                Finding::ok("conditions", "outdated writes are rejected")
            }
            (Err(e), _) | (_, Err(e)) => refused("conditions", &e),
            (_, _) => broken("conditions", "an outdated write was accepted"),
        });
        Ok(())
    }

    async fn seen(&self, report: &mut Report, mut watch: Watch) {
        let begun = Instant::now();
        let shown_it = async {
            loop {
                match watch.next().await {
                    Ok(batch) if batch.changes.iter().any(|c| c.key() == self.key) => return Ok(()),
                    Ok(_) => {}
                    Err(end) => return Err(end),
                }
            }
        };
        let late =
            "nodes then detect changes only by periodic lists: find out what delays notifications";
        report.add(match tokio::time::timeout(WATCH_PATIENCE, shown_it).await {
            Ok(Ok(())) => Finding::ok("watch", "reports changes"),
            Ok(Err(end)) => Finding::fail("watch", end.to_string(), late),
            Err(_) => {
                let found = format!("no change reported within {}", shown(begun.elapsed()));
                Finding::fail("watch", found, late)
            }
        });
    }

    async fn delete(&self, report: &mut Report, version: Version) -> Result<(), Exit> {
        let delete = DeleteIf::new(&self.key, version);
        report.add(
            match within("deleting records", self.store.delete_if(delete)).await? {
                Ok(Delete::Won) => Finding::ok("delete", "allowed"),
                Ok(Delete::Lost) => {
                    broken("delete", "the deletion of the current version was rejected")
                }
                Err(e) => {
                    let advice = format!("grant the permission, then delete {:?}", self.key);
                    Finding::fail("delete", e.to_string(), advice)
                }
            },
        );
        Ok(())
    }
}

fn refused(about: &'static str, e: &StoreError) -> Finding {
    let advice = match e {
        StoreError::Denied { .. } => {
            "nodes need this permission; see the page of the store under docs/stores"
        }
        _ => "retry; if the error persists, check the log of the server",
    };
    Finding::fail(about, e.to_string(), advice)
}

fn broken(about: &'static str, found: &str) -> Finding {
    let advice = "the store violates guarantees that ownership depends on: do not use it";
    Finding::fail(about, found, advice)
}
