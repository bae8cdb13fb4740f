//! Waiting for something to come about: progress for people, and a clear state when they go away.

use std::time::Duration;

use tenure::{AdminClient, AdminError};

use super::exec::Signals;
use crate::cluster_client::ClusterClient;
use crate::config::Config;
use crate::exit::Exit;

/// An operator's hands on the cluster that the configuration names, which must be there.
pub(crate) async fn admin(config: &Config) -> Result<AdminClient, Exit> {
    let place = ClusterClient::open(config).await?;
    place.existing().await?;
    Ok(AdminClient::new(place.store.clone(), place.cluster.clone()))
}

/// Waits for `work`, or until Ctrl-C or SIGTERM: then says what stands as it is.
pub(crate) async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, AdminError>>,
    left: &str,
) -> Result<T, Exit> {
    // Listens before the work begins: whoever sees its first progress may press Ctrl-C at once.
    let mut signals = Signals::new()?;
    tokio::select! {
        done = work => done.map_err(Exit::from),
        () = signals.any() => Err(Exit::failed(format!("interrupted: {left}"))),
    }
}

/// Whether a limit of nothing was given: not to wait at all.
pub(crate) fn at_once(limit: Duration) -> bool {
    limit.is_zero()
}
