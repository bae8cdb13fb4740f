//! Questions of the form "what if": changes to a view, as text.
//!
//! ```
//! use tenure_core::plan::what_if;
//!
//! let changes = what_if::parse("remove n3; weight n1=200").unwrap();
//! assert_eq!(changes.len(), 2);
//! assert!(what_if::parse("weight n1=-2").is_err());
//! ```

use std::fmt;

use super::input::{NodeState, Pin, PlanNode, PlanView};
use crate::ids::{NodeName, ShardId};
use crate::time::Time;

/// One change to a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WhatIfChange {
    /// A node is gone, and so is its session.
    Remove(NodeName),
    /// So many more nodes, like any other.
    AddSome(u32),
    /// One more node, of this name.
    Add(NodeName),
    /// A node has another weight.
    Weight(NodeName, u32),
    /// A node can have so many shards.
    Capacity(NodeName, u32),
    /// A node runs in another zone.
    Zone(NodeName, String),
    /// A node is in another state.
    State(NodeName, NodeState),
    /// A shard is pinned.
    Pin(ShardId, NodeName),
    /// A shard is no longer pinned.
    Unpin(ShardId),
    /// A shard has this load.
    Load(ShardId, u32),
}

/// Why a question was not understood, or does not fit the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WhatIfError {
    /// The part of the question.
    pub given: String,
    /// What is wrong, and the way out.
    pub problem: String,
}

impl fmt::Display for WhatIfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what if {:?}: {}", self.given, self.problem)
    }
}

impl std::error::Error for WhatIfError {}

/// What can be asked, for messages and help.
pub const FORMS: &str = "remove NODE, add COUNT, add NODE, weight NODE=N, capacity NODE=N, zone NODE=ZONE, cordon NODE, \
                         drain NODE, resume NODE, pin KEYSPACE/SHARD=NODE, unpin KEYSPACE/SHARD, \
                         cost KEYSPACE/SHARD=N";

/// How many nodes can be added at a time.
const MOST_ADDED: u32 = 100_000;

/// Reads one or more changes, separated by semicolons.
pub fn parse(text: &str) -> Result<Vec<WhatIfChange>, WhatIfError> {
    let parts: Vec<&str> = text
        .split(';')
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .collect();
    if parts.is_empty() {
        return Err(WhatIfError {
            given: text.to_owned(),
            problem: format!("the change is empty; use {FORMS}"),
        });
    }
    parts.into_iter().map(parse_one).collect()
}

fn parse_one(part: &str) -> Result<WhatIfChange, WhatIfError> {
    let unclear = |problem: String| WhatIfError {
        given: part.to_owned(),
        problem,
    };
    let (verb, rest) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
    let rest = rest.trim();
    if rest.is_empty() {
        return Err(unclear(format!(
            "the change names no node, shard or number; use {FORMS}"
        )));
    }
    let node = |name: &str| NodeName::new(name.trim()).map_err(|e| unclear(e.to_string()));
    let shard = |id: &str| id.trim().parse().map_err(|e| unclear(format!("{e}")));
    let pair = || {
        let split = rest.rsplit_once('=');
        split.ok_or_else(|| unclear(format!("the value is missing; write {verb} {rest}=VALUE")))
    };
    let number = |value: &str, least: u32| match value.trim().parse::<u32>() {
        Ok(n) if n >= least => Ok(n),
        _ => Err(unclear(format!(
            "{:?} is not a whole number of at least {least}",
            value.trim()
        ))),
    };
    Ok(match verb {
        "remove" => WhatIfChange::Remove(node(rest)?),
        "add" => match rest.parse::<u32>() {
            Ok(n) if (1..=MOST_ADDED).contains(&n) => WhatIfChange::AddSome(n),
            Ok(_) => {
                return Err(unclear(format!(
                    "the number of nodes to add must be between 1 and {MOST_ADDED}"
                )));
            }
            Err(_) => WhatIfChange::Add(node(rest)?),
        },
        "weight" => {
            let (name, value) = pair()?;
            WhatIfChange::Weight(node(name)?, number(value, 1)?)
        }
        "capacity" => {
            let (name, value) = pair()?;
            WhatIfChange::Capacity(node(name)?, number(value, 0)?)
        }
        "zone" => {
            let (name, value) = pair()?;
            WhatIfChange::Zone(node(name)?, value.trim().to_owned())
        }
        "cordon" => WhatIfChange::State(node(rest)?, NodeState::Cordoned),
        "drain" => WhatIfChange::State(node(rest)?, NodeState::Draining),
        "resume" => WhatIfChange::State(node(rest)?, NodeState::Active),
        "pin" => {
            let (id, name) = pair()?;
            WhatIfChange::Pin(shard(id)?, node(name)?)
        }
        "unpin" => WhatIfChange::Unpin(shard(rest)?),
        "cost" => {
            let (id, value) = pair()?;
            WhatIfChange::Load(shard(id)?, number(value, 0)?)
        }
        other => {
            return Err(unclear(format!(
                "the change {other:?} is unknown; use {FORMS}"
            )));
        }
    })
}

/// The view with the changes made to it, one after the other.
pub fn apply(
    view: &PlanView,
    changes: &[WhatIfChange],
    now: Time,
) -> Result<PlanView, WhatIfError> {
    let mut view = view.clone();
    for change in changes {
        apply_one(&mut view, change, now)?;
    }
    Ok(view)
}

fn apply_one(view: &mut PlanView, change: &WhatIfChange, now: Time) -> Result<(), WhatIfError> {
    let unclear = |given: &dyn fmt::Display, problem: &str| WhatIfError {
        given: given.to_string(),
        problem: problem.to_owned(),
    };
    let edit = |view: &mut PlanView, name: &NodeName, edit: &dyn Fn(&mut PlanNode)| {
        let Some(ix) = view.find_node(name) else {
            return Err(unclear(name, "the node does not exist"));
        };
        let mut node = view.node(ix).clone();
        edit(&mut node);
        view.put_node(node);
        Ok(())
    };
    match change {
        WhatIfChange::Remove(name) => edit(view, name, &|n| n.state = NodeState::Away),
        WhatIfChange::Weight(name, weight) => edit(view, name, &|n| n.weight = *weight),
        WhatIfChange::Capacity(name, most) => edit(view, name, &|n| n.capacity = Some(*most)),
        WhatIfChange::Zone(name, zone) => edit(view, name, &|n| n.zone = Some(zone.clone())),
        WhatIfChange::State(name, state) => edit(view, name, &|n| n.state = *state),
        WhatIfChange::Add(name) if view.find_node(name).is_some() => {
            Err(unclear(name, "the node exists already"))
        }
        WhatIfChange::Add(name) => {
            view.put_node(like_the_others(view, name.clone(), now));
            Ok(())
        }
        WhatIfChange::AddSome(count) => {
            for name in unused_names(view, *count) {
                view.put_node(like_the_others(view, name, now));
            }
            Ok(())
        }
        WhatIfChange::Pin(..) | WhatIfChange::Unpin(_) | WhatIfChange::Load(..) => {
            change_shard(view, change)
        }
    }
}

fn change_shard(view: &mut PlanView, change: &WhatIfChange) -> Result<(), WhatIfError> {
    let (WhatIfChange::Pin(id, _) | WhatIfChange::Unpin(id) | WhatIfChange::Load(id, _)) = change
    else {
        return Ok(());
    };
    let unclear = |problem: String| WhatIfError {
        given: id.to_string(),
        problem,
    };
    if id.keyspace != *view.keyspace() {
        let here = view.keyspace();
        return Err(unclear(format!("the plan is for keyspace {here}")));
    }
    let Some(ix) = view.find_shard(&id.shard) else {
        return Err(unclear("the shard does not exist".to_owned()));
    };
    let mut shard = view.shard(ix);
    match change {
        WhatIfChange::Pin(_, name) => {
            shard.pin = view.find_node(name).map_or(Pin::Unknown, Pin::To);
        }
        WhatIfChange::Load(_, load) => shard.load = *load,
        _ => shard.pin = Pin::None,
    }
    view.set_shard(ix, shard);
    Ok(())
}

/// A new node with the labels that all others have, and the weight that most others have.
fn like_the_others(view: &PlanView, name: NodeName, now: Time) -> PlanNode {
    let mut node = PlanNode::new(name, now);
    let mut others = view.nodes().iter();
    if let Some(first) = others.next() {
        node.labels = first.labels.clone();
        for other in others {
            node.labels.retain(|k, v| other.labels.get(k) == Some(v));
        }
    }
    let mut weights: Vec<u32> = view.nodes().iter().map(|n| n.weight).collect();
    weights.sort_unstable();
    node.weight = weights
        .get(weights.len() / 2)
        .copied()
        .unwrap_or(100)
        .max(1);
    node
}

fn unused_names(view: &PlanView, count: u32) -> Vec<NodeName> {
    (1..)
        .filter_map(|i: u32| NodeName::new(format!("new-{i}")).ok())
        .filter(|name| view.find_node(name).is_none())
        .take(count as usize)
        .collect()
}
