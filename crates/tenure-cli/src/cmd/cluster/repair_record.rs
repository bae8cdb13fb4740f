//! `tenure cluster repair-record`: deletes a corrupt record, so that nodes write it again.
//!
//! The command deletes exactly the version that it read, and only if that is corrupt: never a readable record, and never one
//! of a newer format. A deleted record no longer shows which generations were used. Therefore the command reserves a
//! generation for a keyspace before it deletes its record, and never leaves the cluster record missing (P2).

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use tenure_core::ids::{KeyspaceName, NodeName, Version};
use tenure_core::keys::Key;
use tenure_core::record::{Damage, Record};
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::confirm::confirm;
use crate::cmd::keyspace::generation;
use crate::config::Config;
use crate::exit::Exit;
use crate::stdout;

/// Delete a corrupt record, so that nodes write it again
#[derive(Debug, Args)]
#[command(
    after_help = "KEY is cluster, leader, keyspaces/NAME or nodes/NAME. A readable record, or one of a newer format, is never\n\
    deleted. `tenure shard repair` repairs the record of a shard.\n\n\
    Examples:\n  tenure cluster repair-record keyspaces/orders --dry-run\n  \
    tenure cluster repair-record keyspaces/orders --yes"
)]
pub(crate) struct RepairRecord {
    /// Key of the record, such as keyspaces/orders
    key: Deletable,
    /// Show the effect without changing anything
    #[arg(long)]
    dry_run: bool,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RepairRecord {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let deleted = self.key.repair(config, self.dry_run, self.yes).await?;
        if self.json {
            let key = self.key.0.to_string();
            stdout::json(&json!({ "key": key, "dry_run": self.dry_run, "deleted": deleted }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Key of a record that can be repaired by deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deletable(Key);

impl FromStr for Deletable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = |e: tenure_core::ids::BadName| e.to_string();
        match text.split_once('/') {
            None if text == "cluster" => Ok(Self(Key::Cluster)),
            None if text == "leader" => Ok(Self(Key::Leader)),
            Some(("keyspaces", rest)) => {
                Ok(Self(Key::Keyspace(KeyspaceName::new(rest).map_err(name)?)))
            }
            Some(("nodes", rest)) => Ok(Self(Key::Node(NodeName::new(rest).map_err(name)?))),
            Some(("shards", rest)) => Err(format!(
                "repair-record does not delete shard records; run `tenure shard repair {rest}`"
            )),
            Some(("sessions", _)) => Err(
                "session records need no repair: nodes expire an unreadable session after its ttl"
                    .to_owned(),
            ),
            _ => Err("expected cluster, leader, keyspaces/NAME or nodes/NAME".to_owned()),
        }
    }
}

impl Deletable {
    /// Deletes the record if it is corrupt. Returns whether it did.
    async fn repair(&self, config: &Config, dry_run: bool, yes: bool) -> Result<bool, Exit> {
        let key = &self.0;
        let mut place = ClusterClient::open(config).await?;
        place.existing().await?;
        let Some(entry) = place.get(key).await? else {
            return Err(Exit::failed(format!(
                "there is no record {key}; {}",
                self.afterwards()
            )));
        };
        let damage = match Record::decode(key, &entry.value) {
            Ok(_) => {
                eprintln!("record {key} is valid; nothing was changed");
                return Ok(false);
            }
            Err(newer @ Damage::Newer(_)) => {
                return Err(Exit::failed(format!(
                    "record {key}: {newer}; the record was not changed"
                )));
            }
            Err(corrupt) => corrupt,
        };
        eprintln!("record {key}: {damage}");
        if dry_run {
            eprintln!("would delete this record; {}", self.afterwards());
            return Ok(false);
        }
        confirm(yes, &format!("the corrupt record {key} will be deleted"))?;
        if let Key::Keyspace(name) = key {
            // The keyspace counts as lost from here on. It is restored above all epochs that it ever had.
            generation::draw(&mut place, config, name, 0).await?;
        }
        self.delete(&mut place, config, entry.version).await?;
        Ok(true)
    }

    async fn delete(
        &self,
        place: &mut ClusterClient,
        config: &Config,
        version: Version,
    ) -> Result<(), Exit> {
        let key = &self.0;
        if place.delete(key, version).await? == CasResult::Lost {
            return Err(Exit::failed(format!(
                "record {key} was changed concurrently; check `tenure status` and run the command again"
            )));
        }
        eprintln!("deleted {key}; {}", self.afterwards());
        if *key != Key::Cluster {
            return Ok(());
        }
        let snapshot = place.snapshot().await?;
        let runs = !snapshot.witnesses().is_empty();
        if runs && generation::comes_back(place, config, &snapshot, key).await? {
            eprintln!("a node has written the record again");
            return Ok(());
        }
        let snapshot = place.snapshot().await?;
        let record = generation::anew(place, &snapshot);
        let record = Record::Cluster(Arc::new(record));
        if place.put(key, Expect::Absent, &record).await? == CasResult::Done {
            eprintln!(
                "no running node knew the record, so it was written again from the other records; run `tenure \
                 keyspace bump-generation --all` before any node starts"
            );
        }
        Ok(())
    }

    /// Consequence of the deletion.
    fn afterwards(&self) -> String {
        match &self.0 {
            Key::Keyspace(name) => format!(
                "nodes that serve the keyspace write the record again after a ttl; if none runs, use `tenure keyspace \
                 create {name}`"
            ),
            Key::Node(_) => {
                "the node writes the record again, immediately or at its next start".to_owned()
            }
            Key::Cluster => {
                "a running node writes the record again from the records that it knows".to_owned()
            }
            _ => "the next process that needs the record writes it again".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_may_be_deleted_are_read() {
        let read = |text: &str| text.parse::<Deletable>();
        assert_eq!(read("cluster"), Ok(Deletable(Key::Cluster)));
        let odd = Key::Node(NodeName::new("eu/n 1").unwrap());
        assert_eq!(read("nodes/eu/n 1"), Ok(Deletable(odd)));
        assert!(
            read("shards/orders/1")
                .unwrap_err()
                .contains("tenure shard repair orders/1")
        );
        assert!(read("sessions/00").unwrap_err().contains("need no repair"));
        for bad in ["", "keyspaces", "keyspaces/", "clusters", "nodes"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
