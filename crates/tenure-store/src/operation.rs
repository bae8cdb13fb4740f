//! The kinds of calls that a store takes, as the wrappers name them.

/// A kind of call. Batch forms are counted as the single form that they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// `identity`
    Identity,
    /// `revision`
    Revision,
    /// `get` and `get_many`
    Get,
    /// `put_if` and `put_many`
    Put,
    /// `delete_if` and `delete_many`
    Delete,
    /// `discard`
    Discard,
    /// `list`
    List,
    /// `keys`
    Keys,
    /// `watch`
    Watch,
    /// `now`
    Now,
    /// `grant` of a lease
    Grant,
    /// `keep_alive` of a lease
    KeepAlive,
    /// `is_alive` of a lease
    AskLease,
}

impl Op {
    /// Every kind, in the order of the counters.
    pub const ALL: [Op; 13] = [
        Op::Identity,
        Op::Revision,
        Op::Get,
        Op::Put,
        Op::Delete,
        Op::Discard,
        Op::List,
        Op::Keys,
        Op::Watch,
        Op::Now,
        Op::Grant,
        Op::KeepAlive,
        Op::AskLease,
    ];

    /// Whether the call may change the store. Keeping a lease alive writes nothing down.
    pub fn writes(self) -> bool {
        matches!(self, Op::Put | Op::Delete | Op::Discard | Op::Grant)
    }

    /// Whether the call has an effect on the store, be it only in time: it then happens even if nobody waits for the answer.
    pub(crate) fn has_effect(self) -> bool {
        self.writes() || self == Op::KeepAlive
    }
}
