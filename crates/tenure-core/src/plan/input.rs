//! What the planner looks at: nodes and shards as plain values, numbered.
//!
//! Nodes and shards are kept in the order of their names, so that the same cluster is the same value whatever order it was
//! told in. Inside, everything is a number; names appear only where people or records are concerned.

use std::collections::BTreeMap;
use std::fmt;

use crate::ids::{KeyspaceName, NodeName, ShardId, ShardName};
use crate::time::Time;

/// A node by its place in the order of names. Holds for one view, until a node joins it or leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIx(pub u32);

/// A shard by its place in the order of names. Holds for one view, until a shard is created or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIx(pub u32);

impl NodeIx {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

impl ShardIx {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

/// Whether a node takes and keeps shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeState {
    /// Takes and keeps.
    #[default]
    Active,
    /// Keeps what it has and takes nothing.
    Cordoned,
    /// Gives away what it has.
    Draining,
    /// Is stopping: gives away what it has, and will be gone.
    Leaving,
    /// Its session has ended.
    Away,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Leaving => "stopping",
            Self::Away => "ended",
        })
    }
}

/// What a node has on its hands in other keyspaces: counts against its capacity and against the budgets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OtherKeyspaces {
    /// Shards that it has, or that are on their way to it.
    pub shards: u32,
    /// Moves towards it.
    pub moves_in: u32,
    /// Moves away from it.
    pub moves_out: u32,
}

/// A node as the planner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanNode {
    /// Its name.
    pub name: NodeName,
    /// Its part in relation to others; 100 is usual. A node of weight zero gets nothing.
    pub weight: u32,
    /// The failure domain that it runs in.
    pub zone: Option<String>,
    /// What it says of itself.
    pub labels: BTreeMap<String, String>,
    /// The most shards that it can have, over all keyspaces.
    pub capacity: Option<u32>,
    /// Whether it takes and keeps shards.
    pub state: NodeState,
    /// Since when it is in this state, on the planner's clock.
    pub since: Time,
    /// How often it has come back lately after having been away.
    pub absences: u32,
    /// What it has in other keyspaces.
    pub elsewhere: OtherKeyspaces,
}

impl PlanNode {
    /// An active node of the usual weight, with nothing special about it.
    pub fn new(name: NodeName, since: Time) -> Self {
        Self {
            name,
            weight: 100,
            zone: None,
            labels: BTreeMap::new(),
            capacity: None,
            state: NodeState::Active,
            since,
            absences: 0,
            elsewhere: OtherKeyspaces::default(),
        }
    }
}

/// Where a shard should always be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pin {
    /// Anywhere.
    #[default]
    None,
    /// At this node.
    To(NodeIx),
    /// At a node that is not known.
    Unknown,
}

/// A shard as the planner sees it, by numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanShard {
    /// Who owns it.
    pub owner: Option<NodeIx>,
    /// Who is to own it, by the last plan.
    pub intended: Option<NodeIx>,
    /// Where the move goes that it is in.
    pub moving: Option<NodeIx>,
    /// Whether that move can no longer be cancelled: the owner has stopped.
    pub sealed: bool,
    /// True if the target of that move has loaded the shard and waits for other moves. Such a move does not count against the budgets.
    pub loaded: bool,
    /// Where it should always be.
    pub pin: Pin,
    /// Cost to serve the shard, smoothed ([`super::LoadAverage`]), in whatever unit the application reports.
    pub load: u32,
    /// When it last changed its owner by a plan, on the planner's clock.
    pub moved: Option<Time>,
}

impl PlanShard {
    /// Where it will be once everything under way is done.
    pub fn bound_for(&self) -> Option<NodeIx> {
        self.moving.or(self.intended).or(self.owner)
    }
}

/// A shard by names, as it comes out of the records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanShardRecord {
    /// Its name.
    pub name: ShardName,
    /// Who owns it. A node that is not known is nobody.
    pub owner: Option<NodeName>,
    /// Who is to own it, by the last plan.
    pub intended: Option<NodeName>,
    /// Where the move goes that it is in.
    pub moving: Option<NodeName>,
    /// Whether that move can no longer be cancelled.
    pub sealed: bool,
    /// True if the target of that move has loaded the shard and waits for other moves.
    pub loaded: bool,
    /// Where it should always be.
    pub pin: Option<NodeName>,
    /// What it costs to serve, smoothed.
    pub load: u32,
    /// When it last changed its owner by a plan.
    pub moved: Option<Time>,
}

impl PlanShardRecord {
    /// A shard that nobody owns.
    pub fn free(name: ShardName) -> Self {
        Self {
            name,
            owner: None,
            intended: None,
            moving: None,
            sealed: false,
            loaded: false,
            pin: None,
            load: 0,
            moved: None,
        }
    }

    /// A shard that this node owns.
    pub fn owned(name: ShardName, owner: NodeName) -> Self {
        Self {
            owner: Some(owner),
            ..Self::free(name)
        }
    }
}

/// Why a view was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ViewProblem {
    /// Two nodes of one name.
    TwoNodes(NodeName),
    /// Two shards of one name.
    TwoShards(ShardName),
}

impl fmt::Display for ViewProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoNodes(name) => write!(f, "node {name} appears twice; each node has one entry"),
            Self::TwoShards(name) => {
                write!(f, "shard {name} appears twice; each shard has one entry")
            }
        }
    }
}

/// No node, where a node number is packed.
const NOBODY: u32 = u32::MAX;
/// A node that is not known.
const UNKNOWN: u32 = u32::MAX - 1;

/// A shard in 32 bytes: a million of them are looked at in one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    owner: u32,
    intended: u32,
    moving: u32,
    pin: u32,
    load: u32,
    sealed: bool,
    loaded: bool,
    /// [`Time::NEVER`] if it never was.
    moved: Time,
}

fn pack(node: Option<NodeIx>) -> u32 {
    node.map_or(NOBODY, |n| n.0)
}

fn unpack(raw: u32) -> Option<NodeIx> {
    (raw < UNKNOWN).then_some(NodeIx(raw))
}

impl Slot {
    fn of(state: PlanShard) -> Self {
        Self {
            owner: pack(state.owner),
            intended: pack(state.intended),
            moving: pack(state.moving),
            pin: match state.pin {
                Pin::None => NOBODY,
                Pin::To(node) => node.0,
                Pin::Unknown => UNKNOWN,
            },
            load: state.load,
            sealed: state.sealed,
            loaded: state.loaded,
            moved: state.moved.unwrap_or(Time::NEVER),
        }
    }

    fn state(&self) -> PlanShard {
        PlanShard {
            owner: unpack(self.owner),
            intended: unpack(self.intended),
            moving: unpack(self.moving),
            sealed: self.sealed,
            loaded: self.loaded,
            pin: match self.pin {
                NOBODY => Pin::None,
                UNKNOWN => Pin::Unknown,
                node => Pin::To(NodeIx(node)),
            },
            load: self.load,
            moved: (self.moved != Time::NEVER).then_some(self.moved),
        }
    }

    fn renumber(&mut self, new: impl Fn(u32) -> u32) {
        for field in [&mut self.owner, &mut self.intended, &mut self.moving] {
            if *field < UNKNOWN {
                *field = new(*field);
            }
        }
        if self.pin < UNKNOWN {
            self.pin = match new(self.pin) {
                NOBODY => UNKNOWN,
                node => node,
            };
        }
    }
}

/// One keyspace and the nodes that may own its shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanView {
    keyspace: KeyspaceName,
    nodes: Vec<PlanNode>,
    names: Vec<ShardName>,
    slots: Vec<Slot>,
}

impl PlanView {
    /// A view of these nodes and shards, in whatever order they come; every problem is reported at once.
    pub fn new(
        keyspace: KeyspaceName,
        mut nodes: Vec<PlanNode>,
        mut shards: Vec<PlanShardRecord>,
    ) -> Result<Self, Vec<ViewProblem>> {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        let mut problems = Vec::new();
        for pair in nodes.windows(2) {
            if pair[0].name == pair[1].name {
                problems.push(ViewProblem::TwoNodes(pair[0].name.clone()));
            }
        }
        for pair in shards.windows(2) {
            if pair[0].name == pair[1].name {
                problems.push(ViewProblem::TwoShards(pair[0].name.clone()));
            }
        }
        if !problems.is_empty() {
            problems.dedup();
            return Err(problems);
        }
        let mut view = Self {
            keyspace,
            nodes,
            names: Vec::with_capacity(shards.len()),
            slots: Vec::with_capacity(shards.len()),
        };
        for spec in shards {
            let state = view.resolve(&spec);
            view.slots.push(Slot::of(state));
            view.names.push(spec.name);
        }
        Ok(view)
    }

    /// The keyspace.
    pub fn keyspace(&self) -> &KeyspaceName {
        &self.keyspace
    }

    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> &[PlanNode] {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, node: NodeIx) -> &PlanNode {
        &self.nodes[node.at()]
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> usize {
        self.slots.len()
    }

    /// All shards, in the order of their names.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = (ShardIx, PlanShard)> {
        let numbered = self.slots.iter().enumerate();
        numbered.map(|(i, slot)| (ShardIx(i as u32), slot.state()))
    }

    /// A shard.
    pub fn shard(&self, shard: ShardIx) -> PlanShard {
        self.slots[shard.at()].state()
    }

    /// A shard's name.
    pub fn shard_name(&self, shard: ShardIx) -> &ShardName {
        &self.names[shard.at()]
    }

    /// A shard with its keyspace.
    pub fn shard_id(&self, shard: ShardIx) -> ShardId {
        ShardId::new(self.keyspace.clone(), self.names[shard.at()].clone())
    }

    /// The node of this name.
    pub fn find_node(&self, name: &NodeName) -> Option<NodeIx> {
        let found = self.nodes.binary_search_by(|n| n.name.cmp(name)).ok()?;
        u32::try_from(found).ok().map(NodeIx)
    }

    /// The shard of this name.
    pub fn find_shard(&self, name: &ShardName) -> Option<ShardIx> {
        let found = self.names.binary_search(name).ok()?;
        u32::try_from(found).ok().map(ShardIx)
    }

    /// A shard by numbers.
    pub fn resolve(&self, spec: &PlanShardRecord) -> PlanShard {
        let find = |name: &Option<NodeName>| name.as_ref().and_then(|n| self.find_node(n));
        PlanShard {
            owner: find(&spec.owner),
            intended: find(&spec.intended),
            moving: find(&spec.moving),
            sealed: spec.sealed,
            loaded: spec.loaded,
            pin: match &spec.pin {
                None => Pin::None,
                Some(name) => self.find_node(name).map_or(Pin::Unknown, Pin::To),
            },
            load: spec.load,
            moved: spec.moved,
        }
    }

    /// Changes a shard.
    pub fn set_shard(&mut self, shard: ShardIx, state: PlanShard) {
        self.slots[shard.at()] = Slot::of(state);
    }

    /// Puts a node in, or replaces the one of its name. Numbers of nodes behind a new one shift.
    pub fn put_node(&mut self, node: PlanNode) -> NodeIx {
        match self.nodes.binary_search_by(|n| n.name.cmp(&node.name)) {
            Ok(at) => {
                self.nodes[at] = node;
                NodeIx(at as u32)
            }
            Err(at) => {
                self.nodes.insert(at, node);
                let at = at as u32;
                if at as usize + 1 < self.nodes.len() {
                    for slot in &mut self.slots {
                        slot.renumber(|n| n + u32::from(n >= at));
                    }
                }
                NodeIx(at)
            }
        }
    }

    /// Forgets a node; what it had is nobody's, and what was pinned to it is pinned to a node that is not known.
    pub fn remove_node(&mut self, node: NodeIx) {
        self.nodes.remove(node.at());
        for slot in &mut self.slots {
            slot.renumber(|n| match n.cmp(&node.0) {
                std::cmp::Ordering::Less => n,
                std::cmp::Ordering::Equal => NOBODY,
                std::cmp::Ordering::Greater => n - 1,
            });
        }
    }

    /// Puts a shard in, or replaces the one of its name. Numbers of shards behind a new one shift.
    pub fn put_shard(&mut self, spec: &PlanShardRecord) -> ShardIx {
        let slot = Slot::of(self.resolve(spec));
        match self.names.binary_search(&spec.name) {
            Ok(at) => {
                self.slots[at] = slot;
                ShardIx(at as u32)
            }
            Err(at) => {
                self.names.insert(at, spec.name.clone());
                self.slots.insert(at, slot);
                ShardIx(at as u32)
            }
        }
    }

    /// Bytes that it keeps for its shards besides the text of their names.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.names.capacity() * size_of::<ShardName>()
    }

    /// Forgets a shard.
    pub fn remove_shard(&mut self, shard: ShardIx) {
        self.names.remove(shard.at());
        self.slots.remove(shard.at());
    }
}
