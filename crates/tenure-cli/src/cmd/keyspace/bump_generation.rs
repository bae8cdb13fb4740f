//! `tenure keyspace bump-generation`: epochs above all that were ever used, for a restored store (P2).

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tenure::AdminClient;
use tenure::admin::BumpedKeyspace;
use tenure_core::ids::KeyspaceName;

use crate::cmd::confirm::confirm;
use crate::config::Config;
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Raise the epochs of keyspaces above all old ones, after a store was restored from a backup
#[derive(Debug, Args)]
#[command(
    after_help = "Use it after a store was restored from a backup, copied or replaced. Such a store may have lost epochs that were\n\
    in use, and resources that check epochs would reject new owners or confuse them with old ones. Nodes detect\n\
    the restored store, stop serving and wait for this command. It raises the upper half of all future epochs;\n\
    shards are served again when nodes have claimed them.\n\
    With --all the command then records this store as the store of the cluster, so that nodes accept it.\n\
    If a generation was raised after the backup was taken, pass it with --above: the part before the dot of the\n\
    highest epoch in logs or in protected resources.\n\n\
    Examples:\n  tenure keyspace bump-generation --all --yes\n  \
    tenure keyspace bump-generation orders --above 3 --yes"
)]
pub(crate) struct BumpGeneration {
    /// Keyspace name
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<KeyspaceName>,
    /// Raise all keyspaces, including deleted ones, and accept this store for the cluster
    #[arg(long)]
    all: bool,
    /// Raise the generation to a value greater than this one
    #[arg(long, value_name = "GENERATION", default_value_t = 0)]
    above: u32,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BumpGeneration {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let admin = connect::open(config).await?;
        let snapshot = admin.existing_snapshot().await?;
        let count = match &self.name {
            Some(name) => snapshot.keyspace(name).map(|_| 1)?,
            None => snapshot.past_and_present_keyspaces().len(),
        };
        confirm(
            self.yes,
            &format!(
                "the generation of {count} keyspace(s) will be raised, and their shards will be claimed again"
            ),
        )?;
        let (generations, accepted) = match &self.name {
            Some(name) => (self.bump_one(&admin, name).await?, false),
            None => self.bump_all(&admin).await?,
        };
        if self.name.is_some() && snapshot.other_store().is_some() {
            eprintln!(
                "warning: this store was restored or replaced, and nodes reject it until `tenure keyspace \
                 bump-generation --all`"
            );
        }
        if self.json {
            stdout::json(&json!({ "generations": generations, "store_accepted": accepted }));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn bump_one(
        &self,
        admin: &AdminClient,
        name: &KeyspaceName,
    ) -> Result<BTreeMap<KeyspaceName, u32>, Exit> {
        let generation = admin.bump_generation(name, self.above).await?;
        self.report(name, generation);
        Ok(BTreeMap::from([(name.clone(), generation)]))
    }

    async fn bump_all(
        &self,
        admin: &AdminClient,
    ) -> Result<(BTreeMap<KeyspaceName, u32>, bool), Exit> {
        let progress = |bumped: &BumpedKeyspace| {
            let name = &bumped.name;
            if bumped.record_lost {
                eprintln!(
                    "keyspace {name} has no record: it was lost and will be restored above this generation"
                );
            }
            self.report(name, bumped.generation);
        };
        let bumped = admin.bump_all_generations(self.above, progress).await?;
        if bumped.store_accepted {
            eprintln!("recorded this store as the store of the cluster");
        }
        let all = bumped.keyspaces.into_iter();
        let generations = all.map(|k| (k.name, k.generation)).collect();
        Ok((generations, bumped.store_accepted))
    }

    fn report(&self, name: &KeyspaceName, generation: u32) {
        if !self.json {
            stdout::line(format!("{name} {generation}"));
        }
    }
}
