//! Entities: one small actor per key, inside the shard that owns the key.
//!
//! An entity starts with the first message to its key and receives its messages one by one. It ends when it has been idle for
//! a while, and when its shard is about to move to another node or to be released. Mailboxes and their number are bounded: a
//! message that does not fit is rejected.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::Epoch;
use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::warn;

use crate::enter::{AdmittedRequest, NotOwner};
use crate::grant::{Grant, GrantExpired};
use crate::handler::{Handler, Result, Shard};
use crate::handler_task::caught;
use crate::node::Node;

/// Actor of one key.
///
/// # What happens to a message
///
/// [`Node::tell`](crate::Node::tell) either returns an error that contains the message, or accepts it. An accepted message is passed to
/// [`Entity::receive`] exactly once or to [`Entity::not_processed`] exactly once, as long as the process lives:
///
/// - **Planned move, drain, stop.** The gate of the shard closes first: from then on `tell` returns [`TellError::NotOwner`].
///   The entities receive all messages that were accepted before, then they are passivated. The shard is sealed after that, so
///   the new owner starts an entity only when its predecessor has ended. This takes at most `drain_timeout`: a move
///   that needs longer is aborted, and the entities continue at this node. A node that stops cancels them then.
/// - **Lost shard** (lease not renewed in time, or `drain_timeout` over while the node stops). The entity is dropped at
///   once, in the middle of a `receive` if need be. Messages that were still in its mailbox go to `not_processed`.
/// - **Failed start.** The messages in the mailbox go to `not_processed`. The next message starts the entity again.
/// - **Panic in `receive`.** The message that caused it counts as received. The entity is dropped, and started again if
///   more messages wait.
///
/// At most one entity of a key exists at a time: a successor starts only after `passivate` of its predecessor has returned.
pub trait Entity: Sized + Send + 'static {
    /// What it is told. To get an answer, put a [`tokio::sync::oneshot::Sender`] into it.
    type Message: Send + 'static;
    /// What all entities of a keyspace share, such as a database.
    type Context: Send + Sync + 'static;

    /// Makes the entity of `key`. If that fails, the messages that wait for it go to [`Entity::not_processed`].
    fn start(
        context: &Arc<Self::Context>,
        key: &str,
        grant: &Grant,
    ) -> impl Future<Output = Result<Self>> + Send;

    /// Takes one message.
    fn receive(&mut self, message: Self::Message, grant: &Grant)
    -> impl Future<Output = ()> + Send;

    /// Puts the entity away, because it was idle or because its shard moves or is released. Not called when the shard is
    /// lost.
    fn passivate(self, grant: &Grant) -> impl Future<Output = ()> + Send {
        let _ = grant;
        async {}
    }

    /// Takes back a message that was accepted but that no entity will receive, to notify its sender. The sender may send the
    /// message again: it had no effect. By default the message is dropped.
    fn not_processed(
        context: &Arc<Self::Context>,
        key: &str,
        message: Self::Message,
        reason: NotProcessed,
    ) {
        let _ = (context, key, message, reason);
    }
}

/// Reason for which an accepted message was not processed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotProcessed {
    /// The shard was lost, or the node had to stop, while the message was in the mailbox.
    #[error("message not processed: {0}")]
    Lost(GrantExpired),
    /// The entity failed to start.
    #[error("message not processed: the entity failed to start: {0}")]
    StartFailed(String),
}

/// Why a message was not taken. It was not delivered, and is given back.
#[derive(thiserror::Error)]
pub enum TellError<M> {
    /// The key's shard is not here.
    #[error("{reason}")]
    NotOwner {
        /// The message.
        message: M,
        /// Who has it.
        reason: Box<NotOwner>,
    },
    /// The shard was lost while the message was on its way.
    #[error("{reason}")]
    Lost {
        /// The message.
        message: M,
        /// Which.
        reason: GrantExpired,
    },
    /// The entity has too many messages waiting.
    #[error(
        "the mailbox of entity {key:?} is full: {limit} messages are queued; send fewer or raise `mailbox`"
    )]
    MailboxFull {
        /// The message.
        message: M,
        /// The entity.
        key: String,
        /// How many it may have.
        limit: usize,
    },
    /// The shard has too many entities.
    #[error(
        "no room for entity {key:?}: {limit} entities are active in its shard; raise `max_entities` or lower `idle_after`"
    )]
    TooMany {
        /// The message.
        message: M,
        /// The entity.
        key: String,
        /// How many there may be.
        limit: usize,
    },
}

impl<M> std::fmt::Debug for TellError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TellError({self})")
    }
}

/// The handler of a keyspace of entities.
pub struct Entities<E: Entity> {
    context: Arc<E::Context>,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    mailbox: usize,
    max_entities: usize,
    idle_after: Duration,
}

impl<E: Entity> Entities<E> {
    /// Entities that share `context`. By default a mailbox holds 64 messages, a shard 10,000 entities, and an entity is let
    /// go after a minute without messages.
    pub fn new(context: E::Context) -> Self {
        Self {
            context: Arc::new(context),
            limits: Limits {
                mailbox: 64,
                max_entities: 10_000,
                idle_after: Duration::from_secs(60),
            },
        }
    }

    /// How many messages may wait for one entity; at least one.
    #[must_use]
    pub fn mailbox(mut self, messages: usize) -> Self {
        self.limits.mailbox = messages.max(1);
        self
    }

    /// How many entities of one shard may be active at the same time.
    #[must_use]
    pub fn max_entities(mut self, entities: usize) -> Self {
        self.limits.max_entities = entities;
        self
    }

    /// After how long without a message an entity is let go.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.limits.idle_after = idle;
        self
    }
}

impl<E: Entity> Handler for Entities<E> {
    type State = ActiveEntities<E>;

    async fn load(&self, _shard: &Shard) -> Result<ActiveEntities<E>> {
        Ok(ActiveEntities {
            context: self.context.clone(),
            limits: self.limits,
            mailboxes: HashMap::new(),
        })
    }
}

/// The active entities of one shard.
pub struct ActiveEntities<E: Entity> {
    context: Arc<E::Context>,
    limits: Limits,
    mailboxes: HashMap<String, mpsc::Sender<E::Message>>,
}

impl Node {
    /// Gives a message to the entity of `key`, starting it if need be. Returns when the message is in its mailbox.
    /// [`Entity`] documents what happens to it then.
    pub async fn tell<E: Entity>(
        &self,
        keyspace: &str,
        key: &str,
        message: E::Message,
    ) -> Result<(), TellError<E::Message>> {
        let entered = self.enter::<Entities<E>>(keyspace, key);
        deliver(entered, key, message).await
    }

    /// As [`Node::tell`], if the shard is served at the epoch that the request names: for requests that a router sent.
    pub async fn tell_at<E: Entity>(
        &self,
        keyspace: &str,
        key: &str,
        epoch: Epoch,
        message: E::Message,
    ) -> Result<(), TellError<E::Message>> {
        let entered = self.enter_at::<Entities<E>>(keyspace, key, epoch);
        deliver(entered, key, message).await
    }
}

async fn deliver<E: Entity>(
    entered: Result<AdmittedRequest<Entities<E>>, NotOwner>,
    key: &str,
    message: E::Message,
) -> Result<(), TellError<E::Message>> {
    let entered = match entered {
        Ok(entered) => entered,
        Err(reason) => {
            let reason = Box::new(reason);
            return Err(TellError::NotOwner { message, reason });
        }
    };
    let state = entered.state().clone();
    let mut shelf = state.lock().await;
    match shelf.as_mut() {
        Some(shelf) => shelf.deliver(key, message, entered),
        None => {
            let reason = entered.grant().lost();
            Err(TellError::Lost { message, reason })
        }
    }
}

impl<E: Entity> ActiveEntities<E> {
    fn deliver(
        &mut self,
        key: &str,
        message: E::Message,
        entered: AdmittedRequest<Entities<E>>,
    ) -> Result<(), TellError<E::Message>> {
        let Some(mailbox) = self.mailboxes.get(key) else {
            return self.begin(key, message, entered);
        };
        match mailbox.try_send(message) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(message)) => Err(TellError::MailboxFull {
                message,
                key: key.to_owned(),
                limit: self.limits.mailbox,
            }),
            // The task of the entity is gone, because the shard is lost: the new one reports that.
            Err(TrySendError::Closed(message)) => {
                self.mailboxes.remove(key);
                self.begin(key, message, entered)
            }
        }
    }

    fn begin(
        &mut self,
        key: &str,
        message: E::Message,
        entered: AdmittedRequest<Entities<E>>,
    ) -> Result<(), TellError<E::Message>> {
        if self.mailboxes.len() >= self.limits.max_entities {
            self.mailboxes.retain(|_, mailbox| !mailbox.is_closed());
        }
        if self.mailboxes.len() >= self.limits.max_entities {
            return Err(TellError::TooMany {
                message,
                key: key.to_owned(),
                limit: self.limits.max_entities,
            });
        }
        let (mailbox, messages) = mpsc::channel(self.limits.mailbox);
        if let Err(TrySendError::Full(message) | TrySendError::Closed(message)) =
            mailbox.try_send(message)
        {
            let reason = entered.grant().lost();
            return Err(TellError::Lost { message, reason });
        }
        self.mailboxes.insert(key.to_owned(), mailbox);
        let active = Active {
            context: self.context.clone(),
            key: key.to_owned(),
            idle_after: self.limits.idle_after,
            messages,
            entered,
        };
        tokio::spawn(active.live());
        Ok(())
    }
}

/// The task of one key, from its first message until its mailbox is empty and its entity has ended. It counts as work in
/// flight, so that the shard is not sealed before.
struct Active<E: Entity> {
    context: Arc<E::Context>,
    key: String,
    idle_after: Duration,
    messages: mpsc::Receiver<E::Message>,
    entered: AdmittedRequest<Entities<E>>,
}

impl<E: Entity> Active<E> {
    async fn live(mut self) {
        let grant = self.entered.grant().clone();
        if let Err(lost) = grant.run_until_lost(self.serve(&grant)).await {
            self.hand_back(&NotProcessed::Lost(lost));
        }
    }

    /// Runs one entity after the other until no message waits.
    async fn serve(&mut self, grant: &Grant) {
        loop {
            if let Err(error) = caught(self.activate(grant)).await {
                warn!(shard = %grant.shard(), key = self.key, %error, "entity stopped with an error");
            }
            // Nobody can send while the shelf is locked, so an empty mailbox stays empty.
            let mut shelf = self.entered.state().lock().await;
            if self.messages.is_empty() {
                if let Some(shelf) = shelf.as_mut() {
                    shelf.mailboxes.remove(&self.key);
                }
                return;
            }
        }
    }

    /// Runs one entity, from start to passivation.
    async fn activate(&mut self, grant: &Grant) -> Result<()> {
        let mut entity = match caught(E::start(&self.context, &self.key, grant)).await {
            Ok(entity) => entity,
            Err(error) => {
                let reason = NotProcessed::StartFailed(error.to_string());
                self.reject_waiting(&reason).await;
                return Err(error);
            }
        };
        let mut moving = pin!(grant.move_requested());
        let mut leaving = false;
        loop {
            let idle = grant.stay().clock.sleep(self.idle_after);
            tokio::select! {
                biased;
                message = self.messages.recv() => match message {
                    Some(message) => entity.receive(message, grant).await,
                    None => break,
                },
                // The gate admits nothing more: what was admitted before is received first.
                () = &mut moving, if !leaving => leaving = true,
                () = idle => break,
            }
            if leaving && self.messages.is_empty() {
                break;
            }
        }
        entity.passivate(grant).await;
        Ok(())
    }

    /// Gives back what waits now; later messages start the entity again.
    async fn reject_waiting(&mut self, reason: &NotProcessed) {
        let state = self.entered.state().clone();
        let _shelf = state.lock().await;
        self.drain(reason);
    }

    fn hand_back(&mut self, reason: &NotProcessed) {
        self.messages.close();
        self.drain(reason);
    }

    fn drain(&mut self, reason: &NotProcessed) {
        while let Ok(message) = self.messages.try_recv() {
            E::not_processed(&self.context, &self.key, message, reason.clone());
        }
    }
}
