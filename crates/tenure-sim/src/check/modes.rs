//! Modes are sticky: a node comes back as what it was told to be, until an operator tells it otherwise.

use std::collections::BTreeMap;

use tenure_core::ids::{NodeName, SessionId};
use tenure_core::record::{NodeMode, NodeRecord};

use super::{CheckResult, Violation};
use crate::clock::Instant;

/// Checker of node modes: the mode of each node, as its record had it last.
#[derive(Debug, Default)]
pub(crate) struct NodeModeChecker {
    known: BTreeMap<NodeName, NodeMode>,
    /// Whether nodes that ran out of time wait for an operator.
    manual: bool,
}

impl NodeModeChecker {
    pub(crate) fn new(manual: bool) -> Self {
        Self {
            known: BTreeMap::new(),
            manual,
        }
    }

    /// The store was put back: whatever was told since is forgotten.
    pub(crate) fn restored(&mut self) {
        self.known.clear();
    }

    /// A node's record has this value now; none: it cannot be read, or is gone, and with it what it said.
    pub(crate) fn written(
        &mut self,
        at: Instant,
        name: &NodeName,
        record: Option<&NodeRecord>,
        operator: SessionId,
    ) -> CheckResult {
        let Some(record) = record else {
            self.known.remove(name);
            return Ok(());
        };
        let before = self.known.insert(name.clone(), record.mode.clone());
        let by_operator = record.head.nonce.writer == operator;
        let (before, now) = match before {
            Some(before) if before != record.mode && !by_operator => (before, &record.mode),
            _ => return Ok(()),
        };
        let allowed = match (&before, now) {
            (NodeMode::Draining, now) => *now == NodeMode::drained(NodeMode::BY_OPERATOR),
            (NodeMode::Active, NodeMode::Drained(reason)) => {
                let ran_out = [NodeMode::STALE_RESTART, NodeMode::REGISTRATION_EXPIRED];
                self.manual && ran_out.contains(&reason.as_str())
            }
            _ => false,
        };
        if allowed {
            return Ok(());
        }
        let what = format!("{name} made itself {now}; it was {before}, and nobody told it so");
        Err(Violation::new("modes", at, what))
    }
}
