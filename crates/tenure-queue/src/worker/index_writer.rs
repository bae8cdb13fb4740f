//! Writes entries of indexes behind the attempts' backs, many at once.
//!
//! What is lost with the process is found by whoever comes to the old entry: the clerk saves time, and nobody relies on it.

use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, oneshot};

use super::context::WorkerContext;
use crate::ids::TaskId;
use crate::keys::IndexEntry;
use crate::task_store::TaskStore;

/// How many are taken together at most.
const BATCH: usize = 256;

/// What has become of one task.
pub(super) struct IndexUpdate {
    /// The entry that leads to it now.
    pub(super) put: IndexEntry,
    /// Those that no longer do.
    pub(super) remove: Vec<IndexEntry>,
    /// The task, if it may be found again after this.
    pub(super) let_in: Option<TaskId>,
}

enum Asked {
    File(IndexUpdate),
    Flush(oneshot::Sender<()>),
}

/// The end of the line that attempts hold.
pub(super) struct IndexWriter(mpsc::UnboundedSender<Asked>);

impl IndexWriter {
    pub(super) fn start(shelf: Arc<TaskStore>, engine: Weak<WorkerContext>) -> Self {
        let (asked, mut queue) = mpsc::unbounded_channel::<Asked>();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while queue.recv_many(&mut batch, BATCH).await > 0 {
                file(&shelf, &engine, std::mem::take(&mut batch)).await;
            }
        });
        Self(asked)
    }

    pub(super) fn file(&self, filed: IndexUpdate) {
        // The clerk lives as long as the worker.
        let _ = self.0.send(Asked::File(filed));
    }

    /// Waits until everything that was filed so far is written.
    pub(super) async fn flushed(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.send(Asked::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }
}

async fn file(shelf: &TaskStore, engine: &Weak<WorkerContext>, batch: Vec<Asked>) {
    let (mut puts, mut removes) = (Vec::new(), Vec::new());
    let (mut tasks, mut flushes) = (Vec::new(), Vec::new());
    for asked in batch {
        match asked {
            Asked::File(filed) => {
                puts.push(filed.put);
                removes.extend(filed.remove);
                tasks.extend(filed.let_in);
            }
            Asked::Flush(done) => flushes.push(done),
        }
    }
    shelf.index(puts, removes).await;
    if let Some(engine) = engine.upgrade() {
        for id in tasks {
            engine.let_in(&id);
        }
    }
    for done in flushes {
        let _ = done.send(());
    }
}
