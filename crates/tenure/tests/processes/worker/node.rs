//! The role of a `tenure::Node` whose handler writes down when it works.

use std::sync::{Arc, Mutex};

use tenure::{Builder, Grant, Handler, Hashed, Node, Result, Settings, Shard, SharedState};
use tenure_judge::LogEvent;
use tokio::signal::unix::{SignalKind, signal};

use super::effects::{Effect, Effects};
use super::record::{Record, Subject};
use super::{BEAT, CLUSTER, KEYSPACE, NOT_STARTED, NOT_STOPPED, Work, now};

/// One effect for so many beats.
const BEATS_PER_EFFECT: u64 = 10;

/// Runs a node until it is told to stop. Returns the exit code.
pub(crate) fn serve(work: Work) -> i32 {
    told_to_log().block_on(live(work))
}

/// A runtime, and a log to standard error.
pub(super) fn told_to_log() -> tokio::runtime::Runtime {
    tracing_subscriber::fmt()
        .with_env_filter("tenure=info")
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

async fn live(work: Work) -> i32 {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    let worker = Worker::open(&work);
    let settings = Settings {
        ttl: work.ttl,
        ..Settings::default()
    };
    let builder = set_up(&work, Node::builder(&work.store, CLUSTER));
    let start = builder
        .name(&work.node)
        .data_dir(&work.data_dir)
        .trace(
            work.site
                .join("traces")
                .join(format!("{}-{}.jsonl", work.node, std::process::id())),
        )
        .settings(settings);
    let start = match work.own.leads_only {
        true => start.planner_only(),
        false => start.keyspace(KEYSPACE, Hashed(work.shards), worker.clone()),
    };
    let start = start.start();
    let started = tokio::select! {
        started = start => started,
        _ = terminate.recv() => return 0,
    };
    let node = match started {
        Ok(node) => node,
        Err(error) => {
            eprintln!("not started: {error}");
            return NOT_STARTED;
        }
    };
    worker.tell_started(&node);
    tokio::select! {
        _ = terminate.recv() => {}
        ended = node.ended() => eprintln!("ended by itself: {ended:?}"),
    }
    match node.stop().await {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("not stopped: {error}");
            NOT_STOPPED
        }
    }
}

/// What the node says of itself, and how its keyspace is planned.
pub(super) fn set_up(work: &Work, mut builder: Builder) -> Builder {
    builder = builder.plan(work.plan.clone()).start_drained(work.own.join);
    if let Some(rejoin) = work.own.rejoin {
        builder = builder.rejoin(rejoin);
    }
    if let Some(weight) = work.own.weight {
        builder = builder.weight(weight);
    }
    if let Some(zone) = &work.own.zone {
        builder = builder.zone(zone);
    }
    if let Some(most) = work.own.capacity {
        builder = builder.capacity(most);
    }
    builder
}

#[derive(Clone)]
pub(super) struct Worker(Arc<Inside>);

struct Inside {
    record: Record,
    effects: Option<Mutex<Effects>>,
    loaded: Mutex<Vec<String>>,
}

impl Worker {
    pub(super) fn open(work: &Work) -> Self {
        let effects = work.effects.then(|| Effects::open(&work.site));
        Self(Arc::new(Inside {
            record: Record::open(work),
            effects: effects.map(|opened| Mutex::new(opened.expect("the resource"))),
            loaded: Mutex::default(),
        }))
    }

    /// Takes note of a shard that was loaded.
    pub(super) fn loaded(&self, shard: &str) {
        let mut loaded = self.0.loaded.lock().expect("no panic");
        loaded.push(shard.to_owned());
    }

    /// Writes down that it works on a shard, for as long as it may. `whole` is the grant of the whole stay.
    pub(super) async fn beat_on(&self, grant: Grant, whole: Grant) -> Result<()> {
        let mut span = Span {
            worker: self.clone(),
            subject: Subject {
                shard: grant.shard().to_string(),
                epoch: grant.epoch().0,
                session: grant.session().to_string(),
            },
            whole,
            last: None,
        };
        let mut tick = tokio::time::interval(BEAT);
        for count in 0u64.. {
            tokio::select! {
                biased;
                () = grant.cancelled() => break,
                _ = tick.tick() => {}
            }
            if !span.beat(&grant) {
                break;
            }
            if count % BEATS_PER_EFFECT == BEATS_PER_EFFECT - 1 {
                span.effect(count, &grant);
            }
        }
        drop(span);
        grant.cancelled().await;
        Ok(())
    }

    /// Says what was owned and loaded at the moment at which the start returned.
    pub(super) fn tell_started(&self, node: &Node) {
        let t = now();
        let owned: Vec<String> = node.owned().iter().map(ToString::to_string).collect();
        let loaded = self.0.loaded.lock().expect("no panic").clone();
        let told = serde_json::json!({ "t": t, "owned": owned, "loaded": loaded });
        eprintln!("started {told}");
    }
}

impl Handler for Worker {
    /// The grant of the whole stay, which outlasts that of the loop while the shard is being given away.
    type State = Grant;

    async fn load(&self, shard: &Shard) -> Result<Grant> {
        if let Some(effects) = &self.0.effects {
            tokio::task::block_in_place(|| {
                let effects = effects.lock().expect("no panic");
                effects.fence(&shard.id().to_string(), shard.epoch().0)
            })?;
        }
        self.loaded(&shard.id().to_string());
        Ok(shard.grant().clone())
    }

    async fn run(&self, grant: Grant, state: SharedState<Grant>) -> Result<()> {
        let whole = state.lock().await?.clone();
        self.beat_on(grant, whole).await
    }
}

/// The loop of one stay, as the judge will see it. Ends when it is dropped, by the loop itself or from outside.
struct Span {
    worker: Worker,
    subject: Subject,
    whole: Grant,
    last: Option<u64>,
}

impl Span {
    /// Writes a line, if the grant holds. The stamp is taken *before* the grant is asked: a grant that holds now held
    /// then, however long this process is stopped between any two of these three steps.
    fn beat(&mut self, grant: &Grant) -> bool {
        let at = now();
        if grant.check().is_err() {
            return false;
        }
        let ev = match self.last.replace(at) {
            None => LogEvent::Start,
            Some(_) => LogEvent::Beat,
        };
        self.worker.0.record.line(at, ev, &self.subject);
        true
    }

    /// Changes the resource, and writes that down if the resource took it.
    fn effect(&mut self, count: u64, grant: &Grant) {
        let Some(effects) = &self.worker.0.effects else {
            return;
        };
        let (shard, epoch) = (&self.subject.shard, self.subject.epoch);
        let made = tokio::task::block_in_place(|| {
            let mut effects = effects.lock().expect("no panic");
            effects.make(shard, epoch, count, || grant.check().is_ok())
        });
        match made {
            Ok(Effect::Made(at)) => {
                self.last = Some(at);
                self.worker
                    .0
                    .record
                    .line(at, LogEvent::Effect, &self.subject);
            }
            Ok(Effect::Refused) => eprintln!("effect refused: {:?}", self.subject),
            // The resource is held up, or there is nothing left to do: there will be another beat, here or elsewhere.
            Ok(Effect::Late) | Err(_) => {}
        }
    }
}

impl Drop for Span {
    /// The loop ends now if the shard is still this node's, which is so when it is given away; otherwise the last beat
    /// was the end.
    fn drop(&mut self) {
        let Some(last) = self.last else { return };
        let at = now();
        let end = if self.whole.check().is_ok() { at } else { last };
        self.worker.0.record.line(end, LogEvent::End, &self.subject);
    }
}
