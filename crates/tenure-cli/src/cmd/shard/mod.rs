//! `tenure shard`: lookup, placement, and creation and deletion of named shards.

mod lookup;
mod move_shard;
mod pin;
mod repair;
mod show;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tenure::admin::{NewShard, ShardWork};
use tenure_core::ids::{KeyspaceName, ShardId, ShardName};

use super::confirm::confirm;
use super::wait::or_interrupted;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;

/// Look up, move, pin, create, delete and repair shards
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tenure shard lookup user-42 --keyspace orders\n  \
    tenure shard show orders/17\n  tenure shard move orders/17 --to n1\n  \
    seq -f 'tenant-%g' 10000 | tenure shard create topics -f -")]
pub(crate) struct ShardCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Show(show::Show),
    Lookup(lookup::Lookup),
    Create(Create),
    Delete(Delete),
    Move(move_shard::MoveCommand),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Repair(repair::Repair),
}

/// Shards of a command.
#[derive(Debug, Args)]
struct Which {
    /// Shard, or with --file the keyspace of the listed shards; a name may contain slashes
    #[arg(value_name = "KEYSPACE/NAME")]
    what: String,
    /// File with one shard name per line; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Create named shards, which nodes then claim
#[derive(Debug, Args)]
#[command(
    after_help = "Existing shards are not changed. A shard that was deleted before continues above its old epochs.\n\n\
    Examples:\n  tenure shard create topics/eu.payments --metadata-file payments.json\n  \
    tenure shard create topics --file names.txt"
)]
struct Create {
    #[command(flatten)]
    which: Which,
    /// File with metadata for the handler that loads the shard, at most 4 KiB of text; - is standard input
    #[arg(long, value_name = "FILE")]
    metadata_file: Option<PathBuf>,
}

/// Delete named shards after their owners have finished running requests
#[derive(Debug, Args)]
#[command(
    after_help = "The owner of a shard rejects new requests, finishes running ones and seals the state. The epoch is kept. Shards\n\
    that do not exist are skipped. Ctrl-C, or the end of --wait-timeout, ends only the waiting.\n\n\
    Examples:\n  tenure shard delete topics/eu.payments --yes\n  \
    tenure shard delete topics --file names.txt --yes"
)]
struct Delete {
    #[command(flatten)]
    which: Which,
    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
    /// Time to wait for the owners; 0s: do not wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    wait_timeout: Duration,
}

/// List the shards of a keyspace
#[derive(Debug, Args)]
#[command(
    after_help = "Prints one name per line, in the format of --file; with --json also owner, epoch, state and metadata.\n\n\
    Examples:\n  tenure shard list topics\n  \
    tenure shard list topics --json | jq '.shards[] | select(.owner == null)'"
)]
struct List {
    /// Keyspace name
    keyspace: KeyspaceName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShardCommand {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        match &self.action {
            Action::Create(action) => action.run(config).await,
            Action::Delete(action) => action.run(config).await,
            Action::List(action) => action.run(config).await,
            Action::Show(action) => action.run(config).await,
            Action::Lookup(action) => action.run(config).await,
            Action::Move(action) => action.run(config).await,
            Action::Pin(action) => action.run(config).await,
            Action::Unpin(action) => action.run(config).await,
            Action::Repair(action) => action.run(config).await,
        }
    }
}

impl Which {
    fn named(&self) -> Result<(KeyspaceName, Vec<ShardName>), Exit> {
        let Some(path) = &self.file else {
            let id: ShardId = self.what.parse().map_err(|e| {
                Exit::usage(format!(
                    "{:?} is not a shard: {e}; write KEYSPACE/NAME, or KEYSPACE with --file FILE",
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
            "keyspace {keyspace}: {} of {} shards {what}, {} unchanged",
            work.done, work.asked, work.same
        );
        if self.json {
            stdout::json(&json!({
                "keyspace": keyspace, "requested": work.asked, "changed": work.done, "unchanged": work.same,
            }));
        }
    }
}

fn progress(keyspace: &KeyspaceName, work: &ShardWork) {
    let left = work.asked - work.done - work.same;
    if left > 0 && work.asked > 1 {
        let closing = work.closing;
        eprintln!("keyspace {keyspace}: {left} shards left, {closing} of them owned");
    }
}

impl Create {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (keyspace, names) = self.which.named()?;
        let meta = self.metadata_file.as_deref().map(read).transpose()?;
        let new = |name| NewShard {
            name,
            meta: meta.clone(),
        };
        let shards = names.into_iter().map(new).collect();
        let admin = connect::open_existing(config).await?;
        let told = |work: &ShardWork| progress(&keyspace, work);
        let left = "some shards are not created; run the command again for the rest";
        let work = or_interrupted(admin.create_shards(&keyspace, shards, told), left).await?;
        self.which.tell("created", &keyspace, &work);
        Ok(ExitCode::SUCCESS)
    }
}

impl Delete {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let (keyspace, names) = self.which.named()?;
        let what = format!(
            "{} shard(s) of keyspace {keyspace} will be deleted",
            names.len()
        );
        confirm(self.yes, &what)?;
        let admin = connect::open_existing(config).await?;
        let told = |work: &ShardWork| progress(&keyspace, work);
        let left = "shards that are marked for deletion are deleted anyway; run the command again for the rest";
        let deleting = admin.delete_shards(&keyspace, names, self.wait_timeout, told);
        let work = or_interrupted(deleting, left).await?;
        self.which.tell("deleted", &keyspace, &work);
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let admin = connect::open_existing(config).await?;
        let shards = admin.shards(&self.keyspace).await?;
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
                    "state": if record.deleting { "deleting" } else { record.ownership.name() }, "meta": record.meta,
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
