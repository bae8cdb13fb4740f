//! `tenure owner`: who owns the shard of a key, right now.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tenure_core::hash;
use tenure_core::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::record::KeyspaceKind;
use tenure_core::view::KeyState;

use crate::cluster_client::ClusterClient;
use crate::config::Config;
use crate::exit::Exit;
use crate::snapshot::{Lease, Snapshot, ago};
use crate::stdout;

/// Print which node owns the shard of a key
#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if nobody owns it.\n\n\
    Examples:\n  tenure --store sqlite:shop.db owner user-42 --keyspace orders\n  \
    tenure --store sqlite:shop.db owner --shard 17 --json")]
pub(crate) struct Owner {
    /// The key, as the application has it; in a named keyspace, the shard's name
    #[arg(required_unless_present = "shard")]
    key: Option<String>,
    /// The keyspace; not needed if there is only one
    #[arg(long, value_name = "NAME")]
    keyspace: Option<KeyspaceName>,
    /// Name the shard itself instead of a key
    #[arg(long, value_name = "SHARD", conflicts_with = "key")]
    shard: Option<ShardName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Who owns a shard.
#[derive(Debug, Serialize)]
struct Answer {
    keyspace: KeyspaceName,
    shard: ShardName,
    epoch: Epoch,
    state: &'static str,
    owner: Option<NodeName>,
    session: Option<SessionId>,
    addresses: BTreeMap<String, String>,
}

impl Owner {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let place = ClusterClient::look(config).await?;
        let snapshot = place.existing().await?;
        let id = self.shard(&snapshot)?;
        let record = match snapshot.view.shards.cell(&id) {
            Some(KeyState::Present(seen)) => &seen.record,
            Some(KeyState::Damaged { damage, .. }) => {
                return Err(Exit::failed(format!(
                    "shard {id}: {damage}; see `tenure status`"
                )));
            }
            Some(KeyState::Missing { .. }) | None => {
                return Err(Exit::failed(format!(
                    "there is no record of shard {id}; see `tenure status`"
                )));
            }
        };
        let mut answer = Answer {
            keyspace: id.keyspace.clone(),
            shard: id.shard.clone(),
            epoch: record.epoch,
            state: record.ownership.name(),
            owner: None,
            session: None,
            addresses: BTreeMap::new(),
        };
        let Some(owner) = record.owner() else {
            return self.nobody(
                &answer,
                format!("nobody owns shard {id}: it is {}", answer.state),
            );
        };
        let lease = snapshot.lease(owner.session);
        if lease.is_over() {
            let last = &owner.node;
            let text = format!(
                "nobody owns shard {id}: the session of its last owner, {last}, is over ({lease})"
            );
            return self.nobody(&answer, text);
        }
        answer.owner = Some(owner.node.clone());
        answer.session = Some(owner.session);
        if let Some(session) = snapshot.view.sessions.get(&owner.session) {
            answer.addresses.clone_from(&session.addresses);
        }
        self.show(&answer);
        if let Lease::Overdue(time) = lease {
            eprintln!(
                "warning: the lease of {} ran out {} ago; nobody has ended it yet",
                owner.node,
                ago(time)
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    fn shard(&self, snapshot: &Snapshot) -> Result<ShardId, Exit> {
        let keyspace = match &self.keyspace {
            Some(name) => name.clone(),
            None => snapshot.sole_keyspace()?,
        };
        let kind = snapshot.keyspace(&keyspace)?.kind;
        let shard = match (&self.shard, &self.key, kind) {
            (Some(shard), _, _) => shard.clone(),
            (None, Some(key), KeyspaceKind::Hashed(n)) => hash::shard_of(key.as_bytes(), n),
            (None, key, _) => ShardName::new(key.as_deref().unwrap_or_default())?,
        };
        Ok(ShardId::new(keyspace, shard))
    }

    fn nobody(&self, answer: &Answer, why: String) -> Result<ExitCode, Exit> {
        if self.json {
            stdout::json(answer);
        }
        Err(Exit::failed(why))
    }

    fn show(&self, answer: &Answer) {
        if self.json {
            return stdout::json(answer);
        }
        let text = |value: Option<String>| value.unwrap_or_default();
        let mut lines = vec![
            ("shard", format!("{}/{}", answer.keyspace, answer.shard)),
            (
                "owner",
                text(answer.owner.as_ref().map(ToString::to_string)),
            ),
            ("state", answer.state.to_owned()),
            ("epoch", format!("{} ({})", answer.epoch.0, answer.epoch)),
            ("session", text(answer.session.map(|s| s.to_string()))),
        ];
        for (kind, address) in &answer.addresses {
            lines.push(("address", format!("{kind} {address}")));
        }
        for (name, value) in lines {
            stdout::line(format!("{name:<8} {value}"));
        }
    }
}
