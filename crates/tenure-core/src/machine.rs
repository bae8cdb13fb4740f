//! The contract between deciding and doing.
//!
//! A machine takes the time and an [`Event`] and answers with [`Action`]s; a driver carries them out, in their order, and
//! reports back with events. Nothing else passes between the two. Drivers do not decide; machines do not wait. A machine
//! may be called too early, too often or late without harm, and says through [`Step::wake`] when it wants the next
//! [`Event::Tick`] at the latest.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Revision, SessionId, ShardId, Version};
use crate::keys::Key;
use crate::record::{HeldByRouter, MovePhase, Owner, Record, RecordError};
use crate::telemetry::NodeEvent;
use crate::time::Time;

/// One request to the store. Its answer carries the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpId(pub u64);

/// One stay of a shard at this node: from load to drained. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ActivationId(pub u64);

/// What the store holds at a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Found {
    /// The version to name when replacing it.
    pub version: Version,
    /// The value, if it can be read.
    pub record: Result<Record, RecordError>,
}

/// What must be true of a key for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// There is no such key.
    Absent,
    /// It has exactly this version.
    Version(Version),
}

/// Something to ask of the store. The driver bounds each with a timeout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Read one key, no older than the moment of asking.
    Get(Key),
    /// Read all keys of the cluster, no older than the moment of asking.
    List,
    /// Ask how far the store's history has come, no older than the moment of asking.
    Revision,
    /// Write a key if it is as expected.
    Put {
        /// The key.
        key: Key,
        /// What it must be like now.
        expect: Expect,
        /// Its new value.
        record: Record,
    },
    /// Remove a key if it has this version.
    Delete {
        /// The key.
        key: Key,
        /// The version that it must have.
        version: Version,
    },
    /// Create the lease of a session, where the store keeps the time of leases itself.
    CreateLease {
        /// The session.
        session: SessionId,
        /// For how long.
        ttl: Duration,
    },
    /// Restart the time of a session's lease, and see whether the session's key is still attached to it.
    KeepAlive(SessionId),
    /// Ask whether a session's lease is still there.
    CheckLease(SessionId),
}

/// What a store that keeps the time of leases found when it was asked to go on with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// The lease is good for this long from the time of asking, and the session's key is attached to it.
    Alive(Duration),
    /// The lease lives, but the key is not attached to it: it was removed, or written by somebody else.
    Unattached,
    /// The lease is over.
    Gone,
}

/// Which of a driver's connections a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// The one that nothing else can hold up.
    Renewal,
    /// The one for everything else.
    Default,
}

/// Everything that the store holds for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StoreListing {
    /// All keys with their values.
    pub entries: Vec<(Key, Found)>,
    /// The point in the store's history that they were read at.
    pub revision: Revision,
    /// The identity of the store.
    pub store: String,
}

/// The answer to a request. Exactly one comes for each, unless the process dies first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Get`].
    Got(Option<Found>),
    /// To [`Request::List`].
    Listed(StoreListing),
    /// To [`Request::Revision`].
    Revision(Revision),
    /// The write or removal happened; after a write the key has this version.
    Won(Version),
    /// The key was not as expected. Nothing was written, but for an earlier try of this same write.
    Lost,
    /// To [`Request::CreateLease`]: the lease exists, and was granted for this long.
    LeaseCreated(Duration),
    /// To [`Request::KeepAlive`].
    KeptAlive(LeaseState),
    /// To [`Request::CheckLease`]: whether it is still there.
    Lease(bool),
    /// The store did not do it, or did not say.
    Failed(StoreFailure),
}

/// What a failed request means for its caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreFailure {
    /// Nothing was written; try again.
    Unavailable(String),
    /// It may have been written, or may be written later; read back.
    Unknown(String),
    /// The store will not do this for us; trying again brings nothing until somebody changes something.
    Denied(String),
}

impl StoreFailure {
    /// What the store said.
    pub fn text(&self) -> &str {
        match self {
            Self::Unavailable(text) | Self::Unknown(text) | Self::Denied(text) => text,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The store answered.
    Reply {
        /// Which request.
        op: OpId,
        /// With what.
        reply: Reply,
    },
    /// A watch told of changes. It may repeat itself and may leave things out.
    Changed {
        /// Keys with their new values; `None` where the key was removed.
        changes: Vec<(Key, Option<Found>)>,
        /// How far in the store's history the watch has come.
        upto: Revision,
    },
    /// The watch broke off: what happened since is not known. The machine lists; the driver then watches from the list's
    /// revision on, so that nothing between the two is lost.
    WatchGap,
    /// The application has loaded the shard. After a [`Action::Close`] it says nothing; the [`Event::Drained`] is still owed.
    Loaded(ActivationId),
    /// The application has applied what the last owner wrote up to its seal: the shard can be owned. In answer to
    /// [`Action::CatchUp`].
    CaughtUp(ActivationId),
    /// Nothing is in flight any more behind a gate that was shut for a move. In answer to [`Action::Freeze`].
    Frozen {
        /// The activation.
        activation: ActivationId,
        /// The move that the gate was shut for.
        move_id: u64,
    },
    /// The application has written out what must outlive the stay, and its loop has ended. In answer to [`Action::Seal`].
    Sealed {
        /// The activation.
        activation: ActivationId,
        /// Where its state ends, in the application's own terms.
        seal: String,
    },
    /// The application could not seal the shard. The stay goes on until it is closed.
    SealFailed {
        /// The activation.
        activation: ActivationId,
        /// What it said.
        error: String,
    },
    /// The application could not load the shard. This ends the stay: nothing of it runs any more, and no [`Event::Drained`]
    /// is needed. A [`Action::Close`] that crosses it is to be tolerated, and answered.
    LoadFailed {
        /// The activation.
        activation: ActivationId,
        /// What it said.
        error: String,
    },
    /// The application's own loop for the shard is over although nobody asked it to stop. The stay is not: a
    /// [`Action::Close`] follows.
    LoopEnded {
        /// The activation.
        activation: ActivationId,
        /// Its error, if it had one.
        error: Option<String>,
    },
    /// The application says how the shard fares; none: well again. For people to see: nothing is decided by it.
    Trouble {
        /// The activation.
        activation: ActivationId,
        /// What is wrong.
        trouble: Option<String>,
    },
    /// The application says what the shard costs to serve, in a unit of its own.
    Cost {
        /// The activation.
        activation: ActivationId,
        /// Cost over the time since the last report.
        cost: u32,
    },
    /// The gate of this stay is closed, nothing is in flight, its work has stopped and its state is dropped. Sent once, in
    /// answer to [`Action::Close`].
    Drained(ActivationId),
    /// A router holds what comes for these shards, during these moves, and for no others: its session is to say so.
    Hold(HeldByRouter),
    /// The application's runtime showed a sign of life at this time.
    Progress(Time),
    /// The node is asked to stop in good order.
    Stop,
}

/// How to close a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Close {
    /// Admit nothing more; let what is in flight finish.
    Drain,
    /// Admit nothing more and cancel what is running.
    Cancel,
}

/// Something to do. Drivers carry actions out in the order given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Ask the store.
    Store {
        /// The number that the answer carries.
        op: OpId,
        /// The connection to use.
        connection: Connection,
        /// What to ask.
        request: Request,
    },
    /// Note down durably that this session is about to be created, before the next action.
    Remember(SessionId),
    /// Gates of this session admit work until this time on the node's clock. Only ever grows for one session.
    Lease {
        /// The session.
        session: SessionId,
        /// Gates close by themselves at this time.
        stop_time: Time,
        /// Others may take over from this time on.
        deadline: Time,
    },
    /// Have the application load a shard. Its gate stays closed.
    Load {
        /// The activation that starts.
        activation: ActivationId,
        /// The shard.
        shard: ShardId,
        /// The epoch that its work will carry. The write that made it is confirmed (P2).
        epoch: Epoch,
        /// The session whose lease bounds the gate.
        session: SessionId,
        /// What the creator attached to the shard.
        meta: Option<String>,
    },
    /// Have the application load a shard that another node still owns and serves, in order to take it over. It only reads. Its
    /// gate stays closed. Answered like [`Action::Load`].
    Warm {
        /// The activation that starts.
        activation: ActivationId,
        /// The shard.
        shard: ShardId,
        /// The epoch of its present owner.
        epoch: Epoch,
        /// The session whose lease bounds the gate.
        session: SessionId,
        /// What the creator attached to the shard.
        meta: Option<String>,
    },
    /// Have the application apply what the last owner wrote since it loaded; answered by [`Event::CaughtUp`] or
    /// [`Event::LoadFailed`].
    CatchUp {
        /// The activation.
        activation: ActivationId,
        /// Where the last owner's writes end.
        seal: String,
    },
    /// A stay that began as a successor owns its shard, at this epoch. The write that made it is confirmed (P2).
    Own {
        /// The activation.
        activation: ActivationId,
        /// The epoch that its work carries.
        epoch: Epoch,
    },
    /// Open the gate of a loaded shard.
    Open(ActivationId),
    /// Admit nothing more, for now; answered by [`Event::Frozen`] once nothing is in flight. Long-lived streams are told to
    /// end, and are cut at `cancel_at`.
    Freeze {
        /// The activation.
        activation: ActivationId,
        /// For which move: a gate may be shut again for another.
        move_id: u64,
        /// When streams that have not ended are cut.
        cancel_at: Time,
    },
    /// Admit work again: the move was called off.
    Thaw(ActivationId),
    /// End the loop of a frozen shard and write out what must outlive the stay; answered by [`Event::Sealed`] or
    /// [`Event::SealFailed`].
    Seal(ActivationId),
    /// Close the gate of a stay and end it; answered by [`Event::Drained`]. May be repeated, and sharpened to a cut.
    Close {
        /// The activation.
        activation: ActivationId,
        /// How.
        how: Close,
    },
    /// The owner of a shard, as the records have it, changed.
    Seen {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: Option<Owner>,
        /// Its epoch.
        epoch: Epoch,
        /// Whether the owner serves.
        serving: bool,
        /// The move that the shard is in.
        moving: Option<(u64, MovePhase)>,
        /// Which of the record's values this is.
        rev: u64,
    },
    /// Reports an event to logs, metrics and subscribers.
    Report(NodeEvent),
    /// All that the node owned at its start is loaded, or has failed to load: it is ready for traffic.
    Started,
    /// The node cannot run; it owns nothing. Everything before this action is still to be carried out.
    Refused(Refusal),
    /// The node has stopped; it owns nothing. Gates that this step closes close, but nobody waits for what they drain.
    Stopped,
}

/// Why a node cannot run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Another process has this name and keeps renewing its session.
    NameInUse {
        /// The session that has it.
        session: SessionId,
    },
    /// A keyspace exists with other settings than the node was given.
    KeyspaceDiffers {
        /// Which, and how.
        problem: String,
    },
    /// The store is not the one that the cluster was created in.
    StoreChanged {
        /// The store's identity now.
        found: String,
        /// The identity that the cluster was created in.
        expected: String,
    },
    /// A record that the node cannot do without cannot be read.
    Damaged {
        /// Its key.
        key: Key,
        /// What is wrong with it.
        damage: RecordError,
    },
    /// The store refuses us.
    Denied(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NameInUse { session } => write!(
                f,
                "the node name is in use: session {session} keeps renewing; stop that process or choose another name"
            ),
            Self::KeyspaceDiffers { problem } => f.write_str(problem),
            Self::StoreChanged { found, expected } => write!(
                f,
                "the store's identity is {found}, but the cluster was created in {expected}: the store was restored \
                 or replaced; run `tenure keyspace bump-generation --all`, then start again"
            ),
            Self::Damaged { key, damage } => write!(f, "record {key} cannot be used: {damage}"),
            Self::Denied(reason) => write!(f, "the store denies access: {reason}"),
        }
    }
}

/// What a machine wants done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// In this order.
    pub actions: Vec<Action>,
    /// When to send the next [`Event::Tick`] at the latest.
    pub wake: Option<Time>,
}
