//! The task that lives one stay of a shard with its handler: load, serve, run, seal, drop.

use std::any::{Any, TypeId};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::machine::{ActivationId, Event};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

use crate::clock::Clock;
use crate::data_dir::DataDir;
use crate::driver::{DriverInput, DriverSender};
use crate::grant::{Grant, GrantExpired};
use crate::handler::{BoxError, Handler, Result, Seal, Shard, SharedState, StateCell};
use crate::local_shard::{ActivationCommand, ActivationStart, LocalShard};

/// What every stay of a node needs.
pub(crate) struct TaskContext {
    pub(crate) clock: Clock,
    pub(crate) inputs: DriverSender,
    pub(crate) application: Handle,
    pub(crate) data_dir: Option<Arc<DataDir>>,
    pub(crate) kill_grace: Duration,
}

/// A handler without its type.
pub(crate) trait AnyHandler: Send + Sync {
    /// Begins a stay: the load starts at once, on the application's runtime.
    fn begin(&self, begin: ActivationStart, ground: &TaskContext) -> Arc<LocalShard>;

    /// The handler's type.
    fn handler_type(&self) -> TypeId;
}

/// A handler with its type.
pub(crate) struct TypedHandler<H>(pub(crate) Arc<H>);

impl<H: Handler> AnyHandler for TypedHandler<H> {
    fn begin(&self, begin: ActivationStart, ground: &TaskContext) -> Arc<LocalShard> {
        let cell: Arc<StateCell<H::State>> = Arc::new(StateCell::new(None));
        let (orders, received) = mpsc::unbounded_channel();
        let stay = LocalShard::new(
            &begin,
            ground.clock.clone(),
            ground.inputs.clone(),
            cell.clone(),
            ground.data_dir.clone(),
            orders,
        );
        let life = HandlerTask {
            handler: self.0.clone(),
            shard: Shard {
                grant: Grant::of_work(stay.clone()),
                meta: begin.meta,
            },
            stay: stay.clone(),
            cell,
            inputs: ground.inputs.clone(),
            kill_grace: ground.kill_grace,
        };
        let farewell = Farewell {
            run: begin.run,
            inputs: ground.inputs.clone(),
        };
        ground.application.spawn(async move {
            // Dropped after everything else of the stay, also when the runtime drops the task.
            let _farewell = farewell;
            life.live(received).await;
        });
        stay
    }

    fn handler_type(&self) -> TypeId {
        TypeId::of::<H>()
    }
}

/// Tells the driver that nothing is left of a stay.
struct Farewell {
    run: ActivationId,
    inputs: DriverSender,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.inputs.send(DriverInput::Ended(self.run));
    }
}

type Orders = mpsc::UnboundedReceiver<ActivationCommand>;

struct HandlerTask<H: Handler> {
    handler: Arc<H>,
    shard: Shard,
    stay: Arc<LocalShard>,
    cell: Arc<StateCell<H::State>>,
    inputs: DriverSender,
    kill_grace: Duration,
}

impl<H: Handler> HandlerTask<H> {
    async fn live(self, mut orders: Orders) {
        if self.load().await {
            if self.succeed(&mut orders).await && self.run(&mut orders).await {
                self.seal_for_successor().await;
            }
            self.stay.gate.drained().await;
            if self.stay.is_owned() && !self.stay.is_sealed() {
                self.seal_for_nobody().await;
            }
        }
        self.stay.cut.cancel();
        let state = self.cell.lock().await.take();
        if catch_unwind(AssertUnwindSafe(|| drop(state))).is_err() {
            warn!(shard = %self.stay.shard, epoch = %self.stay.epoch(), "handler panicked while it dropped the state \
                of the shard");
        }
    }

    /// Waits for the gate to open, catching up before that if told to; says whether it has.
    async fn succeed(&self, orders: &mut Orders) -> bool {
        loop {
            tokio::select! {
                biased;
                () = self.stay.stop.cancelled() => return false,
                () = self.stay.opened.cancelled() => return true,
                order = orders.recv() => match order {
                    Some(ActivationCommand::CatchUp(seal)) => {
                        if !self.catch_up(Seal::new(seal)).await {
                            return false;
                        }
                    }
                    Some(_) => {}
                    None => return false,
                },
            }
        }
    }

    /// Applies what the last owner wrote; says whether that went well.
    async fn catch_up(&self, seal: Seal) -> bool {
        let activation = self.stay.run;
        let grant = Grant::of_loop(self.stay.clone());
        let caught_up = grant.run_until_lost(async {
            match self.cell.lock().await.as_mut() {
                Some(state) => caught(self.handler.catch_up(&self.shard, state, &seal)).await,
                None => Ok(()),
            }
        });
        let event = match caught_up.await {
            Ok(Ok(())) => Event::CaughtUp(activation),
            Ok(Err(error)) => Event::LoadFailed {
                activation,
                error: error.to_string(),
            },
            Err(_) => return false,
        };
        let well = matches!(event, Event::CaughtUp(_));
        self.inputs.event(event);
        well
    }

    /// Whether the state is there.
    async fn load(&self) -> bool {
        let activation = self.stay.run;
        // Nothing is lost by dropping a load, so it ends as soon as the stay is to end.
        let load = Grant::of_loop(self.stay.clone());
        let event = match load
            .run_until_lost(caught(self.handler.load(&self.shard)))
            .await
        {
            Ok(Ok(state)) => {
                *self.cell.lock().await = Some(state);
                Event::Loaded(activation)
            }
            Ok(Err(error)) => Event::LoadFailed {
                activation,
                error: error.to_string(),
            },
            Err(_) if self.stay.stop.is_cancelled() => return false,
            Err(lost) => Event::LoadFailed {
                activation,
                error: lost.to_string(),
            },
        };
        let loaded = matches!(event, Event::Loaded(_));
        self.inputs.event(event);
        loaded
    }

    /// Runs the handler's loop until the stay is to end, and sees that it has stopped; says whether a successor waits.
    async fn run(&self, orders: &mut Orders) -> bool {
        let grant = Grant::of_loop(self.stay.clone());
        let shared = SharedState {
            cell: self.cell.clone(),
            grant: grant.clone(),
        };
        let mut work = pin!(caught(self.handler.run(grant, shared)));
        let lasting = Grant::of_work(self.stay.clone());
        let mut over = false;
        // The move that the gate is shut for, until nothing is in flight.
        let mut frozen: Option<u64> = None;
        let seals = loop {
            tokio::select! {
                biased;
                () = self.stay.stop.cancelled() => break false,
                order = orders.recv() => match order {
                    Some(ActivationCommand::Freeze(move_id)) => frozen = Some(move_id),
                    Some(ActivationCommand::Thaw) => frozen = None,
                    Some(ActivationCommand::Seal) => break true,
                    Some(ActivationCommand::CatchUp(_)) | None => {}
                },
                () = self.stay.gate.empty(), if frozen.is_some() => {
                    if let Some(move_id) = frozen.take() {
                        self.inputs.event(Event::Frozen { activation: self.stay.run, move_id });
                    }
                }
                ended = lasting.run_until_lost(&mut work), if !over => {
                    over = true;
                    if let Ok(ended) = ended {
                        let error = ended.err().map(|e| e.to_string());
                        self.inputs.event(Event::LoopEnded { activation: self.stay.run, error });
                    }
                }
            }
        };
        self.stay.stop.cancel();
        if !over {
            tokio::select! {
                biased;
                _ = lasting.run_until_lost(&mut work) => {}
                () = self.stay.clock.sleep(self.kill_grace) => {}
            }
        }
        seals
    }

    /// Writes out what must outlive the stay, and tells where it ends.
    async fn seal_for_successor(&self) {
        let activation = self.stay.run;
        let event = match self.seal().await {
            Ok(Ok(seal)) => {
                self.stay.sealed();
                let seal = seal.as_str().to_owned();
                Event::Sealed { activation, seal }
            }
            Ok(Err(error)) => Event::SealFailed {
                activation,
                error: error.to_string(),
            },
            // The shard is lost; who has it now does not ask.
            Err(_) => return,
        };
        self.inputs.event(event);
    }

    async fn seal_for_nobody(&self) {
        if let Ok(Err(error)) = self.seal().await {
            warn!(shard = %self.stay.shard, epoch = %self.stay.epoch(), %error, "handler failed to seal the shard before its release");
        }
    }

    async fn seal(&self) -> Result<Result<Seal>, GrantExpired> {
        let grant = Grant::of_work(self.stay.clone());
        grant
            .run_until_lost(async {
                match self.cell.lock().await.as_mut() {
                    Some(state) => caught(self.handler.seal(&self.shard, state)).await,
                    None => Ok(Seal::default()),
                }
            })
            .await
    }
}

/// A future whose panic is an error of its own.
pub(crate) async fn caught<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = pin!(work);
    poll_fn(move |cx| {
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)))
            .unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    })
    .await
}

fn panicked(panic: &(dyn Any + Send)) -> BoxError {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    BoxError::from(format!("panicked: {text}"))
}
