//! What NATS' answers mean to the caller of a store.

use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};

use super::jetstream::ApiError;
use crate::error::StoreError;

/// Context of a call, for its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallContext<'a> {
    /// The server that was asked.
    pub(super) endpoint: &'a str,
    /// The subject that was asked.
    pub(super) subject: &'a str,
    /// Whether the call may have changed something.
    pub(super) writes: bool,
}

impl CallContext<'_> {
    /// An answer that never came, or came garbled: a write may have been applied.
    pub(super) fn uncertain(&self, reason: &str) -> StoreError {
        let reason = format!(
            "NATS at {}, request to {}: {reason}",
            self.endpoint, self.subject
        );
        if self.writes {
            StoreError::unknown(reason)
        } else {
            StoreError::unavailable(reason)
        }
    }

    /// The server does not let us ask that, and did not look at it.
    pub(super) fn forbidden(&self) -> StoreError {
        StoreError::denied(format!(
            "NATS at {} denies publishing to {:?} to this user; grant it as listed in docs/stores/nats.md",
            self.endpoint, self.subject
        ))
    }

    /// The server does not let us hear any answer. What was asked may have been done.
    pub(super) fn deaf(&self) -> StoreError {
        let reason = format!(
            "NATS at {} denies subscribing to \"_INBOX.>\", the subject of responses, to this user; grant it as listed in \
             docs/stores/nats.md",
            self.endpoint
        );
        if self.writes {
            StoreError::unknown(reason)
        } else {
            StoreError::denied(reason)
        }
    }

    /// A request that failed before or while it was sent.
    pub(super) fn failed(&self, e: &RequestError) -> StoreError {
        let Self {
            endpoint, subject, ..
        } = self;
        match e.kind() {
            // Told by the server at once: nobody got it.
            RequestErrorKind::NoResponders => StoreError::unavailable(format!(
                "NATS at {endpoint}: no responder for {subject:?}: JetStream is off, the bucket currently has no leader, or it \
                 was removed"
            )),
            RequestErrorKind::MaxPayloadExceeded => self.too_large(),
            RequestErrorKind::InvalidSubject => StoreError::denied(format!(
                "NATS at {endpoint} rejects the subject {subject:?}; use another cluster, keyspace or node name"
            )),
            RequestErrorKind::TimedOut | RequestErrorKind::Other => self.uncertain(&causes(e)),
        }
    }

    /// A refusal by JetStream. Whatever is not known to come before anything is stored leaves a write in doubt.
    pub(super) fn refused(&self, refusal: &ApiError) -> StoreError {
        let Self {
            endpoint, subject, ..
        } = self;
        let said = &refusal.description;
        if refusal.is_disabled() {
            return disabled(endpoint);
        }
        if refusal.is_no_stream() {
            return StoreError::denied(format!(
                "NATS at {endpoint}: the bucket of {subject:?} no longer exists; restore the bucket from a backup \
                 before any process opens the store and creates an empty one"
            ));
        }
        if refusal.is_too_large() {
            return self.too_large();
        }
        if refusal.is_full() {
            return StoreError::unavailable(format!(
                "NATS at {endpoint} has no room for {subject:?}: {said}; raise max_file_store, or the limits of the account or of \
                 the bucket"
            ));
        }
        self.uncertain(said)
    }

    fn too_large(&self) -> StoreError {
        StoreError::denied(format!(
            "NATS at {} rejects the value written to {:?}: it is too large; make it smaller, or raise max_payload",
            self.endpoint, self.subject
        ))
    }
}

pub(super) fn disabled(endpoint: &str) -> StoreError {
    StoreError::denied(format!(
        "NATS at {endpoint} has no JetStream for this user; start it with -js, or enable JetStream for the account"
    ))
}

pub(super) fn too_old(endpoint: &str, version: &str) -> StoreError {
    StoreError::denied(format!(
        "NATS at {endpoint} is version {version}, which is too old; use 2.10 or later"
    ))
}

/// A connection that was not made.
pub(super) fn unconnected(endpoint: &str, e: &ConnectError) -> StoreError {
    let reason = causes(e);
    match e.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            StoreError::denied(format!(
                "NATS at {endpoint} rejects this user; check USER:PASSWORD@ or creds= of the store URL, or NATS_USER, \
                 NATS_PASSWORD and NATS_CREDS"
            ))
        }
        _ if reason.to_lowercase().contains("certificate") => StoreError::denied(format!(
            "TLS with NATS at {endpoint} failed: {reason}; check ca=, cert= and key= of the store URL, or \
             NATS_CA, NATS_CERT and NATS_KEY"
        )),
        ConnectErrorKind::TimedOut => {
            StoreError::unavailable(format!("NATS at {endpoint} does not answer"))
        }
        _ => StoreError::unavailable(format!(
            "NATS at {endpoint} cannot be reached: {reason}; check that it runs, and the store URL"
        )),
    }
}

/// The message with its causes, each once.
fn causes(e: &dyn std::error::Error) -> String {
    let mut told = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        let text = e.to_string();
        if !told.contains(&text) {
            told.push_str(": ");
            told.push_str(&text);
        }
        cause = e.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(writes: bool, err_code: u32, said: &str) -> StoreError {
        let about = CallContext {
            endpoint: "h:1",
            subject: "$KV.b.k",
            writes,
        };
        about.refused(&ApiError {
            err_code,
            description: said.to_owned(),
        })
    }

    #[test]
    fn a_write_that_was_refused_for_a_reason_we_do_not_know_is_in_doubt_and_a_read_is_not() {
        let e = refused(true, 10_008, "system temporarily unavailable");
        assert!(matches!(e, StoreError::Unknown { .. }), "{e:?}");
        let e = refused(false, 10_008, "system temporarily unavailable");
        assert!(matches!(e, StoreError::Unavailable { .. }), "{e:?}");
    }

    #[test]
    fn what_was_refused_before_it_was_stored_wrote_nothing_and_names_the_way_out() {
        for (err_code, said, way_out) in [
            (
                10_039,
                "JetStream not enabled for account",
                "enable JetStream",
            ),
            (10_047, "storage resources exceeded", "max_file_store"),
            (10_077, "maximum bytes exceeded", "limits"),
            (10_054, "message size exceeds maximum", "max_payload"),
            (10_059, "stream not found", "restore the bucket"),
        ] {
            let e = refused(true, err_code, said);
            assert!(e.wrote_nothing(), "{e:?}");
            assert!(e.to_string().contains(way_out), "{e}");
        }
    }
}
