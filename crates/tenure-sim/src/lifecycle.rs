//! The life of nodes: how they come back, and what operators tell them at any time.
//!
//! Drawn from a source of its own, after everything else: what a seed meant before stays known.

use std::sync::Arc;

use tenure_core::ids::NodeName;
use tenure_core::keys::Key;
use tenure_core::ownership::Transition;
use tenure_core::record::{ClusterRecord, MovesPaused, NodeRecord, Record, ShardRecord};

use crate::check::CheckResult;
use crate::clock::SEC;
use crate::fault::Fault;
use crate::run_config::{Class, RunConfig};
use crate::world::{World, named};

/// Action of an operator besides setting modes. Nodes and shards are meant by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperatorAction {
    /// Asks the session of a node to stop.
    Evict(usize),
    /// Cordons a node, or lifts that.
    Cordon {
        /// Number of the node.
        node: usize,
        /// True to cordon, false to uncordon.
        yes: bool,
    },
    /// Lets nothing that is served move.
    Freeze,
    /// Lets shards move again.
    Thaw,
    /// Wants a shard to go to a node once.
    Wish {
        /// The shard.
        shard: usize,
        /// The node.
        node: usize,
    },
    /// Wants the first keyspace evened out.
    Rebalance,
    /// Wants a named shard deleted.
    Doom(usize),
    /// Wants a named shard to be there, again if need be.
    Create(usize),
}

impl std::fmt::Display for OperatorAction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Evict(node) => write!(f, "stop n{node} by request"),
            Self::Cordon { node, yes: true } => write!(f, "cordon n{node}"),
            Self::Cordon { node, yes: false } => write!(f, "uncordon n{node}"),
            Self::Freeze => f.write_str("pause moves"),
            Self::Thaw => f.write_str("resume moves"),
            Self::Wish { shard, node } => write!(f, "request move {shard} n{node}"),
            Self::Rebalance => f.write_str("rebalance"),
            Self::Doom(shard) => write!(f, "delete {shard}"),
            Self::Create(shard) => write!(f, "create {shard}"),
        }
    }
}

/// Adds to a plan how its nodes come back, and what operators do.
pub(crate) fn add(plan: &mut RunConfig) {
    if !matches!(plan.class, Class::Chaos | Class::Beyond) {
        return;
    }
    let mut rng = plan.rng(21);
    plan.manual = rng.permille(400);
    if !rng.permille(300) {
        return;
    }
    for _ in 0..rng.between(1, 8) {
        let at = rng.between(2 * SEC, plan.heal_at - SEC);
        let node = rng.below(plan.nodes as u64) as usize;
        let shard = rng.below(u64::from(plan.shards)) as usize;
        let act = match rng.below(8) {
            0 => OperatorAction::Evict(node),
            1 | 2 => OperatorAction::Freeze,
            3 => OperatorAction::Thaw,
            4 | 5 => OperatorAction::Wish { shard, node },
            _ => OperatorAction::Rebalance,
        };
        plan.faults.push((at, Fault::Operator(act)));
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

/// Adds the deletion and creation of named shards at any time. All that are gone when faults are over are created then.
pub(crate) fn add_deletions(plan: &mut RunConfig) {
    let named = plan.named_shards();
    if named.is_empty() || !matches!(plan.class, Class::Chaos | Class::Beyond) {
        return;
    }
    let mut rng = plan.rng(22);
    for _ in 0..rng.between(0, 6) {
        let shard = *rng.pick(&named);
        let at = rng.between(5 * SEC, plan.heal_at - SEC);
        plan.faults
            .push((at, Fault::Operator(OperatorAction::Doom(shard))));
        if rng.permille(700) {
            let again = at + rng.skewed(0, 10 * SEC);
            let create = Fault::Operator(OperatorAction::Create(shard));
            plan.faults.push((again.min(plan.heal_at - SEC), create));
        }
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

impl World {
    /// Does what an operator does, if the records that it is about are there.
    pub(crate) fn operate(&mut self, act: OperatorAction) -> CheckResult {
        if let OperatorAction::Create(shard) = act {
            return self.create(shard);
        }
        if self.is_away() {
            return Ok(());
        }
        let key = match act {
            OperatorAction::Evict(node) | OperatorAction::Cordon { node, .. } => {
                self.node_key(node)
            }
            OperatorAction::Freeze | OperatorAction::Thaw => Key::Cluster,
            OperatorAction::Wish { shard, .. }
            | OperatorAction::Doom(shard)
            | OperatorAction::Create(shard) => self.shards[shard].clone(),
            OperatorAction::Rebalance => self.first_keyspace(),
        };
        let nonce = self.operators_nonce();
        let found = self.store.get(&key).and_then(|f| f.record.clone().ok());
        let new = match (found, act) {
            (Some(Record::Node(old)), OperatorAction::Evict(_)) => {
                Record::Node(Arc::new(NodeRecord {
                    head: old.head.next(nonce),
                    stop_session: Some(old.session),
                    ..NodeRecord::clone(&old)
                }))
            }
            (Some(Record::Node(old)), OperatorAction::Cordon { yes, .. })
                if old.cordoned != yes =>
            {
                self.coverage.cordoned += u64::from(yes);
                Record::Node(Arc::new(NodeRecord {
                    head: old.head.next(nonce),
                    cordoned: yes,
                    ..NodeRecord::clone(&old)
                }))
            }
            (Some(Record::Cluster(old)), OperatorAction::Freeze | OperatorAction::Thaw) => {
                Record::Cluster(Arc::new(ClusterRecord {
                    head: old.head.next(nonce),
                    moves_paused: (act == OperatorAction::Freeze).then(|| MovesPaused {
                        reason: "a while".to_owned(),
                        rev: old.head.rev + 1,
                        lasts: self.plan.pause_lasts,
                    }),
                    ..ClusterRecord::clone(&old)
                }))
            }
            (Some(Record::Shard(old)), OperatorAction::Wish { node, .. }) => {
                Record::Shard(Arc::new(ShardRecord {
                    head: old.head.next(nonce),
                    move_request: Some(named(NodeName::new(self.plan.name(node)))),
                    ..ShardRecord::clone(&old)
                }))
            }
            (Some(Record::Shard(old)), OperatorAction::Doom(_)) => {
                match self.operators(&old, Transition::MarkForDeletion) {
                    Some(new) => {
                        self.coverage.doomed += 1;
                        Record::Shard(Arc::new(new))
                    }
                    None => return Ok(()),
                }
            }
            (Some(Record::Keyspace(old)), OperatorAction::Rebalance) => {
                let mut new = (*old).clone();
                (new.head, new.rebalance) = (old.head.next(nonce), true);
                Record::Keyspace(Arc::new(new))
            }
            _ => return Ok(()),
        };
        self.coverage.operated += 1;
        self.write(key, new)
    }
}
