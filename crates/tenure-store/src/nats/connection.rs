//! One connection to one server, and what the server says without being asked.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Event, ServerError};
use tokio::sync::watch;
use tokio::time::Instant;

/// What answers are sent to begins like this.
const INBOX: &str = "_INBOX";
/// So many subjects are remembered as refused. More are not asked at once by anybody.
const MOST_REFUSED: usize = 10_000;

/// What a connection tells those who wait on it.
#[derive(Debug)]
pub(super) struct Signals {
    retired: watch::Sender<bool>,
    /// How often the server refused to take something for a subject, or to let us listen to it.
    refusals: watch::Sender<HashMap<String, u64>>,
}

impl Signals {
    pub(super) fn new() -> Self {
        Self {
            retired: watch::Sender::new(false),
            refusals: watch::Sender::default(),
        }
    }

    /// Notes what the client underneath has noticed.
    pub(super) fn tell(&self, event: &Event) {
        match event {
            Event::Disconnected | Event::Closed | Event::LameDuckMode => {
                self.retired.send_replace(true);
            }
            Event::ServerError(ServerError::Other(message)) => {
                let Some(subject) = refused_subject(message) else {
                    return tracing::debug!(error = message, "NATS server reported an error");
                };
                self.refusals.send_modify(|refusals| {
                    if refusals.len() >= MOST_REFUSED {
                        refusals.clear();
                    }
                    *refusals.entry(subject).or_default() += 1;
                });
            }
            _ => {}
        }
    }
}

/// The subject that a permission is missing for; for the answers to our own questions, [`INBOX`].
fn refused_subject(message: &str) -> Option<String> {
    if !message.to_lowercase().contains("permissions violation") {
        return None;
    }
    let subject = message.split('"').nth(1)?;
    Some(if subject.starts_with(INBOX) {
        INBOX.to_owned()
    } else {
        subject.to_owned()
    })
}

/// Permission that the server denied to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermissionDenial {
    /// To take it.
    Asking,
    /// To let us hear the answer.
    Hearing,
}

/// One connection to one server.
pub(super) struct Connection {
    pub(super) client: async_nats::Client,
    pub(super) endpoint: String,
    /// Which of the servers that the URL names.
    pub(super) at: usize,
    heard: Mutex<Instant>,
    signals: Arc<Signals>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.endpoint).finish()
    }
}

impl Connection {
    pub(super) fn new(
        client: async_nats::Client,
        endpoint: String,
        at: usize,
        signals: Arc<Signals>,
    ) -> Self {
        Self {
            client,
            endpoint,
            at,
            heard: Mutex::new(Instant::now()),
            signals,
        }
    }

    /// Notes that the server answered.
    pub(super) fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether the server answered anything since then.
    pub(super) fn heard_since(&self, then: Instant) -> bool {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) > then
    }

    pub(super) fn retire(&self) {
        self.signals.retired.send_replace(true);
    }

    pub(super) fn is_retired(&self) -> bool {
        *self.signals.retired.borrow()
    }

    /// Waits until the connection is given up or lost.
    pub(super) async fn retirement(&self) {
        let mut retired = self.signals.retired.subscribe();
        // The sender lives in `self`.
        let _ = retired.wait_for(|retired| *retired).await;
    }

    /// Waits until the server refuses this subject, counted from now on.
    pub(super) fn refusal(
        &self,
        subject: &str,
    ) -> impl Future<Output = PermissionDenial> + Send + use<> {
        let mut refusals = self.signals.refusals.subscribe();
        let subject = subject.to_owned();
        let before = count(&refusals.borrow(), &subject);
        async move {
            loop {
                {
                    let refusals = refusals.borrow_and_update();
                    if count(&refusals, &subject) > before {
                        return PermissionDenial::Asking;
                    }
                    // It is asked for once, with the first question.
                    if count(&refusals, INBOX) > 0 {
                        return PermissionDenial::Hearing;
                    }
                }
                if refusals.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

fn count(refusals: &HashMap<String, u64>, subject: &str) -> u64 {
    refusals.get(subject).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_names_its_subject() {
        let publish = "Permissions Violation for Publish to \"$KV.b.k\"";
        assert_eq!(refused_subject(publish).as_deref(), Some("$KV.b.k"));
        let inbox = "Permissions Violation for Subscription to \"_INBOX.x.*\"";
        assert_eq!(refused_subject(inbox).as_deref(), Some("_INBOX"));
        assert_eq!(refused_subject("Stale Connection"), None);
    }
}
