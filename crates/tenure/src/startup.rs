//! From a builder to a running driver.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tenure_core::node::{Node as Machine, NodeConfig, Timekeeper};
use tenure_core::record::RejoinMode;
use tenure_core::rules::Rules;
use tenure_core::settings::{Settings, Timing};
use tenure_core::trace_format;
use tenure_store::{ClockScope, Store, StoreError};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, oneshot, watch};
use tracing::{info, warn};

use crate::builder::{Builder, CheckedNames, StoreSource};
use crate::clock::Clock;
use crate::data_dir::DataDir;
use crate::driver::{
    Driver, DriverParts, DriverReceiver, DriverSender, NodeLifecycle, RuntimeHeartbeat,
};
use crate::error::StartError;
use crate::handler_task::TaskContext;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::router::{HoldLimits, RouterDriver};
use crate::shard_table::{KeyspaceShards, ShardTable};
use crate::store_error_log::StoreErrorLog;
use crate::store_io::{StoreCalls, StoreIo};
use crate::store_watch::backoff;
use crate::trace_writer::{TraceError, TraceWriter};

/// How many notes a slow listener may be behind before it misses some.
const NOTES: usize = 4096;

/// Everything that is there before the driver is.
struct Launch {
    builder: Builder,
    names: CheckedNames,
    application: Handle,
    inputs: DriverSender,
    receiver: DriverReceiver,
    board: Arc<ShardTable>,
    life: Arc<watch::Sender<NodeLifecycle>>,
    metrics: Arc<Metrics>,
    notes: broadcast::Sender<Arc<tenure_core::telemetry::NodeEvent>>,
}

pub(crate) async fn start(builder: Builder) -> Result<Node, StartError> {
    let names = match builder.names() {
        (Some(names), problems) if problems.is_empty() => names,
        (_, problems) => return Err(StartError::Invalid(problems)),
    };
    let keyspaces = names.keyspaces.iter().map(|(name, (config, handler))| {
        KeyspaceShards::new(name.clone(), config.kind, handler.handler_type())
    });
    let (inputs, receiver) = DriverSender::channel();
    let launch = Launch {
        board: Arc::new(ShardTable::new(names.node.clone(), keyspaces)),
        life: Arc::new(watch::channel(NodeLifecycle::Starting).0),
        metrics: match &builder.router {
            Some(router) => router.keeper.metrics(),
            None => Arc::new(Metrics::new(builder.clock.clone())),
        },
        notes: broadcast::channel(NOTES).0,
        application: Handle::current(),
        inputs,
        receiver,
        names,
        builder,
    };
    // From here on dropping the node, also by dropping this future, ends the driver.
    let node = Node::new(
        launch.board.clone(),
        launch.inputs.clone(),
        launch.life.subscribe(),
        launch.metrics.clone(),
        launch.notes.clone(),
    );
    if launch.builder.runs_here() {
        tokio::spawn(launch.driver().await?.run());
    } else {
        on_own_thread(launch).await?;
    }
    node.started().await?;
    Ok(node)
}

async fn on_own_thread(launch: Launch) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut ready, made) = oneshot::channel();
    let name = format!("tenure-{}", launch.names.node);
    std::thread::Builder::new().name(name).spawn(move || {
        runtime.block_on(async {
            let driver = tokio::select! {
                biased;
                // Whoever waited has given up: a store that is away may be so for ever.
                () = ready.closed() => return,
                driver = launch.driver() => driver,
            };
            match driver {
                Ok(driver) => {
                    // Whoever waited may be gone: then the node is dropped, and the driver hears of that.
                    let _ = ready.send(Ok(()));
                    driver.run().await;
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        });
        // A call that hangs in the store must not keep the thread.
        runtime.shutdown_background();
    })?;
    made.await.unwrap_or(Err(StartError::Gone))
}

impl Launch {
    /// Opens the store and the data directory, checks what depends on them, and puts the driver together. Runs where the
    /// driver will run, so that the store's connections live there too.
    async fn driver(mut self) -> Result<Driver, StartError> {
        let store = match &self.builder.store {
            StoreSource::Url(url) => opened(url, &self.builder.clock).await?,
            StoreSource::Open(store) => store.clone(),
        };
        let settings = self.builder.effective_settings(&*store);
        let hold = self.builder.router.as_ref().map(|router| router.hold);
        let timing = checked(&settings, store.info().min_ttl, hold)?;
        let data_dir = match (self.builder.locked.take(), &self.builder.data_dir) {
            (Some(locked), _) => Some(Arc::new(locked)),
            (None, Some(path)) => {
                let opened = DataDir::open_after_death(path, &self.builder.clock, timing.ttl);
                Some(Arc::new(opened.await?))
            }
            (None, None) => None,
        };
        let ground = TaskContext {
            clock: self.builder.clock.clone(),
            inputs: self.inputs.clone(),
            application: self.application.clone(),
            data_dir,
            kill_grace: timing.kill_grace,
        };
        let trouble = Arc::new(StoreErrorLog::new(ground.clock.clone(), timing.ttl));
        let calls = StoreCalls {
            cluster: self.names.cluster.clone(),
            timeout: timing.request_timeout,
            inputs: self.inputs.clone(),
            metrics: self.metrics.clone(),
            trouble: trouble.clone(),
            store: store.info().url.as_str().into(),
            list_patience: Arc::new(AtomicU32::new(1)),
        };
        let _heartbeat = RuntimeHeartbeat::begin(&ground, timing.renew_interval);
        let config = self.config(&*store, timing, ground.data_dir.as_deref());
        let trace = self.recorder(&config)?;
        let router = self.builder.router.take().map(|parts| {
            let tell = parts.keeper.tell();
            tokio::spawn(RouterDriver::new(parts.keeper, self.inputs.clone()).run());
            tell
        });
        Ok(Driver::new(DriverParts {
            machine: Machine::new(Arc::new(config)),
            io: StoreIo::open(calls, store, ground.clock.clone())?,
            ground,
            handlers: self
                .names
                .keyspaces
                .into_iter()
                .map(|(name, (_, handler))| (name, handler))
                .collect(),
            board: self.board,
            inputs: self.receiver,
            life: self.life,
            metrics: self.metrics,
            trouble,
            notes: self.notes,
            trace,
            router,
            _heartbeat,
        }))
    }

    fn recorder(&self, config: &NodeConfig) -> Result<Option<TraceWriter>, TraceError> {
        let Some(path) = &self.builder.trace else {
            return Ok(None);
        };
        let begin = trace_format::TraceBegin {
            format: trace_format::FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("TENURE_COMMIT").map(str::to_owned),
            cluster: self.names.cluster.clone(),
            process: std::process::id(),
            clock: self.builder.clock.id(),
            config: config.clone(),
        };
        TraceWriter::open(path, begin).map(Some)
    }

    fn config(&self, store: &dyn Store, timing: Timing, data_dir: Option<&DataDir>) -> NodeConfig {
        let builder = &self.builder;
        NodeConfig {
            name: self.names.node.clone(),
            role: builder.role,
            addresses: builder.addresses.clone(),
            zone: builder.zone.clone(),
            weight: builder.weight,
            labels: builder.labels.clone(),
            capacity: builder.capacity,
            version: builder.version.clone(),
            keyspaces: self
                .names
                .keyspaces
                .iter()
                .map(|(name, (config, _))| (name.clone(), config.clone()))
                .collect(),
            timing,
            rules: Rules::sound(),
            policy: builder.policy.clone(),
            timekeeper: match store.leases() {
                Some(_) => Timekeeper::Store,
                None => Timekeeper::Nodes,
            },
            boot_id: match store.info().clock {
                ClockScope::OneMachine => builder.clock.id(),
                ClockScope::Anywhere => None,
            },
            entropy: builder.entropy.unwrap_or_else(entropy),
            last_session: data_dir.and_then(DataDir::last_session),
            rejoin: builder.rejoin,
            join: builder.join,
            // Who has nowhere to remember who it was is somebody else next time.
            ephemeral: data_dir.is_none() && builder.rejoin == RejoinMode::Auto,
        }
    }
}

/// Checks the settings and, for a router, that it can hold a request for as long as a move may take.
fn checked(
    settings: &Settings,
    min_ttl: Duration,
    hold: Option<HoldLimits>,
) -> Result<Timing, StartError> {
    let timing = settings.check(min_ttl);
    let mut problems: Vec<String> = Vec::new();
    if let Err(found) = &timing {
        problems.extend(found.iter().map(ToString::to_string));
    }
    if let Some(HoldLimits { count, bytes, age }) = hold {
        let longest = settings.router_hold_timeout + settings.drain_timeout + settings.take_timeout;
        if age < longest {
            problems.push(format!(
                "hold.age: {age:?} is below router_hold_timeout + drain_timeout + take_timeout ({longest:?}), so held \
                 requests could fail during a move; raise hold.age or lower these timeouts"
            ));
        }
        for (name, value) in [("count", count), ("bytes", bytes)] {
            if value == 0 {
                problems.push(format!("hold.{name}: must be at least 1"));
            }
        }
    }
    match timing {
        Ok(timing) if problems.is_empty() => Ok(timing),
        _ => Err(StartError::Invalid(problems)),
    }
}

/// Opens the store, waiting for one that is away for as long as it takes: it may be about to start, as this process is.
///
/// What it waits for is one warning, and one more whenever that changes. What will not heal by itself is an error at once.
async fn opened(url: &str, clock: &Clock) -> Result<Arc<dyn Store>, StoreError> {
    let mut told = None;
    let mut failures = 0u32;
    loop {
        match tenure_store::open(url).await {
            Err(error @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. })) => {
                let error = error.to_string();
                if told.as_ref() != Some(&error) {
                    warn!(error, "opening the store failed, retrying");
                    told = Some(error);
                }
            }
            Ok(store) => {
                if told.is_some() {
                    info!(store = store.info().url, "store opened");
                }
                return Ok(store);
            }
            Err(error) => return Err(error),
        }
        failures = failures.saturating_add(1);
        clock.sleep(backoff(failures, clock.now().0)).await;
    }
}

/// 128 bits that nobody else has.
pub(crate) fn entropy() -> u128 {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0u8; 16];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(16) => return u128::from_ne_bytes(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Two sessions with one id would be one session: there is nothing safe to go on with.
            Err(error) => panic!("reading random bytes from the system failed: {error}"),
        }
    }
}
