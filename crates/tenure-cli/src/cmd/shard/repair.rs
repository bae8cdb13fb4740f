//! `tenure repair`: a shard whose record is corrupt, missing or quarantined is made usable again, safely.
//!
//! A lost record is made anew by the rule that nodes follow too (A11): what was there is watched unchanged for the longest
//! ttl of the cluster, so that no session that cannot be seen is still serving; a generation is drawn in the cluster's
//! record, so that the new epochs exceed all earlier ones (P2); and the new record names every session that may be live as a
//! witness, each of which must deny owning the shard, or end, before anybody claims it (P1).

mod key;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure::Clock;
use tenure_core::ids::{NodeName, ShardId, ShardName, Version};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::record::{Damage, Head, KeyspaceKind, KeyspaceRecord, Owner, Record, ShardRecord};
use tenure_core::rules::Rules;
use tenure_core::view::KeyState;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::keyspace::generation;
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::snapshot::Snapshot;

/// How often what is watched is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Make a damaged, missing or quarantined shard usable again
#[derive(Debug, Args)]
#[command(
    after_help = "A corrupt or missing record is made anew at epochs above all earlier ones, after the longest ttl of the\n\
    cluster; nobody claims the shard before every live session has said that it does not own it. A quarantined\n\
    shard may be claimed again. A record of a newer format is left alone.\n\
    With --key the corrupt record of a cluster, keyspace or node is deleted, for nodes to write it anew; one that\n\
    can be read is never deleted.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop repair orders/17\n  \
    tenure --store sqlite:shop.db --cluster shop repair orders/17 --dry-run\n  \
    tenure --store sqlite:shop.db --cluster shop repair --key keyspaces/orders"
)]
pub(crate) struct Repair {
    /// The shard
    #[arg(value_name = "KEYSPACE/SHARD", conflicts_with = "key")]
    shard: Option<ShardId>,
    /// Instead of a shard: cluster, leader, keyspaces/NAME or nodes/NAME, whose corrupt value is deleted
    #[arg(long, value_name = "KEY")]
    key: Option<key::Deletable>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// The repair of one shard.
struct Shard<'a> {
    shard: &'a ShardId,
    dry_run: bool,
}

/// What is wrong with the shard.
enum Trouble {
    None,
    Quarantined {
        version: Version,
        record: Arc<ShardRecord>,
    },
    Corrupt {
        version: Version,
        problem: String,
    },
    Missing,
}

impl Repair {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let dry_run = self.dry_run;
        match (&self.key, &self.shard) {
            (Some(key), _) => key.repair(config, dry_run).await,
            (None, Some(shard)) => Shard { shard, dry_run }.repair(config).await,
            (None, None) => Err(Exit::usage(
                "name the shard as KEYSPACE/SHARD, or another record with --key",
            )),
        }
    }
}

impl Shard<'_> {
    async fn repair(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut place = ClusterClient::open(config).await?;
        let snapshot = place.existing().await?;
        let id = self.shard;
        let keyspace = snapshot.keyspace(&id.keyspace)?;
        belongs(id, keyspace.kind)?;
        match trouble(&snapshot, id, keyspace.kind)? {
            Trouble::None => eprintln!("shard {id} is in order; nothing was changed"),
            Trouble::Quarantined { version, record } => {
                let reason = record.quarantine.as_ref().map_or("", |q| &q.reason);
                eprintln!("shard {id} is quarantined: {reason}");
                if self.dry_run {
                    eprintln!("would let nodes claim it again");
                } else {
                    self.lift(&mut place, keyspace, version, &record).await?;
                    eprintln!("nodes may claim it again");
                }
            }
            Trouble::Corrupt { version, problem } => {
                eprintln!("shard {id}: {problem}");
                self.rewrite(&mut place, &snapshot, Some(version), config)
                    .await?;
            }
            Trouble::Missing => {
                eprintln!(
                    "shard {id} has no record; nodes that serve it write it anew by themselves"
                );
                self.rewrite(&mut place, &snapshot, None, config).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn lift(
        &self,
        place: &mut ClusterClient,
        keyspace: &KeyspaceRecord,
        version: Version,
        record: &ShardRecord,
    ) -> Result<(), Exit> {
        let writer = Writer {
            owner: Owner {
                node: NodeName::new("tenure repair")?,
                session: place.writer(),
            },
            nonce: place.nonce(),
        };
        let facts = Facts {
            ended: &|_| false,
            highest_epoch: record.epoch,
            min_generation: keyspace.floor,
            load: None,
            rules: Rules::sound(),
        };
        let lifted = ownership::apply(record, &writer, Transition::ClearQuarantine, &facts)
            .map_err(|why| {
                Exit::failed(format!("shard {} cannot be released: {why:?}", self.shard))
            })?;
        let record = Record::Shard(Arc::new(lifted));
        self.put(place, Expect::Version(version), &record).await
    }

    /// Makes the record anew where there is `version` of a corrupt one, or none.
    async fn rewrite(
        &self,
        place: &mut ClusterClient,
        snapshot: &Snapshot,
        version: Option<Version>,
        config: &Config,
    ) -> Result<(), Exit> {
        let id = self.shard;
        let settings = config.settings();
        let proof = snapshot.proof(settings.ttl, settings.clock_drift_max_permille);
        if self.dry_run {
            eprintln!(
                "would watch it for {}, draw a generation for keyspace {}, and write a new record with {} witnesses",
                duration::show(proof),
                id.keyspace,
                snapshot.witnesses().len()
            );
            return Ok(());
        }
        eprintln!("watching it for {}", duration::show(proof));
        if !self.unchanged(place, version.as_ref(), proof).await? {
            eprintln!(
                "the record of shard {id} was written by another process meanwhile; this command changed nothing"
            );
            return Ok(());
        }
        let generation = generation::draw(place, config, &id.keyspace, 0).await?;
        // Read after the draw: whoever may own the shard is among these sessions.
        let now = place.snapshot().await?;
        let witnesses = now.witnesses();
        let head = Head {
            rev: now.view.fresh_rev(&Key::Shard(id.clone())),
            ..Head::first(place.nonce())
        };
        let record = ownership::restored(head, generation, witnesses.clone(), Rules::sound());
        let record = Record::Shard(Arc::new(record));
        let expect = version.map_or(Expect::Absent, Expect::Version);
        self.put(place, expect, &record).await?;
        eprintln!(
            "wrote shard {id} anew at generation {generation}; {} must deny owning it before it is claimed",
            match witnesses.len() {
                0 => "no session".to_owned(),
                1 => "1 session".to_owned(),
                n => format!("{n} sessions"),
            }
        );
        Ok(())
    }

    /// Whether the shard's key keeps its value, or stays absent, for this long.
    async fn unchanged(
        &self,
        place: &ClusterClient,
        version: Option<&Version>,
        proof: Duration,
    ) -> Result<bool, Exit> {
        let key = Key::Shard(self.shard.clone());
        let clock = Clock::boot();
        let until = clock.now() + proof;
        loop {
            if place.version(&key).await?.as_ref() != version {
                return Ok(false);
            }
            if clock.now() >= until {
                return Ok(true);
            }
            clock.sleep_until(until.min(clock.now() + LOOK_AGAIN)).await;
        }
    }

    async fn put(
        &self,
        place: &ClusterClient,
        expect: Expect,
        record: &Record,
    ) -> Result<(), Exit> {
        let key = Key::Shard(self.shard.clone());
        match place.put(&key, expect, record).await? {
            CasResult::Done => Ok(()),
            CasResult::Lost => Err(Exit::failed(format!(
                "shard {} was changed at the same moment; look at `tenure status` and run the command again",
                self.shard
            ))),
        }
    }
}

fn belongs(id: &ShardId, kind: KeyspaceKind) -> Result<(), Exit> {
    let KeyspaceKind::Hashed(count) = kind else {
        return Ok(());
    };
    let index = id.shard.as_str().parse::<u32>().ok();
    match index {
        Some(index) if index < count && ShardName::index(index) == id.shard => Ok(()),
        _ => Err(Exit::usage(format!(
            "there is no shard {id}: keyspace {} has the shards 0 to {}",
            id.keyspace,
            count - 1
        ))),
    }
}

fn trouble(snapshot: &Snapshot, id: &ShardId, kind: KeyspaceKind) -> Result<Trouble, Exit> {
    Ok(match snapshot.view.shards.cell(id) {
        Some(KeyState::Present(seen)) if seen.record.quarantine.is_some() => Trouble::Quarantined {
            version: seen.version.clone(),
            record: seen.record.clone(),
        },
        Some(KeyState::Present(_)) => Trouble::None,
        Some(KeyState::Damaged { damage, .. }) if matches!(damage, Damage::Newer(_)) => {
            return Err(Exit::failed(format!(
                "shard {id}: {damage}; it is left alone"
            )));
        }
        Some(KeyState::Damaged {
            version, damage, ..
        }) => Trouble::Corrupt {
            version: version.clone(),
            problem: damage.to_string(),
        },
        Some(KeyState::Missing { .. }) | None if kind == KeyspaceKind::Named => {
            return Err(Exit::failed(format!(
                "there is no record of shard {id}; in a named keyspace nothing says that there should be one"
            )));
        }
        Some(KeyState::Missing { .. }) | None => Trouble::Missing,
    })
}
