//! Writes that come at the same time go to the store together.
//!
//! While one batch is under way the next one gathers: one who writes alone waits for nobody, and many who finish their
//! tasks at once cost one call.

use std::sync::Arc;

use tenure_store::{Put, PutIf, Store, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::task_store::in_time;

/// How many writes go together at most.
const BATCH: usize = 256;

type Asked = (PutIf, oneshot::Sender<Result<Put, StoreError>>);

/// The end of the line that callers hold.
#[derive(Debug)]
pub(crate) struct WriteBatcher(mpsc::UnboundedSender<Asked>);

impl WriteBatcher {
    /// Starts the task that writes. It ends when the scribe is dropped.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let (asked, mut queue) = mpsc::unbounded_channel::<Asked>();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while queue.recv_many(&mut batch, BATCH).await > 0 {
                write(&*store, std::mem::take(&mut batch)).await;
            }
        });
        Self(asked)
    }

    /// Whether nobody writes any more: the runtime that it was started on has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) async fn put(&self, put: PutIf) -> Result<Put, StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone =
            || StoreError::unknown("the async runtime that writes to the store has shut down");
        self.0.send((put, reply)).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

async fn write(store: &dyn Store, mut batch: Vec<Asked>) {
    // Nobody waits any more for those that were given up: their writers have begun to settle the outcome.
    batch.retain(|(_, reply)| !reply.is_closed());
    if batch.len() == 1
        && let Some((put, reply)) = batch.pop()
    {
        let _ = reply.send(in_time(store.put_if(put)).await);
        return;
    }
    let (puts, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    // Those who wait have given up by then: what is never answered must not hold up the next batch.
    let Ok(answers) = in_time(async { Ok(store.put_many(puts).await) }).await else {
        return;
    };
    for (reply, answer) in replies.into_iter().zip(answers) {
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_store::Op;
    use tenure_store::fault::{FaultConfig, FaultStore};
    use tenure_store::memory::MemoryStore;
    use tenure_store::observed_store::ObservedStore;
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_a_write_is_under_way_goes_together() {
        let (slow, faults) = FaultStore::new(Arc::new(MemoryStore::new()), FaultConfig::none(1));
        let (store, observer) = ObservedStore::new(Arc::new(slow));
        faults.slow_replies(Duration::from_millis(20));
        let scribe = Arc::new(WriteBatcher::start(Arc::new(store)));
        let mut writers = JoinSet::new();
        for n in 0..100 {
            let scribe = scribe.clone();
            writers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(u64::from(n > 0))).await;
                scribe.put(PutIf::create(format!("k{n}"), *b"v")).await
            });
        }
        let answers = writers.join_all().await;
        assert!(
            answers.iter().all(|a| matches!(a, Ok(Put::Won(_)))),
            "{answers:?}"
        );
        let puts = *observer.snapshot().of(Op::Put);
        assert_eq!((puts.calls, puts.keys), (2, 100));
    }
}
