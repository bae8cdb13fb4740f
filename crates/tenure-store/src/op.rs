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
    /// `list`
    List,
    /// `watch`
    Watch,
    /// `now`
    Now,
}

impl Op {
    /// Every kind, in the order of the counters.
    pub const ALL: [Op; 8] = [
        Op::Identity,
        Op::Revision,
        Op::Get,
        Op::Put,
        Op::Delete,
        Op::List,
        Op::Watch,
        Op::Now,
    ];

    /// Whether the call may change the store.
    pub fn writes(self) -> bool {
        matches!(self, Op::Put | Op::Delete)
    }
}
