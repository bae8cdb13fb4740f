//! `tenure exec`: one child process per owned shard, and never two for one shard in the whole cluster.

pub(crate) mod internal_commands;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tenure::data_dir::DataDir;
use tenure::{Builder, Hashed, MetricsServer, Named, Node, StartError};
use tenure_core::ids::KeyspaceName;
use tenure_core::record::AssignedBy;
use tenure_core::settings::Timing;
use tenure_exec::{
    ChildHandler, GrantFiles, NodeIdentity, RestartCondition, ServiceManager, Supervisor,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::cli::Global;
use crate::config::flags::Flags;
use crate::config::settings_table::SettingDefinition;
use crate::config::{Config, SettingValue, planning};
use crate::connect;
use crate::exit::Exit;

/// Signals that come together are one wish.
const ONE_WISH: Duration = Duration::from_millis(300);

/// Run a command once per owned shard, at most once per shard in the cluster
#[derive(Debug, Args)]
#[command(
    after_help = "The environment of the command has TENURE_CLUSTER, TENURE_KEYSPACE, TENURE_SHARD, TENURE_EPOCH, TENURE_NODE,\n\
    TENURE_GRANT, and TENURE_META if the shard has metadata. When the node loses the shard, the process group gets\n\
    SIGTERM, and SIGKILL before another node can own the shard. A child checks its ownership with\n\
    `tenure grant check`.\n\n\
    Examples:\n  \
    tenure exec -k orders --shards 8 --data-dir n1 -- ./worker --fast\n  \
    tenure exec --singleton nightly -- ./cron"
)]
pub(crate) struct ExecCommand {
    /// Keyspace whose shards the command is run for; created if it does not exist
    #[arg(
        short = 'k',
        long,
        value_name = "NAME",
        required_unless_present = "singleton",
        conflicts_with = "singleton"
    )]
    keyspace: Option<KeyspaceName>,
    /// Number of shards of the keyspace; must match if the keyspace exists
    #[arg(long, value_name = "N", required_unless_present_any = ["singleton", "named"], conflicts_with = "singleton",
        value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Use named shards, created by `tenure shard create`
    #[arg(long, conflicts_with_all = ["singleton", "shards"])]
    named: bool,
    /// Run the command once in the cluster, under this name, instead of once per shard
    #[arg(long, value_name = "NAME")]
    singleton: Option<KeyspaceName>,
    /// Method of assigning shards to nodes: leader (an elected node plans), rendezvous (by hash) or fair-share (each node claims up to its share)
    #[arg(long, value_name = "MODE", default_value = "leader")]
    assigned_by: AssignedBy,
    /// Restart a command that exited: always, only if its exit code is not 0, or never
    #[arg(long, value_enum, default_value = "always")]
    restart: RestartOption,
    /// Prefix each output line of a child with its shard
    #[arg(long)]
    prefix: bool,
    /// Shadow mode: report in log and metrics what the node would do; own nothing and start no child
    #[arg(long)]
    shadow: bool,
    #[command(flatten)]
    flags: Flags,
    /// Command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Value of `--restart`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestartOption {
    /// After every exit
    Always,
    /// If the exit code is not 0
    OnFailure,
    /// Only when this node owns the shard again
    Never,
}

impl From<RestartOption> for RestartCondition {
    fn from(option: RestartOption) -> Self {
        match option {
            RestartOption::Always => Self::Always,
            RestartOption::OnFailure => Self::OnFailure,
            RestartOption::Never => Self::Never,
        }
    }
}

/// How a wait for a signal or for something else ended.
pub(crate) enum Waited<T> {
    Signal,
    Done(T),
}

impl ExecCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone(), SettingDefinition::is_nodes)
    }

    pub(crate) async fn run(self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        if let Waited::Signal = connect::ask_for_ttl(config, &mut signals).await {
            return Ok(ExitCode::SUCCESS);
        }
        let command = find_command(self.command)?;
        let (keyspace, kind) = match (self.singleton, self.keyspace, self.shards) {
            (Some(name), _, _) => (name, Hashed(1)),
            (None, Some(name), Some(shards)) => (name, Hashed(shards)),
            (None, Some(name), None) if self.named => (name, Named),
            (None, ..) => {
                return Err(Exit::usage(
                    "pass --keyspace with --shards or --named, or --singleton",
                ));
            }
        };
        let url = connect::store_url(config)?;
        let cluster = connect::named_cluster(config)?;
        let timing = config
            .timing()
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        let plan = config
            .plan_without_load("exec")
            .map_err(|problems| Exit::usage(problems.join("\n")))?;
        match signals.or(config.fits_existing(&keyspace, "exec")).await {
            Waited::Signal => return Ok(ExitCode::SUCCESS),
            Waited::Done(fits) => fits?,
        }
        let data = match config.text("data_dir") {
            Some(path) => Some(take_data_dir(path, timing.ttl, &mut signals).await?),
            None => None,
        };
        let node_name = match config.text("node") {
            Some(name) => name.to_owned(),
            None => tenure_exec::default_node_name(data.as_ref()),
        };
        let supervisor = Supervisor::begin(command, self.prefix).map_err(no_supervision)?;
        let (hurry, hurried) = watch::channel(false);
        let (files, _temporary) =
            GrantFiles::open(data.as_ref().map(DataDir::path)).map_err(|e| {
                Exit::failed(format!(
                    "the directory for grant files cannot be created: {e}"
                ))
            })?;
        let handler = ChildHandler::new(
            NodeIdentity {
                cluster: cluster.to_string(),
                keyspace: keyspace.to_string(),
                node: node_name.clone(),
            },
            files,
            supervisor.clone(),
            self.restart.into(),
            timing.kill_grace,
            hurried,
        );
        let mut builder = configured(Node::builder(url, cluster.as_str()), config)
            .assigned_by(self.assigned_by)
            .plan(plan);
        if let Some(data) = data {
            builder = builder.locked_data_dir(data);
        }
        let node = builder
            .name(&node_name)
            .shadow(self.shadow)
            .keyspace(keyspace.as_str(), kind, handler)
            .start();
        let done = live(node, config, &timing, &mut signals, hurry).await;
        supervisor.shutdown().await;
        done
    }
}

/// Path of the command's program, before anything is owned.
pub(crate) fn find_command(command: Vec<OsString>) -> Result<Vec<OsString>, Exit> {
    tenure_exec::find_command(command).map_err(|e| Exit::usage(e.to_string()))
}

/// Opens and locks the data directory, for this process and for those that it starts.
pub(crate) async fn take_data_dir(
    path: &str,
    ttl: Duration,
    signals: &mut Signals,
) -> Result<DataDir, Exit> {
    match signals.or(tenure_exec::lock_data_dir(path, ttl)).await {
        Waited::Done(locked) => locked.map_err(|e| Exit::failed(e.to_string())),
        Waited::Signal => Err(Exit::failed(format!(
            "interrupted while waiting for data directory {path}, which another process uses"
        ))),
    }
}

/// Failure to start the supervision of child processes.
pub(crate) fn no_supervision(error: std::io::Error) -> Exit {
    Exit::failed(format!(
        "the process cannot become the parent of orphaned processes (PR_SET_CHILD_SUBREAPER): {error}"
    ))
}

/// What the configuration says of the node beyond its name.
pub(crate) fn configured(mut builder: Builder, config: &Config) -> Builder {
    builder = builder.settings(config.settings());
    if let Some(zone) = config.text("zone") {
        builder = builder.zone(zone);
    }
    if let Some(SettingValue::Count(weight)) = config.value("weight") {
        builder = builder.weight(*weight);
    }
    if let Some(SettingValue::Count(most)) = config.value("capacity") {
        builder = builder.capacity(*most);
    }
    let labels = config.text("labels").map(planning::labels);
    for (name, value) in labels.and_then(Result::ok).unwrap_or_default() {
        builder = builder.label(name, value);
    }
    if let Some(path) = config.text("trace") {
        builder = builder.trace(path);
    }
    if let Some(Ok(rejoin)) = config.text("rejoin").map(str::parse) {
        builder = builder.rejoin(rejoin);
    }
    if let Some(SettingValue::Switch(join)) = config.value("start_drained") {
        builder = builder.start_drained(*join);
    }
    builder
}

async fn live(
    start: impl Future<Output = Result<Node, StartError>>,
    config: &Config,
    timing: &Timing,
    signals: &mut Signals,
    hurry: watch::Sender<bool>,
) -> Result<ExitCode, Exit> {
    let started = signals.or(start).await;
    let node = match started {
        Waited::Signal => return Ok(ExitCode::SUCCESS),
        Waited::Done(node) => node.map_err(|e| not_started(&e))?,
    };
    let _metrics = match config.text("admin_addr") {
        Some(address) => Some(
            MetricsServer::bind(address, node.metrics().clone())
                .await
                .map_err(|e| Exit::usage(e.to_string()))?,
        ),
        None => None,
    };
    tracing::info!(node = %node.name(), owned_shards = node.owned().len(), "tenure exec started");
    let manager = ServiceManager::from_env();
    manager.notify("READY=1");
    let _alive = manager.keep_alive();
    match signals.or(node.ended()).await {
        Waited::Done(ended) => ended.map_err(|e| Exit::failed(e.to_string()))?,
        Waited::Signal => {
            manager.notify("STOPPING=1");
            let limit = timing.drain_timeout + timing.ttl * 2;
            let stopped = tokio::time::timeout(limit, stop(&node, signals, &hurry)).await;
            stopped.unwrap_or_else(|_| Err(unreleased()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops in good order: at the first signal with all the time that children may need, at the second without, at the third
/// without waiting for the store either.
async fn stop(node: &Node, signals: &mut Signals, hurry: &watch::Sender<bool>) -> Result<(), Exit> {
    let mut stopping = Box::pin(node.stop());
    for _ in 0..2 {
        match signals.again_or(&mut stopping).await {
            Waited::Done(ended) => return ended.map_err(|e| Exit::failed(e.to_string())),
            Waited::Signal => drop(hurry.send_replace(true)),
        }
    }
    Err(unreleased())
}

pub(crate) fn not_started(error: &StartError) -> Exit {
    match error {
        StartError::Trace(_) => Exit::usage(error.to_string()),
        _ => Exit::failed(error.to_string()),
    }
}

pub(crate) fn unreleased() -> Exit {
    Exit::failed("exited without releasing the shards; other nodes claim them after the ttl")
}

/// The signals that ask for an end.
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    pub(crate) fn new() -> Result<Self, Exit> {
        let new = |kind| {
            signal(kind)
                .map_err(|e| Exit::failed(format!("signal handlers cannot be installed: {e}")))
        };
        Ok(Self([
            new(SignalKind::terminate())?,
            new(SignalKind::interrupt())?,
            new(SignalKind::hangup())?,
        ]))
    }

    /// The same for who shares a terminal with somebody who decides: Ctrl-C is not for it.
    pub(crate) fn without_interrupt() -> Result<Self, Exit> {
        let mut signals = Self::new()?;
        let quiet = signal(SignalKind::user_defined1());
        signals.0[1] =
            quiet.map_err(|e| Exit::failed(format!("signal handlers cannot be installed: {e}")))?;
        Ok(signals)
    }

    pub(crate) async fn any(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.recv() => {}
            _ = b.recv() => {}
            _ = c.recv() => {}
        }
    }

    /// Like [`Signals::or`], but whoever signals a process and then its group has asked once.
    pub(crate) async fn again_or<T>(&mut self, other: impl Future<Output = T>) -> Waited<T> {
        let first = Instant::now();
        let mut other = Box::pin(other);
        loop {
            match self.or(&mut other).await {
                Waited::Signal if first.elapsed() < ONE_WISH => {}
                waited => return waited,
            }
        }
    }

    pub(crate) async fn or<T>(&mut self, other: impl Future<Output = T>) -> Waited<T> {
        tokio::select! {
            biased;
            () = self.any() => Waited::Signal,
            done = other => Waited::Done(done),
        }
    }
}
