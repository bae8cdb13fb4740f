//! `tenure shard repair`: repair of a corrupt, missing or quarantined shard record.
//!
//! A lost record is restored by the rule that nodes follow too (A11). The key is watched unchanged for the longest ttl of the
//! cluster, so that no invisible session still serves. A generation is reserved in the cluster record, so that the new epochs
//! exceed all earlier ones (P2). The new record names every session that may be live as a witness. Each of them must disclaim
//! the shard, or end, before a node claims it (P1).

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure::Clock;
use tenure_core::ids::{NodeName, ShardId, ShardName, Version};
use tenure_core::keys::Key;
use tenure_core::ownership::{self, Facts, Transition, Writer};
use tenure_core::record::{Damage, Head, KeyspaceKind, KeyspaceRecord, Owner, Record, ShardRecord};
use tenure_core::rules::Rules;
use tenure_core::view::KeyState;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::confirm::confirm;
use crate::cmd::keyspace::generation;
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::snapshot::Snapshot;
use crate::stdout;

/// Poll interval of the watched key.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Repair a shard that is quarantined, or whose record is corrupt or missing
#[derive(Debug, Args)]
#[command(
    after_help = "A corrupt or missing record is written again at a new generation, after the longest ttl of the cluster. No node\n\
    claims the shard before every live session has confirmed not to own it. A quarantined shard may be claimed\n\
    again. A record of a newer format is not changed. `tenure cluster repair-record` repairs other records.\n\n\
    Examples:\n  tenure shard repair orders/17 --dry-run\n  tenure shard repair orders/17 --yes"
)]
pub(crate) struct Repair {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
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

/// The repair of one shard.
struct Shard<'a> {
    shard: &'a ShardId,
    dry_run: bool,
    yes: bool,
}

/// Problem of a shard.
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
        let shard = Shard {
            shard: &self.shard,
            dry_run: self.dry_run,
            yes: self.yes,
        };
        let problem = shard.repair(config).await?;
        if self.json {
            let id = self.shard.to_string();
            stdout::json(&json!({ "shard": id, "problem": problem, "dry_run": self.dry_run }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Shard<'_> {
    /// Repairs the shard and returns the problem that it had.
    async fn repair(&self, config: &Config) -> Result<Option<&'static str>, Exit> {
        let mut place = ClusterClient::open(config).await?;
        let snapshot = place.existing().await?;
        let id = self.shard;
        let keyspace = snapshot.keyspace(&id.keyspace)?;
        belongs(id, keyspace.kind)?;
        Ok(match trouble(&snapshot, id, keyspace.kind)? {
            Trouble::None => {
                eprintln!("shard {id} needs no repair; nothing was changed");
                None
            }
            Trouble::Quarantined { version, record } => {
                let reason = record.quarantine.as_ref().map_or("", |q| &q.reason);
                eprintln!("shard {id} is quarantined: {reason}");
                if self.dry_run {
                    eprintln!("would end the quarantine");
                } else {
                    self.confirm("nodes will try to load the shard again")?;
                    self.lift(&mut place, keyspace, version, &record).await?;
                    eprintln!("ended the quarantine; nodes may claim the shard again");
                }
                Some("quarantined")
            }
            Trouble::Corrupt { version, problem } => {
                eprintln!("shard {id}: {problem}");
                self.rewrite(&mut place, &snapshot, Some(version), config)
                    .await?;
                Some("corrupt")
            }
            Trouble::Missing => {
                eprintln!(
                    "shard {id} has no record; nodes that serve the keyspace write the record again"
                );
                self.rewrite(&mut place, &snapshot, None, config).await?;
                Some("missing")
            }
        })
    }

    fn confirm(&self, effect: &str) -> Result<(), Exit> {
        confirm(self.yes, &format!("shard {}: {effect}", self.shard))
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
                node: NodeName::new("tenure shard repair")?,
                session: place.writer(),
            },
            nonce: place.nonce(),
        };
        let facts = Facts {
            ended: &|_| false,
            highest_epoch: record.epoch,
            min_generation: keyspace.min_generation,
            load: None,
            rules: Rules::sound(),
        };
        let lifted = ownership::apply(record, &writer, Transition::ClearQuarantine, &facts)
            .map_err(|reason| {
                Exit::failed(format!("shard {} cannot be released: {reason}", self.shard))
            })?;
        let record = Record::Shard(Arc::new(lifted));
        self.put(place, Expect::Version(version), &record).await
    }

    /// Writes the record again in place of `version` of a corrupt one, or of none.
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
                "would watch the key for {}, reserve a generation of keyspace {}, and write a new record; nodes claim the shard after {} sessions have confirmed not to own it",
                duration::show(proof),
                id.keyspace,
                snapshot.witnesses().len()
            );
            return Ok(());
        }
        self.confirm("the record will be written again at a new generation")?;
        eprintln!("watching the key for {}", duration::show(proof));
        if !self.unchanged(place, version.as_ref(), proof).await? {
            eprintln!(
                "the record of shard {id} was written by another process; nothing was changed"
            );
            return Ok(());
        }
        let generation = generation::draw(place, config, &id.keyspace, 0).await?;
        // Read after the reservation: every possible owner is among these sessions.
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
            "wrote shard {id} again at generation {generation}; before a node claims it, {} must confirm not to own it",
            match witnesses.len() {
                0 => "no session".to_owned(),
                1 => "1 session".to_owned(),
                n => format!("{n} sessions"),
            }
        );
        Ok(())
    }

    /// Returns whether the key stays unchanged, or absent, for this time.
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
            clock
                .sleep_until(until.min(clock.now() + POLL_INTERVAL))
                .await;
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
                "shard {} was changed concurrently; check `tenure status` and run the command again",
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
                "shard {id}: {damage}; the record was not changed"
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
                "there is no record of shard {id}; in a named keyspace it may never have existed: use `tenure shard create`"
            )));
        }
        Some(KeyState::Missing { .. }) | None => Trouble::Missing,
    })
}
