//! Watches: one task looks at the bucket again and again for all of them.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use tenure_core::ids::Revision;
use tokio::sync::watch;

use super::S3Store;
use super::bucket_state::SharedBucket;
use super::http::HttpClient;
use super::object_format::NonceSource;
use super::object_names::ObjectNames;
use crate::error::StoreError;
use crate::store::StoreInfo;
use crate::watch::{ChangeBatch, Watch, WatchEnd, WatchSource};

impl S3Store {
    pub(super) async fn watch_from(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<Watch, StoreError> {
        self.hub.lock().watch(prefix);
        let watch = S3Watch {
            moved: self.hub.moved.subscribe(),
            hub: self.hub.clone(),
            prefix: prefix.to_owned(),
            upto: from,
        };
        // Only who walks forgets: what is known now stays known until it has been looked at.
        let alone = self.hub.walking.lock().await;
        let since = self.hub.lock().known_since(prefix);
        if since.is_none_or(|since| since > from.0) {
            return Ok(Watch::new(Ended));
        }
        // Values that nobody had asked for are read now, and what has happened since the last look.
        self.learn(prefix).await?;
        drop(alone);
        self.keep_polling();
        Ok(Watch::new(watch))
    }

    /// Sees to it that somebody looks, for as long as anybody watches.
    fn keep_polling(&self) {
        if std::mem::replace(&mut self.hub.lock().polling, true) {
            return;
        }
        tokio::spawn(look_again_and_again(Polling {
            hub: Arc::downgrade(&self.hub),
            client: self.client.clone(),
            names: self.names.clone(),
            nonces: self.nonces.clone(),
            info: self.info.clone(),
            ended: false,
        }));
    }
}

async fn look_again_and_again(mut polling: Polling) {
    let mut failed = false;
    loop {
        tokio::time::sleep(polling.client.site.settings.poll).await;
        let Some(store) = polling.store() else {
            return;
        };
        match store.poll().await {
            Ok(()) => failed = false,
            Err(e) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(error = %e, "listing the bucket failed, retrying");
                }
            }
        }
    }
}

/// What looks. Holds the store only while it does, so that whoever drops it last ends this; says so when it ends, also if that
/// is with its runtime.
struct Polling {
    hub: Weak<SharedBucket>,
    client: Arc<HttpClient>,
    names: ObjectNames,
    nonces: Arc<NonceSource>,
    info: StoreInfo,
    /// It was said already.
    ended: bool,
}

impl Polling {
    /// The store, if anybody still watches. Whoever watches next finds that nobody looks.
    fn store(&mut self) -> Option<S3Store> {
        let hub = self.hub.upgrade()?;
        {
            let mut state = hub.lock();
            if state.to_poll().is_empty() {
                state.polling = false;
                self.ended = true;
                return None;
            }
        }
        Some(S3Store {
            info: self.info.clone(),
            client: self.client.clone(),
            names: self.names.clone(),
            nonces: self.nonces.clone(),
            hub,
        })
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let (false, Some(hub)) = (self.ended, self.hub.upgrade()) {
            hub.lock().polling = false;
        }
    }
}

/// A watch that cannot begin where it should.
#[derive(Debug)]
struct Ended;

#[async_trait]
impl WatchSource for Ended {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        Err(WatchEnd::Gap)
    }
}

/// Reads the changes when asked, so that a slow reader costs nothing.
#[derive(Debug)]
struct S3Watch {
    moved: watch::Receiver<()>,
    hub: Arc<SharedBucket>,
    prefix: String,
    upto: Revision,
}

#[async_trait]
impl WatchSource for S3Watch {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        loop {
            self.moved.mark_unchanged();
            let changes = self.hub.lock().changes(&self.prefix, self.upto)?;
            if let Some(batch) = changes {
                self.upto = batch.upto;
                return Ok(batch);
            }
            // The sender is in the hub that we hold.
            let _ = self.moved.changed().await;
        }
    }
}

impl Drop for S3Watch {
    fn drop(&mut self) {
        self.hub.lock().unwatch(&self.prefix);
    }
}
