//! What one process knew when it wrote a shard's record, and whether the table in [`tenure_core::ownership`] has such a
//! transition: whatever a machine asks of the store must be legal for that writer on the value that it names, won or lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tenure_core::ids::{Epoch, NodeName, SessionId, ShardId, Version};
use tenure_core::machine::{Expect, Found};
use tenure_core::ownership::{Transition, TransitionContext, WriteIdentity, apply};
use tenure_core::record::{Owner, Ownership, Record, ShardRecord};
use tenure_core::rules::Rules;

/// How many values of one shard are remembered: a machine decides on the newest that it knows.
const REMEMBERED: usize = 32;

/// Values by their version, the newest last; nothing where a value could not be read.
type Values = VecDeque<(Version, Option<Arc<ShardRecord>>)>;

/// Shards as a process knows them, and its identity.
pub(super) struct KnownShards {
    node: NodeName,
    session: Option<SessionId>,
    shards: BTreeMap<ShardId, Values>,
    ended: BTreeSet<SessionId>,
}

impl KnownShards {
    pub(super) fn new(node: NodeName) -> Self {
        Self {
            node,
            session: None,
            shards: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// From here on the process acts for this session.
    pub(super) fn act_for(&mut self, session: SessionId) {
        self.session = Some(session);
    }

    pub(super) fn shard(&mut self, id: &ShardId, found: &Found) {
        let record = match &found.record {
            Ok(Record::Shard(record)) => Some(record.clone()),
            _ => None,
        };
        if !self.shards.contains_key(id) {
            self.shards.insert(id.clone(), Values::new());
        }
        let Some(values) = self.shards.get_mut(id) else {
            return;
        };
        if values.iter().any(|(version, _)| *version == found.version) {
            return;
        }
        values.push_back((found.version.clone(), record));
        if values.len() > REMEMBERED {
            values.pop_front();
        }
    }

    /// A tombstone was seen: what the session had may be taken.
    pub(super) fn ended(&mut self, session: SessionId) {
        self.ended.insert(session);
    }

    /// Which transition a write is; what is wrong if it is none.
    pub(super) fn transition(
        &self,
        id: &ShardId,
        expect: &Expect,
        new: &ShardRecord,
    ) -> Result<&'static str, String> {
        let Expect::Version(version) = expect else {
            let first = matches!(new.ownership, Ownership::Free { .. })
                && new.history.is_empty()
                && new.epoch.count() == 0;
            return match first {
                true => Ok("create"),
                false => Err(format!(
                    "shard {id} is created as {}, instead of free with epoch 0",
                    shown(new)
                )),
            };
        };
        let seen = self.shards.get(id);
        let seen = seen.and_then(|values| values.iter().find(|(known, _)| known == version));
        let Some((_, old)) = seen else {
            return Err(format!(
                "shard {id} is written over version {version}, which the process has never read"
            ));
        };
        // There is no transition from what cannot be read.
        let Some(old) = old else { return Ok("repair") };
        if new.head.rev != old.head.rev + 1 {
            return Err(format!(
                "the rev of {id} goes from {} to {}",
                old.head.rev, new.head.rev
            ));
        }
        let Some(session) = self.session else {
            return Err(format!(
                "shard {id} is written before the process has a session"
            ));
        };
        let me = Owner {
            node: self.node.clone(),
            session,
        };
        legal(old, new, me, &|session| self.ended.contains(&session)).ok_or_else(|| {
            format!(
                "no transition of {id} leads from {} to {} for session {session}",
                shown(old),
                shown(new)
            )
        })
    }
}

/// The transition that makes `new` of `old` when `me` writes, if there is one.
fn legal(
    old: &ShardRecord,
    new: &ShardRecord,
    me: Owner,
    ended: &dyn Fn(SessionId) -> bool,
) -> Option<&'static str> {
    let writer = WriteIdentity {
        owner: me,
        nonce: new.head.nonce,
    };
    let facts = TransitionContext {
        ended,
        // How much the writer knew of other epochs and generations is not in the record: it may have skipped some.
        highest_epoch: Epoch(new.epoch.0.saturating_sub(1)),
        min_generation: new.epoch.generation(),
        // What the shard costs is the writer's word.
        load: new.cost,
        rules: Rules::sound(),
    };
    let made =
        |change: Transition| apply(old, &writer, change, &facts).is_ok_and(|made| made == *new);
    candidates(old, new)
        .into_iter()
        .find_map(|(name, change)| made(change).then_some(name))
}

/// Every change that could lead to `new`.
fn candidates(old: &ShardRecord, new: &ShardRecord) -> Vec<(&'static str, Transition)> {
    let mut changes = vec![
        ("claim", Transition::Claim),
        ("serve", Transition::Serve),
        ("warmed", Transition::Warmed),
        ("take", Transition::Take { serving: true }),
        ("take", Transition::Take { serving: false }),
        ("cancel", Transition::Cancel { failed: None }),
        ("reaffirm", Transition::Reclaim { too_old: true }),
        ("free", Transition::ReleaseDeadOwner),
        ("delete", Transition::Delete),
    ];
    if let Some(past) = new.history.last() {
        let (to, reason) = (new.assigned.clone(), past.reason);
        changes.push(("release", Transition::Release { to, reason }));
    }
    if let Some(failure) = new.failures.last() {
        let error = failure.error.clone();
        let failed = Some(error.clone());
        changes.push(("cancel", Transition::Cancel { failed }));
        changes.push(("fail", Transition::Fail { error }));
    }
    match (&old.ownership, &new.ownership) {
        (_, Ownership::Sealed { seal, .. }) => {
            let seal = seal.clone();
            changes.push(("seal", Transition::Seal { seal }));
        }
        (_, Ownership::Warming { mv, .. }) => changes.push((
            "plan",
            Transition::BeginMove {
                id: mv.id,
                to: mv.to.clone(),
                plan: new.plan,
                reason: mv.reason,
                more: mv.more,
            },
        )),
        (
            Ownership::Free {
                awaiting_disclaimers: before,
            },
            Ownership::Free {
                awaiting_disclaimers: after,
            },
        ) => {
            let denied = before.iter().filter(|w| !after.contains(w));
            changes
                .extend(denied.map(|&session| ("deny", Transition::DisclaimOwnership { session })));
        }
        _ => {}
    }
    let (node, plan) = (new.assigned.clone(), new.plan);
    let (meta, said) = (new.meta.clone(), new.trouble.clone());
    changes.extend([
        ("recreate", Transition::Recreate { meta }),
        (
            "pin",
            Transition::Pin {
                node: new.pin.clone(),
            },
        ),
        (
            "wish",
            Transition::RequestMove {
                node: new.move_request.clone(),
            },
        ),
        ("doom", Transition::MarkForDeletion),
        ("lift", Transition::ClearQuarantine),
        ("tell", Transition::ReportTrouble { said }),
        ("intend", Transition::Assign { node, plan }),
    ]);
    changes
}

fn shown(record: &ShardRecord) -> String {
    let owner = match record.owner() {
        Some(owner) => format!(" by {} ({})", owner.node, owner.session),
        None => String::new(),
    };
    format!(
        "rev {} {}{owner} at epoch {}",
        record.head.rev,
        record.ownership.name(),
        record.epoch
    )
}
