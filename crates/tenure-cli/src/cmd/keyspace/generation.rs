//! Drawing a generation: the one step that everything begins with that gives out epochs anew (P2).
//!
//! A generation is drawn by compare-and-swap on the cluster's record before anything of it is written, so that no two ever
//! use the same one, and so that a keyspace that was lost is never taken for a new one.

use std::sync::Arc;
use std::time::Duration;

use tenure::Clock;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::{ClusterRecord, Damage, Head, Record, Unknown};
use tenure_core::view::KeyState;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::Snapshot;

/// How often a race against other writers is run again.
const CAS_ATTEMPTS: usize = 20;
/// How often what is waited for is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Draws a generation above all that the keyspace ever had, and above `above`.
pub(crate) async fn draw(
    place: &mut ClusterClient,
    config: &Config,
    name: &KeyspaceName,
    above: u32,
) -> Result<u32, Exit> {
    for _ in 0..CAS_ATTEMPTS {
        let snapshot = place.snapshot().await?;
        let highest = snapshot.highest_generation(name).max(above);
        let generation = highest.checked_add(1).ok_or_else(|| {
            Exit::usage(format!(
                "the generation of keyspace {name} cannot be raised above {}",
                u32::MAX
            ))
        })?;
        if list(place, config, &snapshot, name, generation).await? == CasResult::Done {
            return Ok(generation);
        }
    }
    Err(Exit::failed(
        "the cluster record keeps changing concurrently; run the command again",
    ))
}

/// Draws the first generation of a keyspace that never was; `None` if there was one after all.
pub(crate) async fn draw_first(
    place: &mut ClusterClient,
    config: &Config,
    name: &KeyspaceName,
) -> Result<Option<u32>, Exit> {
    for _ in 0..CAS_ATTEMPTS {
        let snapshot = place.snapshot().await?;
        if snapshot.highest_generation(name) > 0 {
            return Ok(None);
        }
        if list(place, config, &snapshot, name, 1).await? == CasResult::Done {
            return Ok(Some(1));
        }
    }
    Err(Exit::failed(
        "the cluster record keeps changing concurrently; run the command again",
    ))
}

/// Waits until a key that should come back by itself has a value again, at most until every lease has run out.
pub(crate) async fn comes_back(
    place: &ClusterClient,
    config: &Config,
    snapshot: &Snapshot,
    key: &Key,
) -> Result<bool, Exit> {
    let settings = config.settings();
    let clock = Clock::boot();
    let until = clock.now() + snapshot.proof(settings.ttl, settings.clock_drift_max_permille);
    loop {
        if place.version(key).await?.is_some() {
            return Ok(true);
        }
        if clock.now() >= until {
            return Ok(false);
        }
        clock
            .sleep_until(until.min(clock.now() + POLL_INTERVAL))
            .await;
    }
}

/// Writes down that this generation is used, on exactly the cluster's record that was seen.
async fn list(
    place: &mut ClusterClient,
    config: &Config,
    snapshot: &Snapshot,
    name: &KeyspaceName,
    generation: u32,
) -> Result<CasResult, Exit> {
    let (expect, mut record) = match snapshot.view.cluster.cell(&()) {
        Some(KeyState::Present(seen)) => {
            let mut record = (*seen.record).clone();
            record.head = record.head.next(place.nonce());
            (Expect::Version(seen.version.clone()), record)
        }
        Some(KeyState::Damaged { damage, .. }) => return Err(unreadable(damage)),
        // A node that runs knows more than the records that are left, and writes it anew at once.
        Some(KeyState::Missing { .. }) | None
            if !snapshot.witnesses().is_empty()
                && comes_back(place, config, snapshot, &Key::Cluster).await? =>
        {
            return Ok(CasResult::Lost);
        }
        Some(KeyState::Missing { .. }) | None => (Expect::Absent, anew(place, snapshot)),
    };
    record.keyspaces.insert(name.clone(), generation);
    let record = Record::Cluster(Arc::new(record));
    place.put(&Key::Cluster, expect, &record).await
}

/// Why nothing can be drawn from a cluster's record that cannot be read.
pub(crate) fn unreadable(damage: &Damage) -> Exit {
    Exit::failed(match damage {
        Damage::Corrupt(_) => format!(
            "the cluster record: {damage}; restore it from a backup, or run `tenure cluster repair-record cluster`"
        ),
        Damage::Newer(_) => format!("the cluster record: {damage}"),
    })
}

/// The record of a cluster that has none, with everything that the other records still tell.
pub(crate) fn anew(place: &mut ClusterClient, snapshot: &Snapshot) -> ClusterRecord {
    let mut names: Vec<&KeyspaceName> = snapshot.view.keyspaces.cells().map(|(n, _)| n).collect();
    names.extend(snapshot.view.shards.cells().map(|(id, _)| &id.keyspace));
    names.sort();
    names.dedup();
    let known = names
        .into_iter()
        .map(|name| (name.clone(), snapshot.highest_generation(name).max(1)));
    ClusterRecord {
        head: Head {
            rev: snapshot.view.fresh_rev(&Key::Cluster),
            ..Head::first(place.nonce())
        },
        boot: snapshot.view.highest_boot().max(1),
        store: snapshot.identity.clone(),
        longest_ttl: snapshot.longest_ttl().max(place.store.info().default_ttl),
        keyspaces: known.collect(),
        moves_paused: None,
        unknown: Unknown::new(),
    }
}
