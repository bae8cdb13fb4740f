//! Entities: one small actor per key, inside the shard that owns the key.
//!
//! An entity starts with the first message to its key, takes its messages one by one, and is let go when it has been idle for
//! a while. When its shard is given away it finishes the messages that it has; when the shard is lost it is dropped where
//! it stands. Mailboxes and their number are bounded: what does not fit is refused, never piled up.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, error::TrySendError};
use tracing::warn;

use crate::enter::{Entered, NotOwner};
use crate::grant::{Grant, Lost};
use crate::handler::{Handler, Result, Shard};
use crate::node::Node;

/// What lives at one key.
pub trait Entity: Sized + Send + 'static {
    /// What it is told. To get an answer, put a [`tokio::sync::oneshot::Sender`] into it.
    type Message: Send + 'static;
    /// What all entities of a keyspace share, such as a database.
    type Context: Send + Sync + 'static;

    /// Makes the entity of `key`. If that fails, the messages that wait for it are dropped.
    fn start(
        context: &Arc<Self::Context>,
        key: &str,
        grant: &Grant,
    ) -> impl Future<Output = Result<Self>> + Send;

    /// Takes one message.
    fn receive(&mut self, message: Self::Message, grant: &Grant)
    -> impl Future<Output = ()> + Send;

    /// Puts the entity away, because it was idle or because its shard is given away. Not called when the shard is lost.
    fn passivate(self, grant: &Grant) -> impl Future<Output = ()> + Send {
        let _ = grant;
        async {}
    }
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
        reason: Lost,
    },
    /// The entity has too many messages waiting.
    #[error(
        "the mailbox of entity {key:?} is full: {limit} messages wait; send less or raise `mailbox`"
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
    type State = Shelf<E>;

    async fn load(&self, _shard: &Shard) -> Result<Shelf<E>> {
        Ok(Shelf {
            context: self.context.clone(),
            limits: self.limits,
            mailboxes: HashMap::new(),
        })
    }
}

/// The active entities of one shard.
pub struct Shelf<E: Entity> {
    context: Arc<E::Context>,
    limits: Limits,
    mailboxes: HashMap<String, mpsc::Sender<E::Message>>,
}

impl Node {
    /// Gives a message to the entity of `key`, starting it if need be. Returns when the message is in its mailbox.
    pub async fn tell<E: Entity>(
        &self,
        keyspace: &str,
        key: &str,
        message: E::Message,
    ) -> Result<(), TellError<E::Message>> {
        let entered = match self.enter::<Entities<E>>(keyspace, key) {
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
}

impl<E: Entity> Shelf<E> {
    fn deliver(
        &mut self,
        key: &str,
        message: E::Message,
        entered: Entered<Entities<E>>,
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
            // The entity failed; this message begins it anew.
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
        entered: Entered<Entities<E>>,
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

/// One active entity. It counts as work in flight from start to end, so that its shard is not given away before it ended.
struct Active<E: Entity> {
    context: Arc<E::Context>,
    key: String,
    idle_after: Duration,
    messages: mpsc::Receiver<E::Message>,
    entered: Entered<Entities<E>>,
}

impl<E: Entity> Active<E> {
    async fn live(mut self) {
        let grant = self.entered.grant().clone();
        // When the shard is lost the entity is dropped here, together with what waits in its mailbox.
        let _ = grant.bound(self.serve(&grant)).await;
    }

    async fn serve(&mut self, grant: &Grant) {
        let mut entity = match E::start(&self.context, &self.key, grant).await {
            Ok(entity) => entity,
            Err(error) => {
                warn!(shard = %grant.shard(), key = self.key, %error, "entity failed to start");
                return;
            }
        };
        while let Some(message) = self.next(grant).await {
            entity.receive(message, grant).await;
        }
        entity.passivate(grant).await;
    }

    /// The next message; none once the entity is to end.
    async fn next(&mut self, grant: &Grant) -> Option<E::Message> {
        loop {
            tokio::select! {
                biased;
                message = self.messages.recv() => return message,
                // The gate is closed: nothing more is let in, and what is in the mailbox is finished first.
                () = grant.stay().stop.cancelled() => self.messages.close(),
                () = grant.stay().clock.sleep(self.idle_after) => {
                    // Nobody can send while the shelf is locked, so an empty mailbox stays empty.
                    let mut shelf = self.entered.state().lock().await;
                    if self.messages.is_empty() {
                        if let Some(shelf) = shelf.as_mut() {
                            shelf.mailboxes.remove(&self.key);
                        }
                        self.messages.close();
                    }
                }
            }
        }
    }
}
