//! Opening of stores and clusters as the configuration names them.

use std::sync::Arc;
use std::time::Duration;

use tenure::AdminClient;
pub(crate) use tenure::admin::CALL_TIMEOUT;
use tenure::admin::{AdminError, ClusterName, Snapshot, clusters};
use tenure_store::{Store, StoreError};

use crate::cmd::exec::{Signals, Waited};
use crate::config::Config;
use crate::exit::Exit;

/// Pause between two attempts to reach the store.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Reads the default ttl from the store where it does not follow from the URL: NATS buckets with several copies have another
/// one. Waits for a store that cannot be reached. A missing bucket is left to the start of the node, which creates it with as
/// many copies as the URL says.
pub(crate) async fn ask_for_ttl(config: &Config, signals: &mut Signals) -> Waited<()> {
    if !config.must_ask_for_ttl() {
        return Waited::Done(());
    }
    let Ok(url) = store_url(config) else {
        return Waited::Done(());
    };
    let mut told = false;
    let asking = async {
        loop {
            match tenure_store::open_existing(url).await {
                Ok(store) => return config.take_store_info(store.info().clone()),
                Err(error @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. })) => {
                    if !told {
                        tracing::warn!(%error, "store unreachable, retrying");
                    }
                    told = true;
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                // The start of the node reports it.
                Err(_) => return,
            }
        }
    };
    signals.or(asking).await
}

/// Opens the cluster that the configuration names, in a store that must exist.
pub(crate) async fn open(config: &Config) -> Result<AdminClient, Exit> {
    let store = open_store(config).await?;
    Ok(client(config, store, named_cluster(config)?))
}

/// Opens the cluster that the configuration names, which must exist.
pub(crate) async fn open_existing(config: &Config) -> Result<AdminClient, Exit> {
    let client = open(config).await?;
    client.existing_snapshot().await?;
    Ok(client)
}

/// Opens the cluster of this name, in a store that must exist.
pub(crate) async fn open_named(config: &Config, name: ClusterName) -> Result<AdminClient, Exit> {
    Ok(client(config, open_store(config).await?, name))
}

/// Opens the cluster that the configuration names. Creates the store if it does not exist.
pub(crate) async fn open_or_create(config: &Config) -> Result<AdminClient, Exit> {
    let name = named_cluster(config)?;
    let url = store_url(config)?;
    let opened = within("opening the store", tenure_store::open(url)).await?;
    Ok(client(config, opened.map_err(bad_store)?, name))
}

/// Opens the named cluster, or the only one of the store, for a command that only reads.
pub(crate) async fn open_to_read(config: &Config) -> Result<AdminClient, Exit> {
    let store = open_store(config).await?;
    if config.text("cluster").is_some() {
        return Ok(client(config, store, named_cluster(config)?));
    }
    let mut names = clusters(&*store).await?;
    if names.len() > 1 {
        let names: Vec<_> = names.iter().map(|c| c.as_str()).collect();
        return Err(Exit::usage(format!(
            "store {} holds several clusters; pass --cluster with one of: {}",
            store.info().url,
            names.join(", ")
        )));
    }
    match names.pop() {
        Some(only) => Ok(client(config, store, only)),
        None => Err(Exit::failed(format!(
            "store {} holds no cluster yet; start a node or create a keyspace",
            store.info().url
        ))),
    }
}

/// Reads the cluster that [`open_to_read`] opens, which must exist.
pub(crate) async fn read_existing(config: &Config) -> Result<Snapshot, Exit> {
    Ok(open_to_read(config).await?.existing_snapshot().await?)
}

fn client(config: &Config, store: Arc<dyn Store>, cluster: ClusterName) -> AdminClient {
    AdminClient::new(store, cluster).with_settings(&config.settings())
}

/// Opens the store that the configuration names, which must exist.
pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>, Exit> {
    let url = store_url(config)?;
    let opened = within("opening the store", tenure_store::open_existing(url)).await?;
    opened.map_err(bad_store)
}

/// Runs a call to a store, at most for [`CALL_TIMEOUT`].
pub(crate) async fn within<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, Exit> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| {
        let doing = doing.to_owned();
        AdminError::NoResponse { doing }.into()
    })
}

pub(crate) fn store_url(config: &Config) -> Result<&str, Exit> {
    let url = config.text("store").ok_or_else(|| {
        Exit::usage(
            "no store is given; pass --store URL (such as sqlite:shop.db), set TENURE_STORE, or set `store` in the \
             configuration file",
        )
    })?;
    if url.starts_with("memory:") {
        return Err(Exit::usage(format!(
            "store {url:?} exists only within one process; use a store that processes share, such as \
             sqlite:PATH"
        )));
    }
    Ok(url)
}

pub(crate) fn named_cluster(config: &Config) -> Result<ClusterName, Exit> {
    let name = config.text("cluster").ok_or_else(|| {
        Exit::usage(
            "no cluster is given; pass --cluster NAME, set TENURE_CLUSTER, or set `cluster` in the configuration file",
        )
    })?;
    Ok(ClusterName::new(name)?)
}

/// The failure of a command whose store cannot be opened: a usage error, unless the store is only unavailable.
pub(crate) fn bad_store(error: StoreError) -> Exit {
    match error {
        StoreError::Denied { reason } => Exit::usage(reason),
        other => other.into(),
    }
}

/// A random number that no other process draws.
pub(crate) fn random_id() -> u128 {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0u8; 16];
    // A system returns sixteen bytes at once, or none.
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    assert_eq!(got, Ok(16), "the system returned no random bytes");
    u128::from_ne_bytes(bytes)
}
