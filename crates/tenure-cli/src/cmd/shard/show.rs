//! `tenure shard show`: owner, addresses and history of a shard.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::admin::{SessionState, Snapshot};
use tenure_core::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::record::OwnerChange;
use tenure_core::view::KeyState;

use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use crate::stdout;
use crate::table::{Table, WIDTH};

/// Show the owner, the addresses and the last owner changes of a shard
#[derive(Debug, Args)]
#[command(after_help = "Exits with 1 if no node owns the shard.\n\n\
    Examples:\n  tenure shard show orders/17\n  tenure shard show topics/eu.payments --json")]
pub(crate) struct Show {
    /// Keyspace and shard, such as orders/17
    #[arg(value_name = "KEYSPACE/SHARD")]
    shard: ShardId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let snapshot = connect::read_existing(config).await?;
        snapshot.keyspace(&self.shard.keyspace)?;
        let answer = ShardLocation::new(&snapshot, &self.shard)?;
        answer.print(self.json, true)
    }
}

/// Owner of a shard.
#[derive(Debug, Serialize)]
pub(super) struct ShardLocation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    keyspace: KeyspaceName,
    shard: ShardName,
    epoch: Epoch,
    state: &'static str,
    owner: Option<NodeName>,
    session: Option<SessionId>,
    addresses: BTreeMap<String, String>,
    pin: Option<NodeName>,
    /// The last owner changes, oldest first.
    history: Vec<OwnerChange>,
    /// Reason why no node owns the shard.
    #[serde(skip)]
    unowned: Option<String>,
    /// Warning for a lease that is overdue.
    #[serde(skip)]
    overdue: Option<String>,
}

impl ShardLocation {
    pub(super) fn new(snapshot: &Snapshot, id: &ShardId) -> Result<Self, Exit> {
        let record = match snapshot.view.shards.cell(id) {
            Some(KeyState::Present(seen)) => &seen.record,
            Some(KeyState::Damaged { damage, .. }) => {
                return Err(Exit::failed(format!(
                    "shard {id}: {damage}; see `tenure status`"
                )));
            }
            Some(KeyState::Missing { .. }) | None => {
                return Err(Exit::failed(format!(
                    "shard {id} has no record in the store; `tenure status` shows the state of its keyspace"
                )));
            }
        };
        let mut answer = Self {
            key: None,
            keyspace: id.keyspace.clone(),
            shard: id.shard.clone(),
            epoch: record.epoch,
            state: record.ownership.name(),
            owner: None,
            session: None,
            addresses: BTreeMap::new(),
            pin: record.pin.clone(),
            history: record.history.clone(),
            unowned: None,
            overdue: None,
        };
        let Some(owner) = record.owner() else {
            answer.unowned = Some(format!("no node owns shard {id}: it is {}", answer.state));
            return Ok(answer);
        };
        let lease = snapshot.session_state(owner.session);
        if lease.is_over() {
            answer.unowned = Some(format!(
                "no node owns shard {id}: the session of its last owner, {}, has ended ({lease})",
                owner.node
            ));
            return Ok(answer);
        }
        answer.owner = Some(owner.node.clone());
        answer.session = Some(owner.session);
        if let Some(session) = snapshot.view.sessions.get(&owner.session) {
            answer.addresses.clone_from(&session.addresses);
        }
        if let SessionState::Overdue(time) = lease {
            answer.overdue = Some(format!(
                "warning: the lease of {} expired {} ago; its session is not ended yet",
                owner.node,
                ago(time)
            ));
        }
        Ok(answer)
    }

    /// Prints the answer; an error if no node owns the shard.
    pub(super) fn print(&self, json: bool, history: bool) -> Result<ExitCode, Exit> {
        match json {
            true => stdout::json(self),
            false => self.print_text(history),
        }
        if let Some(warning) = &self.overdue {
            eprintln!("{warning}");
        }
        match &self.unowned {
            Some(reason) => Err(Exit::failed(reason.clone())),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn print_text(&self, history: bool) {
        let dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let mut lines = vec![
            ("shard", format!("{}/{}", self.keyspace, self.shard)),
            ("owner", dash(self.owner.as_ref().map(ToString::to_string))),
            ("state", self.state.to_owned()),
            ("epoch", format!("{} ({})", self.epoch.0, self.epoch)),
            ("session", dash(self.session.map(|s| s.to_string()))),
        ];
        for (kind, address) in &self.addresses {
            lines.push(("address", format!("{kind} {address}")));
        }
        if let Some(pin) = &self.pin {
            lines.push(("pinned", pin.to_string()));
        }
        for (name, value) in lines {
            stdout::line(format!("{name:<8} {value}"));
        }
        if !history || self.history.is_empty() {
            return;
        }
        let mut table = Table::new(&["EPOCH", "FROM", "TO", "REASON"]);
        for change in &self.history {
            table.row(vec![
                change.epoch.to_string(),
                dash(change.from.as_ref().map(ToString::to_string)),
                dash(change.to.as_ref().map(ToString::to_string)),
                change.reason.to_string(),
            ]);
        }
        stdout::text(&format!("\n{}", table.render(WIDTH)));
    }
}

/// Formats a time span, rounded to seconds from one second on.
fn ago(time: Duration) -> String {
    let rounded = match time.as_secs() {
        0 => Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(0)),
        seconds => Duration::from_secs(seconds),
    };
    duration::show(rounded)
}
