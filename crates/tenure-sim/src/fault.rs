//! Everything that can go wrong at a moment of its own, as data: a run can be repeated with some of it left out.

use std::fmt;

use crate::clock::MS;
use crate::lease_tampering::LeaseTampering;
use crate::lifecycle::OperatorAction;

/// How a store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outage {
    /// It refuses at once.
    Refuse,
    /// It hangs, and does afterwards what it was asked meanwhile.
    Hang,
    /// It hangs, and forgets what it was asked meanwhile.
    Forget,
}

/// Which direction of a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Requests do not reach the store.
    Requests,
    /// Answers and watch events do not come back.
    Replies,
    /// Neither passes.
    Both,
}

/// A key that an operator lays hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The record of this shard, by its number.
    Shard(usize),
    /// The record of the keyspace.
    Keyspace,
    /// The session of this node, as it is at that moment.
    Session(usize),
    /// The record of this node.
    Node(usize),
    /// The leader's record.
    Leader,
}

/// One thing that goes wrong. Nodes are meant by number; where several processes have the node's name, the newest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "`node` and `span` mean the same everywhere")]
pub enum Fault {
    /// The process is stopped; its clock runs on.
    Pause { node: usize, span: u64 },
    /// The process is stopped between two of the actions that it was about to carry out.
    PauseMidway { node: usize, after: u32, span: u64 },
    /// The process dies.
    Kill { node: usize },
    /// A process of this name starts on the same machine, if none is alive.
    Restart {
        node: usize,
        /// Whether it finds the data directory of the last one.
        dir: bool,
    },
    /// A second process of this name starts on another machine while the first may be alive.
    Twin {
        node: usize,
        /// Whether it has a copy of the first one's data directory.
        copy: bool,
    },
    /// The process is asked to stop in good order.
    Stop { node: usize },
    /// The store is away for everybody.
    Outage { how: Outage, span: u64 },
    /// The process is cut off from the store.
    Cut { node: usize, how: Cut, span: u64 },
    /// Requests of this router do not reach that node, or its answers do not come back.
    Sever {
        node: usize,
        /// The number of the node.
        other: usize,
        how: Cut,
        span: u64,
    },
    /// Everything that passes between the process and the store takes up to this much longer.
    Slow { node: usize, by: u64, span: u64 },
    /// The watch ends, and begins anew after a while.
    WatchBreaks { node: usize, span: u64 },
    /// The watch falls silent without ending, and tells what it missed afterwards.
    WatchMute { node: usize, span: u64 },
    /// The application's runtime stands still; the driver does not.
    Wedge { node: usize, span: u64 },
    /// An operator removes a key.
    Delete { target: Target },
    /// An operator, or a disk, makes a value unreadable.
    Corrupt { target: Target },
    /// The write that once made a record lands again, if the key is absent: it was under way all the time. Scripts alone
    /// use it; `docs/protocol.md` says what it may break.
    ComesBack { target: Target },
    /// A hand on the session of this node, as it is at that moment, where the store keeps the time of sessions.
    Hand { node: usize, hand: LeaseTampering },
    /// An operator tells a node to take part, or not to.
    Mode { node: usize, mode: Mode },
    /// An operator does something else.
    Operator(OperatorAction),
    /// The store is put back; later, with no process started meanwhile, an operator raises all generations.
    Restore {
        /// By how many changes.
        back: u64,
        /// How long the operator waits.
        wait: u64,
        /// Whether it is another store, with a copy of that state.
        exchanged: bool,
        /// Whether processes run on meanwhile. The manual says to stop them: one that has not noticed yet acts on a
        /// history that is gone.
        running: bool,
    },
}

/// What an operator may tell a node to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// To take and own shards.
    Active,
    /// To give its shards away and take none.
    Draining,
    /// To own nothing until it is told otherwise.
    Drained,
}

impl Fault {
    /// The kind of fault, as one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pause { .. } => "pause",
            Self::PauseMidway { .. } => "pause-midway",
            Self::Kill { .. } => "kill",
            Self::Restart { .. } => "restart",
            Self::Twin { .. } => "twin",
            Self::Stop { .. } => "stop",
            Self::Outage { .. } => "outage",
            Self::Cut { .. } => "cut",
            Self::Sever { .. } => "sever",
            Self::Slow { .. } => "slow",
            Self::WatchBreaks { .. } => "watch-breaks",
            Self::WatchMute { .. } => "watch-mute",
            Self::Wedge { .. } => "wedge",
            Self::Delete { .. } => "delete",
            Self::Corrupt { .. } => "corrupt",
            Self::ComesBack { .. } => "comes-back",
            Self::Hand { .. } => "hand",
            Self::Mode { .. } => "mode",
            Self::Operator(_) => "operator",
            Self::Restore { .. } => "restore",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(n) => write!(f, "shard {n}"),
            Self::Keyspace => f.write_str("keyspace"),
            Self::Session(n) => write!(f, "session n{n}"),
            Self::Node(n) => write!(f, "node n{n}"),
            Self::Leader => f.write_str("leader"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match *self {
            Self::Pause { node, span }
            | Self::WatchBreaks { node, span }
            | Self::WatchMute { node, span }
            | Self::Wedge { node, span } => write!(f, "{kind} n{node} {}", Span(span)),
            Self::PauseMidway { node, after, span } => {
                write!(f, "{kind} n{node} after {after} actions {}", Span(span))
            }
            Self::Kill { node } | Self::Stop { node } => write!(f, "{kind} n{node}"),
            Self::Restart { node, dir } => {
                write!(
                    f,
                    "{kind} n{node}{}",
                    if dir { "" } else { " without directory" }
                )
            }
            Self::Twin { node, copy } => {
                write!(
                    f,
                    "{kind} n{node}{}",
                    if copy { " with copied directory" } else { "" }
                )
            }
            Self::Outage { how, span } => {
                let how = match how {
                    Outage::Refuse => "refuse",
                    Outage::Hang => "hang",
                    Outage::Forget => "forget",
                };
                write!(f, "{kind} {how} {}", Span(span))
            }
            Self::Cut { node, how, span } => {
                let how = cut_name(how);
                write!(f, "{kind} n{node} {how} {}", Span(span))
            }
            Self::Sever {
                node,
                other,
                how,
                span,
            } => {
                let how = cut_name(how);
                write!(f, "{kind} {node} from n{other} {how} {}", Span(span))
            }
            Self::Slow { node, by, span } => {
                write!(f, "{kind} n{node} by {} {}", Span(by), Span(span))
            }
            Self::Delete { target } | Self::Corrupt { target } | Self::ComesBack { target } => {
                write!(f, "{kind} {target}")
            }
            Self::Hand { node, hand } => write!(f, "{kind} n{node} {hand}"),
            Self::Operator(act) => write!(f, "{kind} {act}"),
            Self::Mode { node, mode } => {
                let mode = match mode {
                    Mode::Active => "active",
                    Mode::Draining => "draining",
                    Mode::Drained => "drained",
                };
                write!(f, "{kind} n{node} {mode}")
            }
            Self::Restore {
                back,
                wait,
                exchanged,
                running,
            } => {
                let other = if exchanged { " on another store" } else { "" };
                let running = if running {
                    " under running processes"
                } else {
                    ""
                };
                write!(
                    f,
                    "{kind} {back} changes{other}{running} raised after {}",
                    Span(wait)
                )
            }
        }
    }
}

fn cut_name(how: Cut) -> &'static str {
    match how {
        Cut::Requests => "requests",
        Cut::Replies => "replies",
        Cut::Both => "both",
    }
}

struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0 / MS)
    }
}
