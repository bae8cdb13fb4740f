//! Setting up a node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{ClusterName, KeyspaceName, NodeName};
use tenure_core::node::{ExplicitNodeSettings, KeyspaceConfig, OwnPolicy, without_effect};
use tenure_core::plan::Policy;
use tenure_core::record::{AssignedBy, KeyspaceKind, PlanningSettings, RejoinMode, Role};
use tenure_core::settings::Settings;
use tenure_store::Store;
use tenure_store::machine_identity::MachineIdentity;

use crate::clock::Clock;
use crate::data_dir::DataDir;
use crate::error::StartError;
use crate::grant::Grant;
use crate::handler::{Handler, Result};
use crate::handler_task::{AnyHandler, TypedHandler};
use crate::node::Node;
use crate::router::RouterParts;
use crate::singleton::Singleton;
use crate::startup;

/// A node that is being set up.
#[must_use = "a builder does nothing before `start`"]
pub struct Builder {
    pub(crate) store: StoreSource,
    cluster: String,
    name: Option<String>,
    pub(crate) addresses: BTreeMap<String, String>,
    pub(crate) zone: Option<String>,
    pub(crate) weight: u32,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) capacity: Option<u32>,
    pub(crate) plan: PlanningSettings,
    pub(crate) policy: Option<OwnPolicy>,
    pub(crate) version: String,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) locked: Option<DataDir>,
    pub(crate) trace: Option<PathBuf>,
    mode: AssignedBy,
    keyspaces: Vec<(String, KeyspaceConfig, Arc<dyn AnyHandler>)>,
    settings: Option<Settings>,
    ttl: Option<Duration>,
    pub(crate) role: Role,
    pub(crate) rejoin: RejoinMode,
    pub(crate) join: bool,
    pub(crate) clock: Clock,
    on_current_runtime: bool,
    pub(crate) entropy: Option<u128>,
    /// What a router has beside a node.
    pub(crate) router: Option<RouterParts>,
}

/// Where the store comes from.
pub(crate) enum StoreSource {
    Url(String),
    Open(Arc<dyn Store>),
}

/// What the builder was given, checked as far as it can be without the store.
pub(crate) struct CheckedNames {
    pub(crate) cluster: ClusterName,
    pub(crate) node: NodeName,
    pub(crate) keyspaces: BTreeMap<KeyspaceName, (KeyspaceConfig, Arc<dyn AnyHandler>)>,
}

impl Builder {
    pub(crate) fn new(url: impl Into<String>, cluster: impl Into<String>) -> Self {
        Self {
            store: StoreSource::Url(url.into()),
            cluster: cluster.into(),
            name: None,
            addresses: BTreeMap::new(),
            zone: None,
            weight: 100,
            labels: BTreeMap::new(),
            capacity: None,
            plan: PlanningSettings::default(),
            policy: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_dir: None,
            locked: None,
            trace: None,
            mode: AssignedBy::default(),
            keyspaces: Vec::new(),
            settings: None,
            ttl: None,
            role: Role::Node,
            rejoin: RejoinMode::default(),
            join: false,
            clock: Clock::boot(),
            on_current_runtime: false,
            entropy: None,
            router: None,
        }
    }

    /// Uses a store that is open already, instead of opening the URL.
    ///
    /// A store with connections of its own lives on the runtime that opened it; one that is opened by URL lives on the
    /// node's own thread, out of reach of a busy application.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = StoreSource::Open(store);
        self
    }

    /// The node's stable name. Default: the name of the host with that of the data directory, or with a random suffix if
    /// there is none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// An address, by kind, that others may reach the node at.
    pub fn address(mut self, kind: impl Into<String>, address: impl Into<String>) -> Self {
        self.addresses.insert(kind.into(), address.into());
        self
    }

    /// The failure domain that the node runs in.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// The node's part of the shards in relation to other nodes. Default: 100.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The version of the program, as `status` shows it. Default: that of this library.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// A directory of the node's own, made if need be. With it, a node that is restarted within the ttl takes its shards
    /// back at once; without it, it waits until the ttl has proved its predecessor dead.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// A data directory that is locked already, as by a supervisor whose children hold on to the lock too.
    pub fn locked_data_dir(mut self, dir: DataDir) -> Self {
        self.data_dir = Some(dir.path().to_owned());
        self.locked = Some(dir);
        self
    }

    /// Writes every step of the node down in this file, so that `tenure-sim validate` can run it again and check it. What is
    /// in the file already stays; no other process may be writing to it.
    ///
    /// The trace holds what the store holds of the cluster, but neither the store's URL nor any credentials. Trouble with
    /// the file ends the trace, not the node.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.trace = Some(path.into());
        self
    }

    /// Who assigns the shards of the keyspaces that are added after this.
    pub fn assigned_by(mut self, mode: AssignedBy) -> Self {
        self.mode = mode;
        self
    }

    /// How a leader plans for the keyspaces that are added after this, should they have to be created.
    pub fn plan(mut self, plan: PlanningSettings) -> Self {
        self.plan = plan;
        self
    }

    /// Something that the node says of itself: a keyspace may require it of those who own its shards.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// The most shards that the node can have.
    pub fn capacity(mut self, shards: u32) -> Self {
        self.capacity = Some(shards);
        self
    }

    /// Plans by a policy of one's own whenever this node leads. All nodes that may lead should have the same.
    pub fn policy(mut self, name: impl Into<String>, policy: impl Policy + 'static) -> Self {
        self.policy = Some(OwnPolicy::new(name, Arc::new(policy)));
        self
    }

    /// Takes part in a keyspace. It is created if it does not exist; if it differs from what is said here, the node is
    /// refused.
    pub fn keyspace<H: Handler>(
        mut self,
        name: impl Into<String>,
        kind: KeyspaceKind,
        handler: H,
    ) -> Self {
        let (mode, plan) = (self.mode, self.plan.clone());
        let handler = Arc::new(TypedHandler(Arc::new(handler)));
        let config = KeyspaceConfig {
            kind,
            mode,
            plan,
            catches_up: H::CATCHES_UP,
        };
        self.keyspaces.push((name.into(), config, handler));
        self
    }

    /// Takes part in a singleton: work that runs on one node of the cluster at a time.
    ///
    /// It is a keyspace of one shard. Nothing runs before the shard is owned, and the work has stopped before another node
    /// may have it.
    pub fn singleton<F, A>(self, name: impl Into<String>, work: F) -> Self
    where
        F: Fn(Grant) -> A + Send + Sync + 'static,
        A: Future<Output = Result<()>> + Send + 'static,
    {
        self.keyspace(name, KeyspaceKind::Hashed(1), Singleton::new(work))
    }

    /// How long a session is good after a confirmed renewal. Default: what fits the store.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// All times and limits. [`Builder::ttl`] goes before the ttl in here.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// How the node comes back if its session ran out while others lived. Default: by itself.
    ///
    /// With [`RejoinMode::Manual`] it registers as `drained(stale_restart)` or, if its process lived on, as
    /// `drained(registration_expired)`, and takes no shards until an operator activates it. If the whole cluster was away,
    /// everyone comes back as usual.
    pub fn rejoin(mut self, rejoin: RejoinMode) -> Self {
        self.rejoin = rejoin;
        self
    }

    /// On its first start under this name the node only joins, as `drained(joined)`, and takes no shards until an operator
    /// activates it. Later starts are not concerned.
    pub fn start_drained(mut self, join: bool) -> Self {
        self.join = join;
        self
    }

    /// Only watch: join, compute, log and count what the node would do, and own nothing.
    pub fn shadow(mut self, observe: bool) -> Self {
        self.role = if observe { Role::Shadow } else { Role::Node };
        self
    }

    /// Only plan: stand for leader, and own nothing. Takes part in no keyspace; those that a leader plans for are planned,
    /// whatever they are called.
    pub fn planner_only(mut self) -> Self {
        self.role = Role::Planner;
        self
    }

    /// The node's clock. With [`Clock::runtime`] the node runs on the current runtime, for tests in virtual time.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Runs the driver on the current runtime instead of on a thread of its own. An application that keeps its runtime busy
    /// then keeps the node from renewing its lease.
    pub fn on_current_runtime(mut self) -> Self {
        self.on_current_runtime = true;
        self
    }

    /// The number that this process's sessions count up from, instead of random bits: for tests that must repeat exactly.
    ///
    /// No two processes of a cluster may ever have the same one; its last 16 bits should be zero.
    pub fn entropy(mut self, entropy: u128) -> Self {
        self.entropy = Some(entropy);
        self
    }

    /// Starts the node. Returns when everything that it owns is loaded, or has failed to load: it is ready for traffic.
    ///
    /// A store that cannot be reached is waited for, without end, and the log says what for; drop the future to give up. What
    /// cannot heal by itself (a wrong password, a missing right, a standby) is an error at once.
    ///
    /// Must be called from within a tokio runtime; handlers run on that one.
    pub async fn start(self) -> Result<Node, StartError> {
        startup::start(self).await
    }

    pub(crate) fn runs_here(&self) -> bool {
        self.on_current_runtime || self.clock.is_runtime()
    }

    /// The settings, with the store's own ttl if none was given.
    pub(crate) fn effective_settings(&self, store: &dyn Store) -> Settings {
        let mut settings = self.settings.clone().unwrap_or_else(|| Settings {
            ttl: store.info().default_ttl,
            ..Settings::default()
        });
        settings.ttl = self.ttl.unwrap_or(settings.ttl);
        settings
    }

    /// Checks all names, and reports every problem at once.
    pub(crate) fn names(&self) -> (Option<CheckedNames>, Vec<String>) {
        let mut problems = Vec::new();
        let mut note = |problem: String| problems.push(problem);
        if self.role == Role::Planner && !self.keyspaces.is_empty() {
            note("a dedicated planner owns no shards; leave out its keyspaces".to_owned());
        }
        for (name, config, _) in &self.keyspaces {
            for problem in config.plan.settings().check().err().unwrap_or_default() {
                note(format!("keyspace {name:?}: {problem}"));
            }
        }
        let said = ExplicitNodeSettings {
            weight: Some(self.weight),
            capacity: self.capacity.is_some(),
            labels: !self.labels.is_empty(),
            zone: self.zone.is_some(),
        };
        let modes = self.keyspaces.iter();
        let modes = modes.map(|(name, config, _)| (name.as_str(), config.mode, &config.plan));
        without_effect(said, modes).into_iter().for_each(&mut note);
        let cluster = ClusterName::new(&self.cluster);
        let node = NodeName::new(self.name.clone().unwrap_or_else(|| self.default_name()));
        let mut keyspaces = BTreeMap::new();
        for (name, config, handler) in &self.keyspaces {
            if config.kind == KeyspaceKind::Hashed(0) {
                note(format!(
                    "keyspace {name:?} has no shards; give it at least one"
                ));
            }
            match KeyspaceName::new(name) {
                Err(error) => note(error.to_string()),
                Ok(key) => {
                    let known = keyspaces.insert(key, (config.clone(), handler.clone()));
                    if known.is_some() {
                        note(format!("keyspace {name:?} is given twice; give it once"));
                    }
                }
            }
        }
        match (cluster, node) {
            (Ok(cluster), Ok(node)) => {
                let names = CheckedNames {
                    cluster,
                    node,
                    keyspaces,
                };
                (Some(names), problems)
            }
            (cluster, node) => {
                let errors = cluster.err().into_iter().chain(node.err());
                problems.extend(errors.map(|e| e.to_string()));
                (None, problems)
            }
        }
    }

    fn default_name(&self) -> String {
        let host = MachineIdentity::this().name;
        let dir = self.data_dir.as_ref().and_then(|dir| dir.file_name());
        match dir {
            Some(dir) => format!("{host}-{}", dir.to_string_lossy()),
            None => format!("{host}-{:08x}", startup::entropy() as u32),
        }
    }
}
