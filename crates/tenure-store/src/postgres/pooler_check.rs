//! Whether a pooler shares server sessions among clients, transaction by transaction.
//!
//! Behind such a pooler our settings (durability among them) fall to whoever comes next, and notifications to nobody.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connection::{Connection, ConnectionFactory};
use crate::error::StoreError;

/// What to do about it.
pub(super) const WAY_OUT: &str = "the connection seems to go through a pooler in transaction or statement mode, which \
    loses session settings; connect directly, or through a pool in session mode";

/// How long an answer may take that a pool of one connection cannot give.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Refuses a connection whose session is not its own.
///
/// A second connection is made, which marks its session as well. If both ever land in one session, or one finds its mark gone
/// while the other keeps a transaction open, sessions are shared.
pub(super) async fn refuse(
    dialer: &ConnectionFactory,
    line: &Connection,
) -> Result<(), StoreError> {
    let limit = dialer.target.connect_timeout;
    let woken = Arc::new(Notify::new());
    let other = dialer.dial(limit, CALL_TIMEOUT, &woken).await?;
    let mine = |mark: Option<String>| mark.as_deref() == Some(&line.mark);
    let mut shared = !mine(mark_of(&line.client).await);
    if !shared {
        let begun = other.client.batch_execute("BEGIN").await;
        shared = begun.is_err()
            || !mine(mark_of(&line.client).await)
            || mark_of(&other.client).await.as_deref() != Some(&other.mark);
        // It is dropped in a moment, and its transaction with it.
        let _ = other.client.batch_execute("ROLLBACK").await;
    }
    if shared {
        let place = &dialer.target.shown;
        return Err(StoreError::denied(format!("{place}: {WAY_OUT}")));
    }
    Ok(())
}

/// The mark of the session that a client is in at the moment.
async fn mark_of(client: &Client) -> Option<String> {
    let asked = client.simple_query("SELECT current_setting('tenure.session', true)");
    let answer = tokio::time::timeout(CALL_TIMEOUT, asked).await.ok()?.ok()?;
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}
