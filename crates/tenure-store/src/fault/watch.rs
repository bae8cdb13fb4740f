//! A watch that falls silent, comes late and ends as told.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::control::{FaultSwitches, LinkState, SharedControl};
use crate::watch::{ChangeBatch, Watch, WatchEnd, WatchSource};

pub(super) fn wrap(inner: Watch, shared: Arc<SharedControl>, cuts: u64) -> Watch {
    Watch::new(FaultWatch {
        inner,
        shared,
        cuts,
        held: None,
    })
}

/// Holds a batch itself while it waits, so that a cancelled wait loses nothing.
struct FaultWatch {
    inner: Watch,
    shared: Arc<SharedControl>,
    /// How many cuts there had been when it was opened.
    cuts: u64,
    held: Option<(ChangeBatch, Instant)>,
}

impl fmt::Debug for FaultWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultWatch").field(&self.inner).finish()
    }
}

fn silent(control: &FaultSwitches) -> bool {
    control.muted || control.link == LinkState::Hung
}

fn cut() -> WatchEnd {
    WatchEnd::Closed {
        reason: "injected: watch cut".to_owned(),
    }
}

#[async_trait]
impl WatchSource for FaultWatch {
    async fn next(&mut self) -> Result<ChangeBatch, WatchEnd> {
        let mut switched = self.shared.control.subscribe();
        loop {
            let (quiet, cuts, slow) = {
                let control = switched.borrow_and_update();
                (silent(&control), control.cuts, control.slow)
            };
            if cuts != self.cuts {
                return Err(cut());
            }
            match &self.held {
                Some((_, due)) if !quiet => {
                    let due = *due;
                    tokio::select! {
                        biased;
                        _ = switched.changed() => {}
                        () = tokio::time::sleep_until(due) => {
                            if let Some((batch, _)) = self.held.take() {
                                return Ok(batch);
                            }
                        }
                    }
                }
                Some(_) => {
                    // The sender lives in `shared`: this cannot end before a switch.
                    let _ = switched.changed().await;
                }
                None => {
                    tokio::select! {
                        biased;
                        _ = switched.changed() => {}
                        batch = self.inner.next() => {
                            let batch = batch?;
                            if self.shared.draw_cut() {
                                return Err(cut());
                            }
                            self.held = Some((batch, Instant::now() + slow));
                        }
                    }
                }
            }
        }
    }
}
