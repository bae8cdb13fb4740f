//! `tenure repair --key`: deletes a value that is no record, so that those who know better can write it anew.
//!
//! Exactly the value that was seen is deleted, by its version, and only if it is corrupt: never one that can be read, and
//! never one of a newer format. What is deleted cannot say any more which generations were used; therefore a generation
//! is drawn for a keyspace before its record goes, and a cluster's record is not left missing (P2).

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use tenure_core::ids::{KeyspaceName, NodeName, Version};
use tenure_core::keys::Key;
use tenure_core::record::{Damage, Record};
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::keyspace::generation;
use crate::config::Config;
use crate::exit::Exit;

/// A key that can be repaired by deleting what is there.
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
                "a shard's record is not deleted but rewritten; run `tenure repair {rest}`"
            )),
            Some(("sessions", _)) => Err(
                "nodes end a session that cannot be read by themselves after its ttl".to_owned(),
            ),
            _ => Err("expected cluster, leader, keyspaces/NAME or nodes/NAME".to_owned()),
        }
    }
}

impl Deletable {
    /// Deletes what is there if it is corrupt.
    pub(crate) async fn repair(&self, config: &Config, dry_run: bool) -> Result<ExitCode, Exit> {
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
                eprintln!("{key} is in order; nothing was changed");
                return Ok(ExitCode::SUCCESS);
            }
            Err(newer @ Damage::Newer(_)) => {
                return Err(Exit::failed(format!("{key}: {newer}; it is left alone")));
            }
            Err(corrupt) => corrupt,
        };
        eprintln!("{key}: {damage}");
        if dry_run {
            eprintln!("would delete this value; {}", self.afterwards());
            return Ok(ExitCode::SUCCESS);
        }
        if let Key::Keyspace(name) = key {
            // From now on it counts as lost, whatever else gets lost, and comes back above all that it ever had.
            generation::draw(&mut place, config, name, 0).await?;
        }
        self.delete(&mut place, config, entry.version).await?;
        Ok(ExitCode::SUCCESS)
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
                "{key} was changed at the same moment; look at `tenure status` and run the command again"
            )));
        }
        eprintln!("deleted {key}; {}", self.afterwards());
        if *key != Key::Cluster {
            return Ok(());
        }
        let snapshot = place.snapshot().await?;
        let runs = !snapshot.witnesses().is_empty();
        if runs && generation::comes_back(place, config, &snapshot, key).await? {
            eprintln!("a node has written it anew");
            return Ok(());
        }
        let snapshot = place.snapshot().await?;
        let record = generation::anew(place, &snapshot);
        let record = Record::Cluster(Arc::new(record));
        if place.put(key, Expect::Absent, &record).await? == CasResult::Done {
            eprintln!(
                "no node runs that remembers it: wrote it anew from the other records; run `tenure keyspace raise --all` \
                 before any node starts"
            );
        }
        Ok(())
    }

    /// What becomes of the key once it is gone.
    fn afterwards(&self) -> String {
        match &self.0 {
            Key::Keyspace(name) => format!(
                "nodes that serve it write it anew by themselves after a ttl; without any, `tenure keyspace create {name}`"
            ),
            Key::Node(_) => {
                "the node writes it anew by itself, at once or when it starts".to_owned()
            }
            Key::Cluster => "a node that runs writes it anew with all that it remembers".to_owned(),
            _ => "it is written anew by whoever needs it".to_owned(),
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
                .contains("tenure repair orders/1")
        );
        assert!(read("sessions/00").unwrap_err().contains("by themselves"));
        for bad in ["", "keyspaces", "keyspaces/", "clusters", "nodes"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
