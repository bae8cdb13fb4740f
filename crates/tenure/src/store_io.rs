//! Carries requests to the store and answers back. Every call is bounded by a timeout; no write is ever repeated here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::ids::{ClusterName, LeaseId, Version};
use tenure_core::keys::{Key, prefix};
use tenure_core::machine::{
    Connection, Event, Expect, OpId, Reply, Request, StoreFailure, StoreListing,
};
use tenure_core::record::Record;
use tenure_store::{Delete, DeleteIf, Leases, Put, Store, StoreError};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::codec;
use crate::driver::DriverSender;
use crate::metrics::Metrics;
use crate::store_error_log::StoreErrorLog;
use crate::store_watch::WatchStarter;

/// How many keys one batch holds at most.
const BATCH: usize = 500;
/// As long as no more writes than this are under way, others go beside them instead of waiting to make up a batch.
const BESIDE: usize = 32;
/// How many ordinary calls are under way at the same time.
const CALLS: usize = 8;
/// How many times the usual time a listing may be given.
const LIST_PATIENCE: u32 = 64;
/// Listings of more keys than this are decoded off the driver's thread, so that renewals do not wait for them.
const DECODE_INLINE: usize = 256;

/// One write of a batch.
pub(crate) type Write = (OpId, Key, Expect, Record);

/// What every call needs.
#[derive(Clone)]
pub(crate) struct StoreCalls {
    pub(crate) cluster: ClusterName,
    pub(crate) timeout: Duration,
    pub(crate) inputs: DriverSender,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) trouble: Arc<StoreErrorLog>,
    /// The store's URL without secrets, for messages.
    pub(crate) store: Arc<str>,
    /// How many times the usual time a listing gets: twice as many after each that was not enough.
    pub(crate) list_patience: Arc<AtomicU32>,
}

/// The connections of a node to its store. Dropping it ends every call that is under way.
pub(crate) struct StoreIo {
    calls: StoreCalls,
    ordinary: Arc<dyn Store>,
    permits: Arc<Semaphore>,
    renewal: mpsc::UnboundedSender<(OpId, Request)>,
    writes: mpsc::UnboundedSender<Write>,
    watcher: WatchStarter,
    tasks: JoinSet<()>,
    reads: Vec<(OpId, Key)>,
}

impl StoreIo {
    /// Opens the connection for renewals and begins the tasks.
    pub(crate) fn open(
        calls: StoreCalls,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let dedicated = store.dedicated()?;
        let mut tasks = JoinSet::new();
        let (renewal, mut requests) = mpsc::unbounded_channel();
        let renewing = calls.clone();
        tasks.spawn(async move {
            while let Some((op, request)) = requests.recv().await {
                let reply = renewing.one(&*dedicated, request).await;
                renewing.inputs.express(Event::Reply { op, reply });
            }
        });
        let writes = spawn_writer(&mut tasks, calls.clone(), store.clone());
        let watcher = WatchStarter::spawn(&mut tasks, calls.clone(), store.clone(), clock);
        Ok(Self {
            calls,
            ordinary: store,
            permits: Arc::new(Semaphore::new(CALLS)),
            renewal,
            writes,
            watcher,
            tasks,
            reads: Vec::new(),
        })
    }

    /// Takes a request. Reads of single keys wait for [`StoreIo::flush`], so that those of one step go together.
    pub(crate) fn ask(&mut self, op: OpId, lane: Connection, request: Request) {
        match (lane, request) {
            // Both tasks end only with this value.
            (Connection::Renewal, request) => drop(self.renewal.send((op, request))),
            (
                Connection::Default,
                Request::Put {
                    key,
                    expect,
                    record,
                },
            ) => drop(self.writes.send((op, key, expect, record))),
            (Connection::Default, Request::Get(key)) => self.reads.push((op, key)),
            (Connection::Default, request) => {
                self.call(move |calls, store| async move {
                    vec![(op, calls.one(&*store, request).await)]
                });
            }
        }
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) {
        let mut reads = std::mem::take(&mut self.reads);
        while !reads.is_empty() {
            let rest = reads.split_off(reads.len().min(BATCH));
            let batch = std::mem::replace(&mut reads, rest);
            self.call(move |calls, store| async move { calls.get_many(&*store, batch).await });
        }
    }

    fn call<F, A>(&mut self, call: F)
    where
        F: FnOnce(StoreCalls, Arc<dyn Store>) -> A + Send + 'static,
        A: Future<Output = Vec<(OpId, Reply)>> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        let (calls, store) = (self.calls.clone(), self.ordinary.clone());
        let (permits, lists) = (self.permits.clone(), self.watcher.clone());
        self.tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await;
            let inputs = calls.inputs.clone();
            for (op, reply) in call(calls, store).await {
                lists.heard(&reply);
                inputs.event(Event::Reply { op, reply });
            }
        });
    }
}

/// Begins the task that writes: what comes while many writes are under way makes up the next batch, so that batches grow
/// with the load; a few wait for nothing.
fn spawn_writer(
    tasks: &mut JoinSet<()>,
    calls: StoreCalls,
    store: Arc<dyn Store>,
) -> mpsc::UnboundedSender<Write> {
    let (sender, mut writes) = mpsc::unbounded_channel();
    tasks.spawn(async move {
        let (mut batch, mut most) = (Vec::new(), BATCH);
        let (mut batches, mut under_way) = (JoinSet::new(), 0);
        loop {
            tokio::select! {
                biased;
                Some(replies) = batches.join_next() => {
                    let Ok(replies): Result<Vec<(OpId, Reply)>, _> = replies else {
                        return;
                    };
                    under_way -= replies.len();
                    most = next_most(most, &replies);
                    for (op, reply) in replies {
                        calls.inputs.event(Event::Reply { op, reply });
                    }
                }
                count = writes.recv_many(&mut batch, most), if under_way < BESIDE => {
                    if count == 0 {
                        return;
                    }
                    under_way += count;
                    let (calls, store) = (calls.clone(), store.clone());
                    let batch = std::mem::take(&mut batch);
                    batches.spawn(async move { calls.put_many(&*store, batch).await });
                }
            }
        }
    });
    sender
}

/// How large the next batch may be. One that is too large for a slow store would be too large for ever.
fn next_most(most: usize, replies: &[(OpId, Reply)]) -> usize {
    let unknown =
        |(_, reply): &(OpId, Reply)| matches!(reply, Reply::Failed(StoreFailure::Unknown(_)));
    match replies.iter().all(unknown) {
        true => (replies.len() / 2).max(1),
        false => (most * 2).min(BATCH),
    }
}

impl StoreCalls {
    async fn one(&self, store: &dyn Store, request: Request) -> Reply {
        let (kind, writes) = match &request {
            Request::Get(_) => ("get", false),
            Request::List => ("list", false),
            Request::Revision => ("revision", false),
            Request::Put { .. } => ("put", true),
            Request::Delete { .. } => ("delete", true),
            Request::CreateLease { .. } => ("grant", true),
            Request::KeepAlive(_) => ("keep_alive", true),
            Request::CheckLease(_) => ("check_lease", false),
        };
        let renews = renews(&request);
        let reply = match request {
            Request::List => self
                .list(store)
                .await
                .unwrap_or_else(|e| Reply::Failed(codec::failure(e))),
            request => timeout(self.timeout, self.answer(store, request))
                .await
                .unwrap_or_else(|_| self.timed_out(writes)),
        };
        self.metrics.store_request(kind, &reply);
        if !renews {
            self.tell(kind, &reply);
        }
        reply
    }

    /// Has the cause of a failure logged, if it is a new one.
    fn tell(&self, kind: &'static str, reply: &Reply) {
        match reply {
            Reply::Failed(
                StoreFailure::Unavailable(reason)
                | StoreFailure::Unknown(reason)
                | StoreFailure::Denied(reason),
            ) => self.trouble.failed(kind, reason),
            _ => self.trouble.answered(kind),
        }
    }

    async fn answer(&self, store: &dyn Store, request: Request) -> Reply {
        let answer = async {
            Ok(match request {
                Request::Get(key) => {
                    let entry = store.get(&key.path(&self.cluster)).await?;
                    Reply::Got(
                        entry
                            .and_then(|e| codec::found(&self.cluster, &e))
                            .map(|f| f.1),
                    )
                }
                Request::List => self.list(store).await?,
                Request::Revision => Reply::Revision(store.revision().await?),
                Request::Put {
                    key,
                    expect,
                    record,
                } => {
                    let put = codec::put(&self.cluster, &key, expect, &record);
                    written(store.put_if(put).await?)
                }
                Request::Delete { key, version } => {
                    let delete = DeleteIf::new(key.path(&self.cluster), version.clone());
                    removed(store.delete_if(delete).await?, version)
                }
                Request::CreateLease { session, ttl } => {
                    Reply::LeaseCreated(leases(store)?.grant(LeaseId::of(session), ttl).await?)
                }
                Request::KeepAlive(session) => {
                    let key = Key::Session(session).path(&self.cluster);
                    let kept = leases(store)?.keep_alive(LeaseId::of(session), &key);
                    Reply::KeptAlive(kept.await?)
                }
                Request::CheckLease(session) => {
                    Reply::Lease(leases(store)?.is_alive(LeaseId::of(session)).await?)
                }
            })
        };
        let answer: Result<Reply, StoreError> = answer.await;
        answer.unwrap_or_else(|e| Reply::Failed(codec::failure(e)))
    }

    /// Everything. A listing grows with the cluster, and no renewal waits for it: one that takes longer than a request may,
    /// from a store that has just answered, gets more time at the next try. Decoding is no part of that time.
    async fn list(&self, store: &dyn Store) -> Result<Reply, StoreError> {
        let Ok(identity) = timeout(self.timeout, store.identity()).await else {
            return Ok(self.timed_out(false));
        };
        let (identity, prefix) = (identity?, prefix(&self.cluster));
        let patience = self.list_patience.load(Ordering::Relaxed);
        let Ok(listing) = timeout(self.timeout * patience, store.list(&prefix)).await else {
            let more = (patience * 2).min(LIST_PATIENCE);
            self.list_patience.store(more, Ordering::Relaxed);
            return Ok(self.timed_out(false));
        };
        let listing = listing?;
        let cluster = self.cluster.clone();
        let large = listing.entries.len() > DECODE_INLINE;
        let decode = move || {
            let found = |entry| codec::found(&cluster, entry);
            listing.entries.iter().filter_map(found).collect()
        };
        let revision = listing.revision;
        let entries = if large {
            let decoded = tokio::task::spawn_blocking(decode).await;
            decoded.map_err(|e| {
                StoreError::unavailable(format!("decoding the listed records failed: {e}"))
            })?
        } else {
            decode()
        };
        Ok(Reply::Listed(StoreListing {
            entries,
            revision,
            store: identity,
        }))
    }

    async fn put_many(&self, store: &dyn Store, writes: Vec<Write>) -> Vec<(OpId, Reply)> {
        let ops: Vec<OpId> = writes.iter().map(|write| write.0).collect();
        let mut puts: Vec<_> = writes
            .into_iter()
            .map(|(_, key, expect, record)| codec::put(&self.cluster, &key, expect, &record))
            .collect();
        let answers = async {
            match puts.pop() {
                // A batch of one costs some stores more than the one call.
                Some(alone) if puts.is_empty() => vec![store.put_if(alone).await],
                last => {
                    puts.extend(last);
                    store.put_many(puts).await
                }
            }
        };
        let answers = timeout(self.timeout, answers).await;
        self.spread("put", true, ops, answers.ok(), written)
    }

    async fn get_many(&self, store: &dyn Store, reads: Vec<(OpId, Key)>) -> Vec<(OpId, Reply)> {
        let (ops, keys): (Vec<_>, Vec<_>) = reads
            .into_iter()
            .map(|(op, key)| (op, key.path(&self.cluster)))
            .unzip();
        let answers = async {
            match &keys[..] {
                [alone] => vec![store.get(alone).await],
                _ => store.get_many(keys).await,
            }
        };
        let answers = timeout(self.timeout, answers).await;
        self.spread("get", false, ops, answers.ok(), |entry| {
            let found = entry.and_then(|e| codec::found(&self.cluster, &e));
            Reply::Got(found.map(|(_, found)| found))
        })
    }

    /// Pairs each request of a batch with its answer. One that got none is treated as if it had timed out.
    fn spread<A>(
        &self,
        kind: &'static str,
        writes: bool,
        ops: Vec<OpId>,
        answers: Option<Vec<Result<A, StoreError>>>,
        reply: impl Fn(A) -> Reply,
    ) -> Vec<(OpId, Reply)> {
        let mut answers = answers.into_iter().flatten();
        let mut next = || match answers.next() {
            Some(Ok(answer)) => reply(answer),
            Some(Err(error)) => Reply::Failed(codec::failure(error)),
            None => self.timed_out(writes),
        };
        ops.into_iter()
            .map(|op| {
                let reply = next();
                self.metrics.store_request(kind, &reply);
                self.tell(kind, &reply);
                (op, reply)
            })
            .collect()
    }

    /// What is said of a call that took too long.
    pub(crate) fn late(&self) -> String {
        let (store, timeout) = (&self.store, self.timeout);
        format!("no answer from {store} within {timeout:?}; check the server and the network")
    }

    fn timed_out(&self, writes: bool) -> Reply {
        let reason = self.late();
        Reply::Failed(if writes {
            StoreFailure::Unknown(reason)
        } else {
            StoreFailure::Unavailable(reason)
        })
    }
}

/// Whether this keeps a session alive: what those fail with is told with the lease.
fn renews(request: &Request) -> bool {
    match request {
        Request::KeepAlive(_) => true,
        Request::Put { key, expect, .. } => {
            matches!((key, expect), (Key::Session(_), Expect::Version(_)))
        }
        _ => false,
    }
}

/// A machine asks for leases only if it was told that the store has them.
fn leases(store: &dyn Store) -> Result<&dyn Leases, StoreError> {
    store.leases().ok_or_else(|| StoreError::Denied {
        reason: format!("{} does not support leases", store.info().kind),
    })
}

fn written(put: Put) -> Reply {
    match put {
        Put::Won(version) => Reply::Won(version),
        Put::Lost => Reply::Lost,
    }
}

fn removed(delete: Delete, version: Version) -> Reply {
    match delete {
        Delete::Won => Reply::Won(version),
        Delete::Lost => Reply::Lost,
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::ids::{Nonce, SessionId};
    use tenure_core::record::{Head, LeaderRecord, Unknown};
    use tenure_store::fault::{FaultConfig, FaultHandle, FaultStore};
    use tenure_store::memory::MemoryStore;

    use super::*;

    fn calls() -> (StoreCalls, FaultStore, FaultHandle) {
        let calls = StoreCalls {
            cluster: ClusterName::new("shop").unwrap(),
            timeout: Duration::from_millis(100),
            inputs: DriverSender::channel().0,
            metrics: Arc::new(Metrics::new(Clock::runtime())),
            trouble: Arc::new(StoreErrorLog::new(Clock::runtime(), Duration::ZERO)),
            store: "memory:".into(),
            list_patience: Arc::new(AtomicU32::new(1)),
        };
        let inner = Arc::new(MemoryStore::new());
        let (store, faults) = FaultStore::new(inner, FaultConfig::none(1));
        (calls, store, faults)
    }

    fn record() -> Record {
        let writer = SessionId(1);
        Record::Leader(Arc::new(LeaderRecord {
            head: Head::first(Nonce { writer, n: 1 }),
            term: 1,
            session: writer,
            node: tenure_core::ids::NodeName::new("n").unwrap(),
            resigned: false,
            unknown: Unknown::new(),
        }))
    }

    fn put() -> Request {
        Request::Put {
            key: Key::Leader,
            expect: Expect::Absent,
            record: record(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_reads_back_as_it_was_and_a_lost_race_is_a_value() {
        let (calls, store, _) = calls();
        let Reply::Won(version) = calls.one(&store, put()).await else {
            panic!("the first write wins");
        };
        assert_eq!(calls.one(&store, put()).await, Reply::Lost);
        let Reply::Got(Some(found)) = calls.one(&store, Request::Get(Key::Leader)).await else {
            panic!("what was written is there");
        };
        assert_eq!((found.version, found.record), (version, Ok(record())));
        let Reply::Listed(listed) = calls.one(&store, Request::List).await else {
            panic!("a list lists");
        };
        assert_eq!(listed.entries.len(), 1);
        assert_eq!(listed.store, store.identity().await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends_by_its_timeout_and_a_write_is_then_unknown() {
        let (calls, store, faults) = calls();
        faults.hang();
        let start = tokio::time::Instant::now();
        let written = calls.one(&store, put()).await;
        assert!(matches!(written, Reply::Failed(StoreFailure::Unknown(_))));
        let read = calls.one(&store, Request::List).await;
        assert!(matches!(read, Reply::Failed(StoreFailure::Unavailable(_))));
        let batch = vec![(OpId(1), Key::Leader, Expect::Absent, record())];
        let batch = calls.put_many(&store, batch).await;
        let [(OpId(1), Reply::Failed(StoreFailure::Unknown(_)))] = &batch[..] else {
            panic!("{batch:?}");
        };
        assert_eq!(start.elapsed(), calls.timeout * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_is_known_not_to_have_happened_and_is_not_repeated() {
        let (calls, store, faults) = calls();
        faults.outage();
        let refused = calls.one(&store, put()).await;
        assert!(matches!(
            refused,
            Reply::Failed(StoreFailure::Unavailable(_))
        ));
        faults.heal();
        let read = calls.one(&store, Request::Get(Key::Leader)).await;
        assert_eq!(read, Reply::Got(None));
        let labels = "{kind=\"put\",outcome=\"unavailable\"}";
        let counted = calls.metrics.value("tenure_store_requests_total", labels);
        assert_eq!(counted, 1.0);
    }
}
