//! The rules of the protocol as a value, so that the checkers can be shown a broken one.

/// A named way to break the protocol. Only the `mutants` feature can make rules that contain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Mutant {
    /// The deadline counts from the time the reply came.
    DeadlineFromReply,
    /// The gate stays open up to the deadline and beyond by the margin.
    MissingMargin,
    /// The lease is never lost to the clock.
    NoDetachment,
    /// The shard is released while its work still runs.
    ReleaseBeforeStop,
    /// A live owner's shard is taken.
    TakeoverWithoutProof,
    /// A missing session counts as ended at once.
    AbsenceIsProof,
    /// A judge does not wait for the whole ttl.
    ImpatientJudge,
    /// A judge counts time that it slept through, or that the store was away.
    JudgeOverslept,
    /// The node's name, not its session, says who owns a shard.
    NameIsIdentity,
    /// Writes of shard records are not guarded by the version they were decided on.
    UnguardedWrite,
    /// The gate opens again after a release whose outcome is unknown.
    ReopenAfterUnknownRelease,
    /// A moving shard is sealed while work is still in flight.
    SealWithoutDrain,
    /// A successor reads the last words of an owner that has not sealed yet.
    TailBeforeSeal,
    /// A change of owner keeps the epoch.
    EpochKept,
    /// A lost record is made anew without raising the generation first.
    EpochForgotten,
    /// A missing shard record is made anew at once, without asking those who may own the shard.
    RestoreWithoutWitnesses,
    /// A late list or reply takes the view back to an older record.
    ViewGoesBack,
    /// A claim whose outcome is unknown is taken to have been made.
    UnknownClaimAssumed,
    /// A shard is claimed while older work of this node still runs there.
    ClaimWhileBusy,
    /// A process that finds its name taken ends the other's session.
    StealName,
    /// A copied data directory counts as proof that its former user is dead.
    CopiedLockIsProof,
    /// The renewal loop ends at the first failure.
    RenewalGivesUp,
    /// After detachment the node never looks at its shards again.
    NoRecovery,
    /// Shards are taken from memory of the watch alone, never from a list.
    NeverRelist,
    /// A session is ended before its shards are released and its work has stopped.
    EndBeforeRelease,
    /// A session whose end was sent is renewed, and shards are loaded and served in it, if its lease allows that again.
    ServesAfterResigning,
    /// Each shard is renewed on its own.
    RenewPerShard,
    /// Where the store keeps the time: a missing session counts as one whose lease is gone, without asking.
    LeaseNotAsked,
    /// Where the store keeps the time: the lease is kept, and that its session's key is gone is not looked at.
    LooseKeyIgnored,
    /// Where the store keeps the time: the session's record is written again, and its lease is not kept alive.
    RenewedByWriting,
    /// An owner shuts its gate for a move at once, without waiting for routers.
    SealWithoutRouters,
    /// A plan of an older leader overwrites that of a newer.
    LowerTermAccepted,
    /// A new leader keeps the term of the last one.
    TermKept,
    /// A router sends requests to an owner that does not serve yet.
    FlushBeforeServing,
    /// Requests that come during a flush pass those that were held.
    NewOvertakesHeld,
    /// A router sends all held requests of a key before the owner has answered the first of them.
    HeldSentUnproven,
    /// A router says that it holds a shard while requests for it are under way.
    HeldBeforeDrained,
    /// A router follows a refusal by somebody who knows less than itself, again and again.
    OldRefusalFollowed,
    /// A router sends again what an owner has answered with an error.
    AnswerRetried,
    /// A router does not let go of what it holds when a move is called off.
    HeldAfterCancel,
    /// A router takes a session that has once ended for ended, even if a restored store has brought it back to life.
    EndedForGood,
    /// A node takes what a record with the nonce of one of its own renewals says for its own word.
    CopyBelieved,
    /// A corrupt shard record is replaced at once, without asking those who may own the shard.
    CorruptWithoutWitnesses,
    /// A missing shard record is restored by one write on absence, without a placeholder.
    RestoreIfAbsent,
    /// Nodes that do not serve a keyspace count as nodes of it.
    StrangersCounted,
    /// A node that stops hands its shards to nodes that do not serve their keyspace.
    HandedToStranger,
    /// A cordoned node is given shards like any other.
    CordonIgnored,
    /// Two values under one version count as the same value.
    VersionNamesValue,
    /// Shards of live nodes are waited for although a leader plans, and use up the retry window of a shard that comes free.
    RetriesUsedUp,
}

impl Mutant {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::DeadlineFromReply,
        Self::MissingMargin,
        Self::NoDetachment,
        Self::ReleaseBeforeStop,
        Self::TakeoverWithoutProof,
        Self::AbsenceIsProof,
        Self::ImpatientJudge,
        Self::JudgeOverslept,
        Self::NameIsIdentity,
        Self::UnguardedWrite,
        Self::ReopenAfterUnknownRelease,
        Self::SealWithoutDrain,
        Self::TailBeforeSeal,
        Self::EpochKept,
        Self::EpochForgotten,
        Self::RestoreWithoutWitnesses,
        Self::ViewGoesBack,
        Self::UnknownClaimAssumed,
        Self::ClaimWhileBusy,
        Self::StealName,
        Self::CopiedLockIsProof,
        Self::RenewalGivesUp,
        Self::NoRecovery,
        Self::NeverRelist,
        Self::EndBeforeRelease,
        Self::ServesAfterResigning,
        Self::RenewPerShard,
        Self::LeaseNotAsked,
        Self::LooseKeyIgnored,
        Self::RenewedByWriting,
        Self::SealWithoutRouters,
        Self::LowerTermAccepted,
        Self::TermKept,
        Self::FlushBeforeServing,
        Self::NewOvertakesHeld,
        Self::HeldSentUnproven,
        Self::HeldBeforeDrained,
        Self::OldRefusalFollowed,
        Self::AnswerRetried,
        Self::HeldAfterCancel,
        Self::EndedForGood,
        Self::CopyBelieved,
        Self::CorruptWithoutWitnesses,
        Self::RestoreIfAbsent,
        Self::StrangersCounted,
        Self::HandedToStranger,
        Self::CordonIgnored,
        Self::VersionNamesValue,
        Self::RetriesUsedUp,
    ];
}

/// The rules that the machines follow. Outside the `mutants` feature there is only the sound set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

impl Rules {
    /// The rules that keep the promises.
    pub const fn sound() -> Self {
        Self {
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }

    /// The sound rules but for one.
    #[cfg(feature = "mutants")]
    pub const fn broken(mutant: Mutant) -> Self {
        Self {
            mutant: Some(mutant),
        }
    }

    /// Whether the rules are broken in this way. Constant, and so removed by the compiler, in shipped code.
    #[inline]
    pub(crate) fn broken_by(self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }
}
