//! Setting up a router.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::record::Role;
use tenure_core::router::HoldLimits;
use tenure_core::settings::Settings;
use tenure_store::Store;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::driver::{RouterDriverParts, RouterInput};
use super::in_process::InProcessTransport;
use super::lookup_table::LookupTable;
use super::transport::Transport;
use super::{OwnerDirectory, Router};
use crate::builder::Builder;
use crate::clock::Clock;
use crate::error::StartError;
use crate::metrics::Metrics;
use crate::startup;

/// A router that is being set up.
#[must_use = "a builder does nothing before `start`"]
pub struct RouterBuilder {
    node: Builder,
    hold: HoldLimits,
}

/// What the driver of a router has beside that of a node.
pub(crate) struct RouterParts {
    pub(crate) keeper: RouterDriverParts,
    pub(crate) hold: HoldLimits,
}

impl RouterBuilder {
    pub(super) fn new(url: impl Into<String>, cluster: impl Into<String>) -> Self {
        let mut node = Builder::new(url, cluster);
        node.role = Role::Router;
        Self {
            node,
            hold: HoldLimits::default(),
        }
    }

    /// The router's name: no other router or node of the cluster has it. Default: as that of a node.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.node = self.node.name(name);
        self
    }

    /// An address, by kind, that others may reach the router at.
    pub fn address(mut self, kind: impl Into<String>, address: impl Into<String>) -> Self {
        self.node = self.node.address(kind, address);
        self
    }

    /// All times and limits: the same as those of the nodes.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.node = self.node.settings(settings);
        self
    }

    /// How long the router's session is good after a confirmed renewal. Default: what fits the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.node = self.node.ttl(ttl);
        self
    }

    /// How much is held, and for how long.
    pub fn hold(mut self, limits: HoldLimits) -> Self {
        self.hold = limits;
        self
    }

    /// Writes down every step of the router's session, as [`Builder::trace`] does for a node.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.node = self.node.trace(path);
        self
    }

    /// Uses a store that is open already, instead of opening the URL.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.node = self.node.store(store);
        self
    }

    /// The router's clock. With [`Clock::runtime`] it runs on the current runtime, for tests in virtual time.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.node = self.node.clock(clock);
        self
    }

    /// Runs the driver on the current runtime instead of on a thread of its own.
    pub fn on_current_runtime(mut self) -> Self {
        self.node = self.node.on_current_runtime();
        self
    }

    /// Starts the router. Returns when it has read all records: it knows every shard that can be known.
    pub async fn start(self) -> Result<Router, StartError> {
        let (limits, clock) = (self.hold, self.node.clock.clone());
        let (directory, desk) = self
            .begin(|table, metrics| {
                Arc::new(InProcessTransport::new(table, limits, clock, metrics))
            })
            .await?;
        Ok(Router { directory, desk })
    }

    /// Starts a router that carries nothing itself, but tells `transport` what to do.
    pub async fn start_with(
        self,
        transport: Arc<impl Transport>,
    ) -> Result<OwnerDirectory, StartError> {
        let (directory, _) = self.begin(|_, _| transport).await?;
        Ok(directory)
    }

    async fn begin<T: Transport>(
        mut self,
        transport: impl FnOnce(Arc<LookupTable>, Arc<Metrics>) -> Arc<T>,
    ) -> Result<(OwnerDirectory, Arc<T>), StartError> {
        let table = Arc::new(LookupTable::default());
        let metrics = Arc::new(Metrics::new(self.node.clock.clone()));
        let transport = transport(table.clone(), metrics.clone());
        let (tell, told) = mpsc::unbounded_channel();
        let over = CancellationToken::new();
        self.node.router = Some(RouterParts {
            hold: self.hold,
            keeper: RouterDriverParts {
                table: table.clone(),
                transport: transport.clone(),
                clock: self.node.clock.clone(),
                metrics,
                tell: tell.clone(),
                told,
                over: over.clone(),
            },
        });
        let over = over.drop_guard();
        let node = startup::start(self.node).await?;
        let (heard, synced) = oneshot::channel();
        if tell.send(RouterInput::Sync(heard)).is_err() || synced.await.is_err() {
            return Err(StartError::Gone);
        }
        let transport_too: Arc<dyn Transport> = transport.clone();
        let directory = OwnerDirectory::new(node, table, transport_too, tell, over);
        Ok((directory, transport))
    }
}
