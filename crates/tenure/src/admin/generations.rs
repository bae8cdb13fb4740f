//! Generations: reservation in the cluster record, and the raise of keyspaces above all old epochs (P2).
//!
//! A generation is reserved by a conditional write of the cluster record before any other record names it. So no generation
//! is used twice, and a lost keyspace is never taken for a new one.

use std::sync::Arc;

use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::{ClusterRecord, KeyspaceRecord, Record, RecordError, Unknown};
use tenure_core::view::KeyState;
use tenure_store::Expect;

use super::client::{CAS_ATTEMPTS, Change};
use super::{AdminClient, AdminError, Snapshot};

/// Generations that a reservation may take.
#[derive(Clone, Copy)]
pub(super) enum Reserve {
    /// The next one after all used generations and after this one.
    Above(u32),
    /// The first one of a keyspace that never existed.
    First,
}

/// Outcome of one attempt to reserve a generation.
enum Attempt {
    Reserved(u32),
    /// The keyspace has used a generation, so there is no first one.
    Existed,
    /// The cluster record is missing. A running node may write it again.
    RecordMissing,
}

/// Outcome of one attempt to raise a keyspace.
enum Raise {
    Done,
    /// The keyspace has a higher generation than the reserved one.
    Overtaken,
}

/// A keyspace with its new generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BumpedKeyspace {
    /// Name of the keyspace.
    pub name: KeyspaceName,
    /// The new generation.
    pub generation: u32,
    /// True if the record of the keyspace is lost. It will be restored above this generation.
    pub record_lost: bool,
}

/// Result of [`AdminClient::bump_all_generations`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BumpedGenerations {
    /// All present and past keyspaces, by name.
    pub keyspaces: Vec<BumpedKeyspace>,
    /// True if the store was restored or replaced, and now counts as the store of the cluster.
    pub store_accepted: bool,
}

impl AdminClient {
    /// Raises the epochs of a keyspace above all old ones and above generation `above`. Returns the new generation.
    ///
    /// Required after a store was restored from a backup: it may have lost epochs that were in use. Nodes claim the shards
    /// again at the new generation.
    pub async fn bump_generation(
        &self,
        name: &KeyspaceName,
        above: u32,
    ) -> Result<u32, AdminError> {
        self.snapshot().await?.keyspace(name)?;
        self.raise(name, above).await
    }

    /// Raises the epochs of all present and past keyspaces, and accepts the store if it was restored or replaced.
    ///
    /// Reports each keyspace once it is raised.
    pub async fn bump_all_generations(
        &self,
        above: u32,
        mut progress: impl FnMut(&BumpedKeyspace),
    ) -> Result<BumpedGenerations, AdminError> {
        let snapshot = self.snapshot().await?;
        if let Some(KeyState::Damaged { damage, .. }) = snapshot.view.cluster.cell(&()) {
            // Lost keyspaces are listed in this record alone.
            return Err(unreadable(damage));
        }
        let mut keyspaces = Vec::new();
        for name in snapshot.past_and_present_keyspaces() {
            let record_lost = readable(&self.snapshot().await?, &name)?.is_none();
            let generation = match record_lost {
                true => self.reserve(&name, above).await?,
                false => self.raise(&name, above).await?,
            };
            let bumped = BumpedKeyspace {
                name,
                generation,
                record_lost,
            };
            progress(&bumped);
            keyspaces.push(bumped);
        }
        let store_accepted = snapshot.other_store().is_some();
        if store_accepted {
            self.accept_store(&keyspaces).await?;
        }
        Ok(BumpedGenerations {
            keyspaces,
            store_accepted,
        })
    }

    /// Reserves a generation, then writes it to the keyspace record. Takes a higher one if concurrent writers were faster.
    async fn raise(&self, name: &KeyspaceName, above: u32) -> Result<u32, AdminError> {
        for _ in 0..CAS_ATTEMPTS {
            let generation = self.reserve(name, above).await?;
            if let Raise::Done = self.write_raised(name, generation).await? {
                return Ok(generation);
            }
        }
        Err(AdminError::Raced(format!(
            "keyspace {name} keeps changing concurrently"
        )))
    }

    async fn write_raised(
        &self,
        name: &KeyspaceName,
        generation: u32,
    ) -> Result<Raise, AdminError> {
        let change = |snapshot: &Snapshot| {
            let Some((expect, old)) = readable(snapshot, name)? else {
                return Err(AdminError::Refused(format!(
                    "the record of keyspace {name} is missing; see `tenure status`"
                )));
            };
            if old.generation >= generation {
                return Ok(Change::Keep(Raise::Overtaken));
            }
            let new = KeyspaceRecord {
                head: old.head.next(self.nonce()),
                generation,
                min_generation: generation,
                ..old.clone()
            };
            let record = Record::Keyspace(Arc::new(new));
            Ok(Change::Write(expect, record, Raise::Done))
        };
        let what = format!("keyspace {name}");
        let key = Key::Keyspace(name.clone());
        Ok(self.update(&key, &what, change).await?.answer)
    }

    /// Records this store as the store of the cluster. This is the last step: nodes claim shards afterwards.
    async fn accept_store(&self, raised: &[BumpedKeyspace]) -> Result<(), AdminError> {
        let change = |snapshot: &Snapshot| {
            let mut there = snapshot.view.keyspaces.cells();
            let new = there.find(|(name, cell)| {
                let is_raised = raised.iter().any(|bumped| bumped.name == **name);
                !matches!(cell, KeyState::Missing { .. }) && !is_raised
            });
            if let Some((name, _)) = new {
                return Err(AdminError::Raced(format!(
                    "keyspace {name} was created concurrently"
                )));
            }
            let Some(seen) = snapshot.view.cluster.seen(&()) else {
                return Err(AdminError::Refused(
                    "the cluster record is missing; see `tenure status`".to_owned(),
                ));
            };
            let new = ClusterRecord {
                head: seen.record.head.next(self.nonce()),
                store: snapshot.identity.clone(),
                ..(*seen.record).clone()
            };
            let expect = Expect::Version(seen.version.clone());
            Ok(Change::Write(expect, Record::Cluster(Arc::new(new)), ()))
        };
        self.update(&Key::Cluster, "the cluster record", change)
            .await
            .map(|_| ())
    }

    /// Reserves a generation above all that the keyspace ever had, and above `above`.
    pub(super) async fn reserve(&self, name: &KeyspaceName, above: u32) -> Result<u32, AdminError> {
        match self.reserve_as(name, Reserve::Above(above)).await? {
            Some(generation) => Ok(generation),
            None => Err(AdminError::Raced(
                "the cluster record keeps changing concurrently".to_owned(),
            )),
        }
    }

    /// Reserves a generation. Returns `None` if the first one was wanted and the keyspace has existed.
    pub(super) async fn reserve_as(
        &self,
        name: &KeyspaceName,
        reserve: Reserve,
    ) -> Result<Option<u32>, AdminError> {
        let mut watched = false;
        for _ in 0..CAS_ATTEMPTS {
            match self.try_reserve(name, reserve, watched).await? {
                Attempt::Reserved(generation) => return Ok(Some(generation)),
                Attempt::Existed => return Ok(None),
                // A running node knows more than the remaining records and writes the record again immediately.
                Attempt::RecordMissing => watched = !self.comes_back(&Key::Cluster).await?,
            }
        }
        Err(AdminError::Raced(
            "the cluster record keeps changing concurrently".to_owned(),
        ))
    }

    async fn try_reserve(
        &self,
        name: &KeyspaceName,
        reserve: Reserve,
        watched: bool,
    ) -> Result<Attempt, AdminError> {
        let change = |snapshot: &Snapshot| {
            let highest = snapshot.highest_generation(name);
            let generation = match reserve {
                Reserve::First if highest > 0 => return Ok(Change::Keep(Attempt::Existed)),
                Reserve::First => 1,
                Reserve::Above(above) => highest.max(above).checked_add(1).ok_or_else(|| {
                    AdminError::Invalid(format!(
                        "the generation of keyspace {name} cannot be raised above {}",
                        u32::MAX
                    ))
                })?,
            };
            let (expect, mut record) = match snapshot.view.cluster.cell(&()) {
                Some(KeyState::Present(seen)) => {
                    let mut record = (*seen.record).clone();
                    record.head = record.head.next(self.nonce());
                    (Expect::Version(seen.version.clone()), record)
                }
                Some(KeyState::Damaged { damage, .. }) => return Err(unreadable(damage)),
                _ if !watched && !snapshot.witnesses().is_empty() => {
                    return Ok(Change::Keep(Attempt::RecordMissing));
                }
                _ => (Expect::Absent, self.rebuilt_cluster_record(snapshot)),
            };
            record.keyspaces.insert(name.clone(), generation);
            let record = Record::Cluster(Arc::new(record));
            Ok(Change::Write(expect, record, Attempt::Reserved(generation)))
        };
        let updated = self.update(&Key::Cluster, "the cluster record", change);
        Ok(updated.await?.answer)
    }

    /// Waits until a missing key has a value again. Returns `false` if it has none after every lease has expired.
    pub(super) async fn comes_back(&self, key: &Key) -> Result<bool, AdminError> {
        let proof = self.proof(&self.snapshot().await?);
        Ok(!self.stays(key, None, proof).await?)
    }

    /// The record of a cluster that has none, with everything that the other records show.
    pub(super) fn rebuilt_cluster_record(&self, snapshot: &Snapshot) -> ClusterRecord {
        let view = &snapshot.view;
        let mut names: Vec<&KeyspaceName> = view.keyspaces.cells().map(|(n, _)| n).collect();
        names.extend(view.shards.cells().map(|(id, _)| &id.keyspace));
        names.sort();
        names.dedup();
        let known = names
            .into_iter()
            .map(|name| (name.clone(), snapshot.highest_generation(name).max(1)));
        ClusterRecord {
            head: self.fresh_head(snapshot, &Key::Cluster),
            boot: view.highest_boot().max(1),
            store: snapshot.identity.clone(),
            longest_ttl: snapshot.longest_ttl().max(self.store.info().default_ttl),
            keyspaces: known.collect(),
            moves_paused: None,
            unknown: Unknown::new(),
        }
    }
}

/// A keyspace's record with the condition for its replacement, if there is a record. It must be readable.
fn readable<'a>(
    snapshot: &'a Snapshot,
    name: &KeyspaceName,
) -> Result<Option<(Expect, &'a KeyspaceRecord)>, AdminError> {
    match snapshot.view.keyspaces.cell(name) {
        Some(KeyState::Present(seen)) => {
            let expect = Expect::Version(seen.version.clone());
            Ok(Some((expect, &*seen.record)))
        }
        Some(KeyState::Damaged { damage, .. }) => Err(AdminError::Refused(format!(
            "keyspace {name}: {damage}; see `tenure status`"
        ))),
        Some(KeyState::Missing { .. }) | None => Ok(None),
    }
}

/// The error for a cluster record that cannot be read.
pub(super) fn unreadable(damage: &RecordError) -> AdminError {
    AdminError::Refused(match damage {
        RecordError::Corrupt(_) => format!(
            "the cluster record: {damage}; restore it from a backup, or run `tenure cluster repair-record cluster`"
        ),
        RecordError::Newer(_) => format!("the cluster record: {damage}"),
    })
}
