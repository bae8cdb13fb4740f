//! `tenure router`: a reverse proxy that forwards each request to the owner of its key.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tenure::Router;
use tenure::router::HoldLimits;
use tenure_core::ids::KeyspaceName;
use tenure_server::{
    ADDRESS, Health, HealthServer, HttpMetrics, KeyRule, KeySource, Proxy, ProxySettings,
    ServeLimits, Server, Service, WorkerThreads, bind,
};
use tokio::net::TcpListener;

use super::exec::{Signals, Waited, not_started};
use crate::cli::Global;
use crate::config::Config;
use crate::config::duration;
use crate::config::flags::RouterFlags;
use crate::config::settings_table::SettingDefinition;
use crate::connect;
use crate::exit::Exit;

/// Run a router: forward HTTP requests to the owners of their keys and hold them during moves
#[derive(Debug, Args)]
#[command(
    after_help = "The router finds nodes by the `http` address in their sessions, which `tenure sidecar` or an embedding\n\
    application publishes. It holds and retries a request only if no owner has received it.\n\
    On SIGTERM it accepts no new connections and exits when all requests are answered; on a second SIGTERM it exits\n\
    immediately.\n\n\
    Examples:\n  \
    tenure router --listen :8080 -k orders --key-from header:X-User\n  \
    tenure router --listen 0.0.0.0:80 -k tenants --key-from path:2 --admin-addr :9090"
)]
pub(crate) struct RouterCommand {
    /// Address for requests, as HOST:PORT; :PORT listens on loopback only
    #[arg(long, value_name = "ADDR")]
    listen: String,
    #[command(flatten)]
    pub(super) keys: RequestKeyArgs,
    #[command(flatten)]
    pub(super) holding: HoldQueueArgs,
    #[command(flatten)]
    flags: RouterFlags,
}

/// Keyspace and key of requests.
#[derive(Clone, Debug, Args)]
pub(crate) struct RequestKeyArgs {
    /// Keyspace that the keys of requests belong to
    #[arg(short = 'k', long, value_name = "NAME")]
    pub(crate) keyspace: KeyspaceName,
    /// Source of the key: header:NAME, path:N, query:NAME, cookie:NAME, or shard-header:NAME for the shard itself;
    /// repeatable, the first one present counts [default: header:Tenure-Key, then shard-header:Tenure-Shard]
    #[arg(long, value_name = "SOURCE")]
    key_from: Vec<KeySource>,
    /// Time for an owner to start its response
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    pub(crate) response_timeout: Duration,
}

impl RequestKeyArgs {
    pub(crate) fn rule(&self) -> KeyRule {
        KeyRule::new(self.keyspace.clone(), self.key_from.clone())
    }
}

/// Limits of the hold queue.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Hold queue")]
pub(crate) struct HoldQueueArgs {
    /// Maximum number of requests held until their shard is served; one shard may use half, further ones fail with 503
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    hold_max_requests: u64,
    /// Maximum size of all held requests, in bytes; one shard may use half, further requests fail with 503
    #[arg(long, value_name = "NUMBER", default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    hold_max_bytes: u64,
    /// Maximum time that a request is held before it fails with 503
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    hold_max_age: Duration,
}

impl HoldQueueArgs {
    pub(crate) fn limits(&self) -> HoldLimits {
        HoldLimits {
            count: self.hold_max_requests,
            bytes: self.hold_max_bytes,
            age: self.hold_max_age,
        }
    }
}

/// How the router is doing.
struct Doing {
    router: Router,
    http: Arc<HttpMetrics>,
    stopping: AtomicBool,
}

impl Health for Doing {
    fn live(&self) -> Result<(), String> {
        Ok(())
    }

    // Cut off from the store it still knows what it knew: taking all routers out of service then would make an outage of it.
    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async {
            match self.stopping.load(Ordering::Acquire) {
                true => Err("stopping".to_owned()),
                false => Ok(()),
            }
        })
    }

    fn metrics(&self) -> String {
        self.router.metrics().render() + &self.http.render()
    }
}

impl RouterCommand {
    pub(crate) fn config(&self, global: &Global) -> Result<Config, Exit> {
        global.load(self.flags.0.clone(), SettingDefinition::is_routers)
    }

    pub(crate) async fn run(&self, config: &Config) -> Result<ExitCode, Exit> {
        let mut signals = Signals::new()?;
        if let Waited::Signal = connect::ask_for_ttl(config, &mut signals).await {
            return Ok(ExitCode::SUCCESS);
        }
        let (url, cluster) = (connect::store_url(config)?, connect::named_cluster(config)?);
        let unfit = |problems: Vec<String>| Exit::usage(problems.join("\n"));
        config.timing().map_err(unfit)?;
        let listener = bind(&self.listen).await.map_err(bad_address)?;
        let address = listener.local_addr().map_err(bad_address)?;
        let at_admin = bind_admin(config.text("admin_addr")).await?;
        let mut builder = Router::builder(url, cluster.as_str())
            .settings(config.settings())
            .hold(self.holding.limits())
            .address(ADDRESS, format!("http://{address}"));
        if let Some(name) = config.text("node") {
            builder = builder.name(name);
        }
        let started = signals.or(builder.start()).await;
        let router = match started {
            Waited::Signal => return Ok(ExitCode::SUCCESS),
            Waited::Done(router) => router.map_err(|e| not_started(&e))?,
        };
        let http = HttpMetrics::new("router");
        let settings = ProxySettings {
            timeout: self.keys.response_timeout,
            ..ProxySettings::default()
        };
        let proxy = Proxy::new(router.clone(), self.keys.rule(), settings, http.clone());
        let limits = ServeLimits::default();
        let server = serve(listener, limits, proxy.clone())?;
        let doing = Arc::new(Doing {
            router: router.clone(),
            http,
            stopping: AtomicBool::new(false),
        });
        let _admin = admin(at_admin, doing.clone())?;
        tracing::info!(router = %router.name(), %address, "tenure router started");
        eprintln!("listening at http://{address}");
        signals.any().await;
        doing.stopping.store(true, Ordering::Release);
        let stopping = async {
            tokio::join!(server.stop(), proxy.stop_streams());
            router.stop().await
        };
        match signals.again_or(Box::pin(stopping)).await {
            Waited::Done(ended) => ended.map_err(|e| Exit::failed(e.to_string()))?,
            Waited::Signal => {
                return Err(Exit::failed(
                    "exited immediately; held requests were not answered",
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Binds the address for health checks and metrics early, so that an address in use fails before anything else starts.
pub(crate) async fn bind_admin(address: Option<&str>) -> Result<Option<TcpListener>, Exit> {
    match address {
        Some(address) => bind(address).await.map(Some).map_err(bad_address),
        None => Ok(None),
    }
}

/// Serves requests on dedicated threads.
pub(crate) fn serve(
    listener: TcpListener,
    limits: ServeLimits,
    service: Arc<impl Service>,
) -> Result<Server, Exit> {
    let lanes = WorkerThreads::per_processor();
    let lanes =
        lanes.map_err(|e| Exit::failed(format!("worker threads cannot be started: {e}")))?;
    Server::start_on(Some(lanes), listener, limits, service).map_err(bad_address)
}

/// Serves health checks and metrics if there is a listener.
pub(crate) fn admin(
    listener: Option<TcpListener>,
    health: Arc<impl Health>,
) -> Result<Option<Server>, Exit> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let limits = ServeLimits {
        connections: 64,
        ..ServeLimits::default()
    };
    let server = Server::start(listener, limits, HealthServer::new(health)).map_err(bad_address)?;
    tracing::info!(address = %server.address(), "health and metrics server started");
    Ok(Some(server))
}

pub(crate) fn bad_address(error: std::io::Error) -> Exit {
    Exit::usage(error.to_string())
}
