//! `tenure shard`: named shards, created and deleted one by one or by the list.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::admin::{NewShard, ShardWork};
use tenure_core::ids::{KeyspaceName, ShardId, ShardName};

use super::wait::{admin, or_interrupted};
use crate::config::{Config, duration};
use crate::exit::Exit;
use crate::stdout;

/// Create, delete or list the shards of named keyspaces
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure --store sqlite:shop.db --cluster shop keyspace create topics --named\n  \
    tenure --store sqlite:shop.db --cluster shop shard create topics/eu.payments --meta payments.json\n  \
    seq -f 'tenant-%g' 10000 | tenure --store sqlite:shop.db --cluster shop shard create topics --from -\n  \
    tenure --store sqlite:shop.db --cluster shop shard ls topics")]
pub(crate) struct Shard {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Create),
    Delete(Delete),
    Ls(Ls),
}

/// Which shards are meant.
#[derive(Debug, Args)]
struct Which {
    /// The shard, or with --from the keyspace of all that are listed; a name may contain slashes
    #[arg(value_name = "KEYSPACE/NAME")]
    what: String,
    /// A file with one name on each line; - is standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Create shards; nodes take them up by themselves
#[derive(Debug, Args)]
#[command(
    after_help = "Those that are there stay as they are. One that was deleted before goes on above its old epochs.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop shard create topics/eu.payments\n  \
    tenure --store sqlite:shop.db --cluster shop shard create topics --from names.txt"
)]
struct Create {
    #[command(flatten)]
    which: Which,
    /// A file with what goes along to whoever loads the shard, at most 4 KiB of text; - is standard input
    #[arg(long, value_name = "FILE")]
    meta: Option<PathBuf>,
}

/// Delete shards; their owners finish and seal first
#[derive(Debug, Args)]
#[command(
    after_help = "An owner stops as for a move: nothing new is admitted, what is in flight ends, the application seals. The\n\
    epoch is remembered. Those that are not there stay so. Ctrl-C, or the end of the timeout, ends only the waiting.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop shard delete topics/eu.payments\n  \
    tenure --store sqlite:shop.db --cluster shop shard delete topics --from names.txt"
)]
struct Delete {
    #[command(flatten)]
    which: Which,
    /// How long to wait for owners
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    timeout: Duration,
}

/// List the shards of a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "One name on each line, as --from takes them; with --json also owner, epoch, state and what is attached.\n\n\
    Examples:\n  tenure --store sqlite:shop.db --cluster shop shard ls topics\n  \
    tenure --store sqlite:shop.db --cluster shop shard ls topics --json | jq '.shards[] | select(.owner == null)'"
)]
struct Ls {
    /// The keyspace
    keyspace: KeyspaceName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Shard {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Create(action) => action.run(config).await,
            Action::Delete(action) => action.run(config).await,
            Action::Ls(action) => action.run(config).await,
        }
    }
}

impl Which {
    fn named(&self) -> Result<(KeyspaceName, Vec<ShardName>), Exit> {
        let Some(path) = &self.from else {
            let id: ShardId = self.what.parse().map_err(|e| {
                Exit::usage(format!(
                    "{:?} is no shard: {e}; write KEYSPACE/NAME, or KEYSPACE with --from FILE",
                    self.what
                ))
            })?;
            return Ok((id.keyspace, vec![id.shard]));
        };
        let keyspace = KeyspaceName::new(&self.what)?;
        let text = read(path)?;
        let mut names = Vec::new();
        for (n, line) in text.lines().enumerate() {
            if line.is_empty() {
                continue;
            }
            let name = ShardName::new(line)
                .map_err(|e| Exit::usage(format!("{}, line {}: {e}", path.display(), n + 1)))?;
            names.push(name);
        }
        Ok((keyspace, names))
    }

    fn tell(&self, what: &str, keyspace: &KeyspaceName, work: &ShardWork) {
        eprintln!(
            "keyspace {keyspace}: {} of {} shards {what}, {} were so before",
            work.done, work.asked, work.same
        );
        if self.json {
            stdout::json(&json!({
                "keyspace": keyspace, "asked": work.asked, "changed": work.done, "same": work.same,
            }));
        }
    }
}

fn progress(keyspace: &KeyspaceName, work: &ShardWork) {
    let left = work.asked - work.done - work.same;
    if left > 0 && work.asked > 1 {
        let closing = work.closing;
        eprintln!("keyspace {keyspace}: {left} shards to go, {closing} of them with an owner");
    }
}

impl Create {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (keyspace, names) = self.which.named()?;
        let meta = self.meta.as_deref().map(read).transpose()?;
        let new = |name| NewShard {
            name,
            meta: meta.clone(),
        };
        let shards = names.into_iter().map(new).collect();
        let admin = admin(config).await?;
        let told = |work: &ShardWork| progress(&keyspace, work);
        let left = "some are created, some are not; run the command again for the rest";
        let work = or_interrupted(admin.create_shards(&keyspace, shards, told), left).await?;
        self.which.tell("created", &keyspace, &work);
        Ok(ExitCode::SUCCESS)
    }
}

impl Delete {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (keyspace, names) = self.which.named()?;
        let admin = admin(config).await?;
        let told = |work: &ShardWork| progress(&keyspace, work);
        let left = "those whose owners were told are deleted all the same; run the command again for the rest";
        let deleting = admin.delete_shards(&keyspace, names, self.timeout, told);
        let work = or_interrupted(deleting, left).await?;
        self.which.tell("deleted", &keyspace, &work);
        Ok(ExitCode::SUCCESS)
    }
}

impl Ls {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let shards = admin(config).await?.shards(&self.keyspace).await?;
        if !self.json {
            let lines: Vec<String> = shards.iter().map(|(name, _)| format!("{name}\n")).collect();
            stdout::text(&lines.concat());
            return Ok(ExitCode::SUCCESS);
        }
        let all: Vec<_> = shards
            .iter()
            .map(|(name, record)| {
                json!({
                    "name": name, "owner": record.owner().map(|o| &o.node), "epoch": record.epoch,
                    "state": if record.deleting { "doomed" } else { record.ownership.name() }, "meta": record.meta,
                })
            })
            .collect();
        stdout::json(&json!({ "keyspace": self.keyspace, "shards": all }));
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> Result<String, Exit> {
    let text = match path == Path::new("-") {
        true => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => fs::read_to_string(path),
    };
    text.map_err(|e| Exit::usage(format!("{} cannot be read: {e}", path.display())))
}
