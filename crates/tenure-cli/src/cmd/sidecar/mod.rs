//! `tenure sidecar`: owns shards for an HTTP application and admits only requests for them.

pub(crate) mod demo_app;
mod health;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tenure::data_dir::DataDir;
use tenure::{Hashed, Named, Node, Router};
use tenure_core::record::AssignedBy;
use tenure_core::settings::Timing;
use tenure_exec::AppProcess;
use tenure_server::{
    ADDRESS, ApplicationEndpoint, HookClient, HookHandler, HttpMetrics, Proxy, ProxySettings,
    ServeLimits, Sidecar, SidecarSettings, bind,
};
use tokio::net::TcpListener;

use super::exec::{
    Signals, Waited, configured, find_command, no_supervision, not_started, take_data_dir,
    unreleased,
};
use super::router::{HoldQueueArgs, RequestKeyArgs, admin, bad_address, bind_admin, serve};
use crate::cli::Global;
use crate::config::flags::Flags;
use crate::config::settings_table::SettingDefinition;
use crate::config::{Config, duration};
use crate::connect;
use crate::exit::Exit;
use health::SidecarHealth;

/// Time for which a stopped sidecar still answers routers that do not know its end yet.
const LINGER: Duration = Duration::from_millis(500);

/// Run a sidecar: own shards for an HTTP application and admit only requests for them
#[derive(Debug, Args)]
#[command(
    after_help = "Admitted requests carry the headers Tenure-Shard, Tenure-Epoch and Tenure-Key. A request for a shard that this\n\
    sidecar does not serve is answered with 421 before the application receives it.\n\
    Hooks are POST requests to URL/load, /catch_up, /seal and /release; each is optional (404).\n\
    On SIGTERM the sidecar hands over its shards and exits; on a second SIGTERM it exits immediately.\n\n\
    Examples:\n  \
    tenure sidecar --listen :8001 --app http://127.0.0.1:9001 -k orders --shards 64\n  \
    tenure sidecar --listen :8001 --app http://127.0.0.1:9001 --hooks http://127.0.0.1:9001/tenure \\\n      \
    -k orders --shards 64 --data-dir n1 --forward -- python3 counter.py 9001\n  \
    tenure sidecar --listen :8001 --app http://127.0.0.1:9001 -k tenants --named"
)]
pub(crate) struct SidecarCommand {
    /// Address for requests, as HOST:PORT; :PORT listens on loopback only
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// Address that routers connect to, as HOST:PORT; default: the address of --listen
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Application: http://HOST:PORT, or h2c://HOST:PORT for HTTP/2 and gRPC
    #[arg(long, value_name = "URL")]
    app: String,
    /// Base URL of the lifecycle hooks of the application
    #[arg(long, value_name = "URL")]
    hooks: Option<String>,
    /// Load a shard while its old owner still serves it; needs the hook catch_up
    #[arg(long, requires = "hooks")]
    warm: bool,
    /// Timeout of each hook except load
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    hook_timeout: Duration,
    /// Number of shards of the keyspace, which is created if it does not exist; must match if it exists
    #[arg(long, value_name = "N", required_unless_present = "named",
        value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Use named shards, created by `tenure shard create`; the key of a request is the name of its shard
    #[arg(long, conflicts_with = "shards")]
    named: bool,
    /// Method of assigning shards to nodes: leader (an elected node plans), rendezvous (by hash) or fair-share (each node claims up to its share)
    #[arg(long, value_name = "MODE", default_value = "leader")]
    assigned_by: AssignedBy,
    #[command(flatten)]
    keys: RequestKeyArgs,
    /// Forward requests for shards of other nodes, as a router does
    #[arg(long)]
    forward: bool,
    /// Command that runs the application, restarted whenever it exits
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    holding: HoldQueueArgs,
    #[command(flatten)]
    flags: Flags,
}

/// What a node is started from.
struct Plan<'a> {
    url: &'a str,
    cluster: String,
    timing: Timing,
    listener: TcpListener,
    admin: Option<TcpListener>,
    advertised: String,
    application: Arc<ApplicationEndpoint>,
    hooks: Option<Arc<HookClient>>,
    data: Option<DataDir>,
}

impl SidecarCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone(), SettingDefinition::is_nodes)
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        if let Waited::Signal = connect::ask_for_ttl(config, &mut signals).await {
            return Ok(ExitCode::SUCCESS);
        }
        let fits = config.fits_existing(&self.keys.keyspace, "sidecar");
        match signals.or(fits).await {
            Waited::Signal => return Ok(ExitCode::SUCCESS),
            Waited::Done(fits) => fits?,
        }
        let plan = self.plan(config, &mut signals).await?;
        let child = match self.command.is_empty() {
            true => None,
            false => {
                let command = find_command(self.command.clone())?;
                Some(AppProcess::begin(command).map_err(no_supervision)?)
            }
        };
        let (grace, limit) = (plan.timing.kill_grace, self.stop_limit(&plan.timing));
        let done = match self.warm {
            true => self.live::<true>(config, plan, limit, &mut signals).await,
            false => self.live::<false>(config, plan, limit, &mut signals).await,
        };
        if let Some(child) = child {
            child.end(grace).await;
        }
        done
    }

    async fn plan<'a>(&self, config: &'a Config, signals: &mut Signals) -> Result<Plan<'a>, Exit> {
        let unfit = |problems: Vec<String>| Exit::usage(problems.join("\n"));
        let application = ApplicationEndpoint::new(&self.app);
        let hooks = self.hooks.as_deref();
        let hooks = hooks.map(|url| HookClient::new(url, self.hook_timeout));
        let listener = bind(&self.listen).await.map_err(bad_address)?;
        let address = listener.local_addr().map_err(bad_address)?;
        let admin = bind_admin(config.text("admin_addr")).await?;
        let advertised = self.advertise.clone();
        if advertised.is_none() && address.ip().is_unspecified() {
            let reason = format!(
                "--listen {} has no specific host; pass the address for routers with --advertise",
                self.listen
            );
            return Err(Exit::usage(reason));
        }
        let timing = config.timing().map_err(unfit)?;
        // Before the application is started: it holds on to the lock, too.
        let data = match config.text("data_dir") {
            Some(path) => Some(take_data_dir(path, timing.ttl, signals).await?),
            None => None,
        };
        Ok(Plan {
            data,
            url: connect::store_url(config)?,
            cluster: connect::named_cluster(config)?.to_string(),
            timing,
            listener,
            admin,
            advertised: advertised.unwrap_or_else(|| address.to_string()),
            application: application.map_err(|e| Exit::usage(format!("--app: {e}")))?,
            hooks: hooks
                .transpose()
                .map_err(|e| Exit::usage(format!("--hooks: {e}")))?,
        })
    }

    /// How long a stop may take: what is in flight gets its time, and the store's answers theirs.
    fn stop_limit(&self, timing: &Timing) -> Duration {
        let hook = if self.hooks.is_some() {
            self.hook_timeout
        } else {
            Duration::ZERO
        };
        timing.drain_timeout + timing.ttl * 2 + hook
    }

    async fn live<const WARM: bool>(
        &self,
        config: &Config,
        mut plan: Plan<'_>,
        stop_limit: Duration,
        signals: &mut Signals,
    ) -> Result<ExitCode, Exit> {
        let application = plan.application.clone();
        // An application that is not there yet would only fail what it is sent.
        if let Waited::Signal = signals.or(health::up(&application)).await {
            return Ok(ExitCode::SUCCESS);
        }
        let name = match config.text("node") {
            Some(name) => name.to_owned(),
            None => tenure_exec::default_node_name(plan.data.as_ref()),
        };
        let unfit = |problems: Vec<String>| Exit::usage(problems.join("\n"));
        let mut builder = configured(Node::builder(plan.url, &plan.cluster), config)
            .assigned_by(self.assigned_by)
            .plan(config.plan_without_load("sidecar").map_err(unfit)?)
            .name(&name)
            .address(ADDRESS, format!("http://{}", plan.advertised));
        if let Some(data) = plan.data.take() {
            builder = builder.locked_data_dir(data);
        }
        let handler = HookHandler::<WARM>::new(plan.hooks.clone());
        let keyspace = self.keys.keyspace.as_str();
        let kind = self.shards.map_or(Named, Hashed);
        let starting = builder.keyspace(keyspace, kind, handler).start();
        let node = match signals.or(starting).await {
            Waited::Signal => return Ok(ExitCode::SUCCESS),
            Waited::Done(node) => node.map_err(|e| not_started(&e))?,
        };
        let proxy = match self.forward {
            true => Some(self.proxy(config, &plan, &name).await?),
            false => None,
        };
        let http = HttpMetrics::new("sidecar");
        let settings = SidecarSettings {
            timeout: self.keys.response_timeout,
        };
        let rule = self.keys.rule();
        let gate = Sidecar::<HookHandler<WARM>>::new(
            node.clone(),
            rule,
            application.clone(),
            settings,
            http.clone(),
            proxy.clone(),
        );
        let limits = ServeLimits {
            // Routers keep connections, and close them themselves.
            head_timeout: Duration::from_secs(90),
            ..ServeLimits::default()
        };
        let server = serve(plan.listener, limits, gate.clone())?;
        let doing = Arc::new(SidecarHealth::new(
            node.clone(),
            application,
            http,
            proxy.clone(),
        ));
        let _admin = admin(plan.admin.take(), doing.clone())?;
        tracing::info!(node = %node.name(), address = %plan.advertised, owned_shards = node.owned().len(), "tenure sidecar started");
        eprintln!("listening at http://{}", server.address());
        if let Waited::Done(ended) = signals.or(node.ended()).await {
            ended.map_err(|e| Exit::failed(e.to_string()))?;
            return Ok(ExitCode::SUCCESS);
        }
        doing.stops();
        let stopping = async {
            node.stop().await.map_err(|e| Exit::failed(e.to_string()))?;
            let streams = async {
                if let Some(proxy) = &proxy {
                    proxy.stop_streams().await;
                }
            };
            tokio::join!(gate.streams_ended(), streams);
            tokio::time::sleep(LINGER).await;
            server.stop().await;
            if let Some(proxy) = &proxy {
                let stopped = proxy.router().stop().await;
                stopped.map_err(|e| Exit::failed(e.to_string()))?;
            }
            Ok(ExitCode::SUCCESS)
        };
        let stopping = tokio::time::timeout(stop_limit, stopping);
        match signals.again_or(Box::pin(stopping)).await {
            Waited::Done(Ok(done)) => done,
            Waited::Done(Err(_)) | Waited::Signal => Err(unreleased()),
        }
    }

    async fn proxy(
        &self,
        config: &Config,
        plan: &Plan<'_>,
        name: &str,
    ) -> Result<Arc<Proxy>, Exit> {
        let router = Router::builder(plan.url, &plan.cluster)
            .name(format!("{name}.router"))
            .settings(config.settings())
            .hold(self.holding.limits())
            .start()
            .await
            .map_err(|e| not_started(&e))?;
        let settings = ProxySettings {
            timeout: self.keys.response_timeout,
            ..ProxySettings::default()
        };
        let http = HttpMetrics::new("router");
        Ok(Proxy::new(router, self.keys.rule(), settings, http))
    }
}
