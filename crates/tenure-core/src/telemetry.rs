//! Things worth telling: the one source of logs, metrics, history and traces.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId};
use crate::keys::Key;
use crate::lease::LeasePhase;
use crate::reason::Reason;
use crate::record::{EndReason, PlanId, RecordError};
use crate::time::Time;

/// What happened to a shard at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardStep {
    /// Its record names this node now.
    Claimed,
    /// The application loads it.
    Loading,
    /// Its gate is open.
    Serving,
    /// Its gate is closed; what is in flight finishes.
    Draining,
    /// Its gate is closed and its work is cancelled.
    Cancelled,
    /// Its work has stopped.
    Stopped,
    /// Its record no longer names this node.
    Released,
    /// Its missing record was made anew.
    Restored,
    /// No node may claim it until it is repaired.
    Quarantined,
    /// It begins to move to another node.
    MoveStarted,
    /// The application loads it while another node serves.
    Warming,
    /// Its gate is shut for a move; what is in flight finishes.
    Frozen,
    /// Its gate is open again: the move was called off.
    Thawed,
    /// Its state has an end, and its record says where.
    Sealed,
    /// Its record names this node now, at the end of a move.
    Taken,
    /// Its move was called off.
    Aborted,
    /// It is this node's again, after it was sealed.
    Reclaimed,
}

impl ShardStep {
    /// The step as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Loading => "loading",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Cancelled => "cancelled",
            Self::Stopped => "stopped",
            Self::Released => "released",
            Self::Restored => "restored",
            Self::Quarantined => "quarantined",
            Self::MoveStarted => "move_started",
            Self::Warming => "warming",
            Self::Frozen => "frozen",
            Self::Thawed => "thawed",
            Self::Sealed => "sealed",
            Self::Taken => "taken",
            Self::Aborted => "aborted",
            Self::Reclaimed => "reclaimed",
        }
    }
}

impl fmt::Display for ShardStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One step of one shard at one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardEvent {
    /// When, on the node's clock.
    pub time: Time,
    /// Which shard.
    pub shard: ShardId,
    /// What happened.
    pub step: ShardStep,
    /// The node that had it before, where ownership changed.
    pub from: Option<NodeName>,
    /// The node that has it, or is meant to have it, after.
    pub to: Option<NodeName>,
    /// The shard's epoch.
    pub epoch: Epoch,
    /// The session that acted.
    pub session: SessionId,
    /// Why.
    pub reason: Reason,
}

/// Something worth telling.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeEvent {
    /// A step of a shard.
    Shard(ShardEvent),
    /// A session was created and holds the node's name.
    Registered {
        /// The session.
        session: SessionId,
        /// The mode that the node found itself in.
        mode: crate::record::NodeMode,
    },
    /// The node's mode is another one now.
    ModeChanged {
        /// Which.
        mode: crate::record::NodeMode,
    },
    /// An operator has asked this session to stop, and it does.
    StopRequested {
        /// The session.
        session: SessionId,
    },
    /// The lease changed phase. Told once each way.
    Lease {
        /// Before.
        from: LeasePhase,
        /// After.
        to: LeasePhase,
    },
    /// A renewal was confirmed.
    Renewed {
        /// How long it took.
        took: Duration,
        /// What is left until the deadline.
        left: Duration,
    },
    /// A renewal failed.
    RenewalFailed {
        /// How many in a row.
        streak: u32,
        /// What the store said.
        error: String,
    },
    /// The store keeps the lease for longer than it was asked to: gates close by the ttl, but others have to wait for this.
    LongLease {
        /// The ttl.
        requested: Duration,
        /// What the store granted.
        granted: Duration,
    },
    /// This node leads from now on.
    LeadershipAcquired {
        /// Its term.
        term: u64,
    },
    /// This node does not lead any more.
    LeadershipLost {
        /// Its term.
        term: u64,
    },
    /// The leader's plan for a keyspace has changes.
    Planned {
        /// The keyspace.
        keyspace: KeyspaceName,
        /// The plan's term and number.
        plan: PlanId,
        /// How many nodes it counts on.
        nodes: usize,
        /// Shards without an owner that were given one.
        assigned: usize,
        /// Shards that are to change their owner.
        moved: usize,
        /// Earlier intentions that were withdrawn.
        aborted: usize,
        /// Changes that have to wait, and why most of them do.
        deferred: Option<(usize, String)>,
    },
    /// The planner had to work around something that somebody should put right.
    PlanProblem {
        /// The keyspace.
        keyspace: KeyspaceName,
        /// What, and the way out.
        problem: String,
    },
    /// Records that name what is gone were put right.
    StaleAssignmentsRemoved {
        /// Which.
        keys: Vec<Key>,
        /// The plan's term and number.
        plan: PlanId,
        /// How many nodes it counts on.
        nodes: usize,
    },
    /// A sweep of one record failed; it is tried again.
    GcFailed {
        /// The record.
        key: Key,
        /// What the store said.
        error: String,
    },
    /// The application could not seal a shard that was to move; the move is called off.
    SealFailed {
        /// The shard.
        shard: ShardId,
        /// The epoch.
        epoch: Epoch,
        /// The how-manieth move that came to nothing.
        attempt: u32,
        /// What it said.
        error: String,
    },
    /// No renewal is sent: the application's runtime has shown no sign of life.
    RuntimeBlocked {
        /// For how long.
        since: Duration,
    },
    /// This node's own session is over.
    SessionLost {
        /// The session.
        session: SessionId,
        /// Why.
        reason: Reason,
    },
    /// This node proved that another session is over.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// Its node.
        node: NodeName,
        /// What proves it.
        reason: EndReason,
    },
    /// The node waits for an earlier holder of its name.
    WaitingForName {
        /// The session that has it.
        session: SessionId,
        /// For at most this long.
        at_most: Duration,
    },
    /// Assigned shards are held elsewhere; their records are read again.
    ClaimRetry {
        /// How many shards.
        shards: usize,
    },
    /// They were still held elsewhere when the retry window was over.
    ClaimRetryExhausted {
        /// How many shards.
        shards: usize,
    },
    /// A record cannot be read. Only what hangs on it stands still.
    RecordUnreadable {
        /// Its key.
        key: Key,
        /// What is wrong with it.
        damage: RecordError,
    },
    /// A record that must exist does not.
    RecordMissing {
        /// Its key.
        key: Key,
    },
    /// The store is another one, or has gone back in time: nothing is owned until the generation was raised.
    StoreReplaced {
        /// What was seen.
        problem: String,
    },
    /// The process was not scheduled for this long: what it observed before proves nothing.
    ClockJump {
        /// How long.
        gap: Duration,
    },
    /// An observer would have done this.
    WouldDo {
        /// To which shard.
        shard: ShardId,
        /// What.
        step: ShardStep,
        /// Why.
        reason: Reason,
    },
    /// The application could not load a shard.
    LoadFailed {
        /// Which.
        shard: ShardId,
        /// At which epoch.
        epoch: Epoch,
        /// How often in a row.
        attempt: u32,
        /// What it said.
        error: String,
    },
    /// All shards that the node owned at its start are loaded or have failed.
    StartedWith {
        /// Loaded.
        loaded: usize,
        /// Not loaded.
        failed: usize,
    },
    /// Work that was cancelled does not stop; nobody else can have the shard before it does.
    CancelOverdue {
        /// Which shard.
        shard: ShardId,
        /// At which epoch.
        epoch: Epoch,
    },
    /// A tombstone that no record refers to was removed.
    TombstoneRemoved {
        /// Its key.
        key: Key,
    },
    /// The store will not let this node read or write a key.
    WriteDenied {
        /// On which key.
        key: Key,
        /// What the store said.
        error: String,
    },
}
