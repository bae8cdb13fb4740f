//! `tenure keyspace rm`: marks a keyspace as removed. Its records stay, so that no epoch is ever given out twice.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use tenure_core::ids::KeyspaceName;
use tenure_core::keys::Key;
use tenure_core::record::Record;
use tenure_store::Expect;

use crate::cluster_client::{CasResult, ClusterClient};
use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::exit::Exit;

/// Remove a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "Marks the keyspace as removed: nodes let go of its shards and claim none. The records stay, because\n\
    they hold the epochs that must not be given out again. Refused while shards are owned by sessions that may\n\
    be live; with --force their nodes close, finish or cancel what is in flight, and let go.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop keyspace rm orders --yes"
)]
pub(crate) struct Rm {
    /// The keyspace's name
    name: KeyspaceName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Even while nodes own shards of it
    #[arg(long)]
    force: bool,
}

impl Rm {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let name = &self.name;
        let mut place = ClusterClient::open(config).await?;
        let snapshot = place.existing().await?;
        snapshot.keyspace(name)?;
        let owned = snapshot.owned(name);
        if owned > 0 && !self.force {
            return Err(Exit::failed(format!(
                "{owned} shards of keyspace {name} are owned by sessions that may be live; stop its nodes first, or \
                 pass --force: they then stop serving it at once"
            )));
        }
        let what = match owned {
            0 => format!("keyspace {name} will be removed"),
            _ => format!("keyspace {name} will be removed while {owned} of its shards are owned"),
        };
        confirm(self.yes, &what)?;
        // As it was when it was looked at: whoever changed it meanwhile wins.
        let Some(seen) = snapshot.view.keyspaces.seen(name) else {
            return Err(Exit::failed(format!("there is no keyspace {name}")));
        };
        let mut record = (*seen.record).clone();
        record.head = record.head.next(place.nonce());
        record.removed = true;
        let key = Key::Keyspace(name.clone());
        let expect = Expect::Version(seen.version.clone());
        let record = Record::Keyspace(Arc::new(record));
        match place.put(&key, expect, &record).await? {
            CasResult::Done if owned > 0 => {
                eprintln!(
                    "removed keyspace {name}; its nodes are letting go of {owned} shards (`tenure status`)"
                );
            }
            CasResult::Done => eprintln!("removed keyspace {name}"),
            CasResult::Lost => {
                return Err(Exit::failed(format!(
                    "keyspace {name} was changed at the same moment; look at it and run the command again"
                )));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
