//! Planning of the leader: derives the planner's view from the records, and writes the planner's decisions into the records.
//!
//! Planning is level-triggered: no decision depends on remembered state. The leader only remembers what prevents needless moves: since when
//! nodes are in their state, and recent moves. Every write is guarded by the version that the decision is based on, and carries the
//! leader's term. A write is rejected if the record already carries a newer term. A wrong or late leader costs moves, never safety.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::assign::{Member, Ranking};
use crate::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId};
use crate::keys::Key;
use crate::machine::{Expect, StoreFailure};
use crate::members::Participant;
use crate::ownership::{Transition, TransitionContext, WriteIdentity};
use crate::plan::{
    Decision, LiveRecords, NodeState, Plan, PlanNode, PlanRules, PlanView, PlannerMemory, plan,
    plan_with,
};
use crate::reason::Reason;
use crate::record::{AssignedBy, Move, MovePhase, Owner, Ownership, PlanId, Record, ShardRecord};
use crate::telemetry::NodeEvent;
use crate::time::Time;
use crate::{members, ownership};

use super::context::Ctx;
use super::election::Leader;
use super::membership::Membership;
use super::store_requests::{WriteOutcome, WritePurpose};
use super::timers::Timer;

/// Time for which the leader remembers a node's absences, in multiples of the ttl.
const MEMORY: u32 = 100;

/// Maximum time that a leader waits for further changes before it plans. Very many shards add to it.
const SOON: Duration = Duration::from_millis(50);

/// Maximum number of plan updates per planning round. With more updates the leader plans again soon, and renews its session in between.
const MAX_UPDATES: usize = 10_000;

/// State that a leader keeps between plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Planning {
    term: u64,
    /// Number of the last plan with changes. The number only increases, across all leaders.
    seq: u64,
    /// Time of the last planning round.
    planned: Time,
    nodes: BTreeMap<NodeName, Watched>,
    moved: BTreeMap<ShardId, Time>,
    /// Shards with a plan update in progress: the planner treats the update as done.
    writing: BTreeMap<ShardId, Writing>,
    /// Moves that have not led to a new epoch.
    tried: BTreeMap<ShardId, Tried>,
    /// Problems that were reported and still exist.
    told: BTreeMap<KeyspaceName, BTreeSet<String>>,
}

/// Update of a shard's record by the leader.
pub(super) enum PlanUpdate {
    /// Assign the shard to this node, or to none.
    Assign(Option<NodeName>),
    /// Move the shard to this node. `true` if further moves to the node wait for the budgets.
    Move(NodeName, Reason, bool),
    /// Abort the move: the shard remains with its owner.
    Cancel,
    /// Remove an operator's move request that cannot be fulfilled, or that already is.
    DropRequest,
}

/// Moves of a shard at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Tried {
    epoch: Epoch,
    /// `true` if the leader started a move and has not evaluated its outcome yet.
    open: bool,
    times: u32,
    until: Time,
}

/// Plan update in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writing {
    to: Option<NodeName>,
    sweeps: bool,
    /// Error of the store if the write failed.
    error: String,
}

/// State of a node as observed by the leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watched {
    state: NodeState,
    session: Option<SessionId>,
    since: Time,
    absences: u32,
}

impl Planning {
    pub(super) fn new(term: u64, seq: u64) -> Self {
        Self {
            term,
            seq,
            ..Self::default()
        }
    }

    pub(super) fn term(&self) -> u64 {
        self.term
    }

    fn mark(&self) -> PlanId {
        PlanId {
            term: self.term,
            seq: self.seq,
        }
    }

    /// Updates the observation of a node. Returns the start of its current state and its number of absences.
    fn watch(
        &mut self,
        now: Time,
        name: &NodeName,
        state: NodeState,
        session: Option<SessionId>,
        memory: Duration,
    ) -> (Time, u32) {
        let watched = self.nodes.entry(name.clone()).or_insert_with(|| Watched {
            state,
            session,
            // A new leader cannot know since when the node is in this state, so it counts from now.
            since: now,
            absences: 0,
        });
        if watched.state != state || watched.session != session {
            if now.since(watched.since) > memory {
                watched.absences = 0;
            }
            let returns = state == NodeState::Active
                && (watched.state == NodeState::Away || watched.session != session);
            watched.absences += u32::from(returns);
            (watched.state, watched.session, watched.since) = (state, session, now);
        }
        (watched.since, watched.absences)
    }
}

/// Leader's state between plans, as the planner reads it at one time.
struct Remembered<'a> {
    planning: &'a mut Planning,
    now: Time,
    memory: Duration,
}

impl PlannerMemory for Remembered<'_> {
    fn node(
        &mut self,
        name: &NodeName,
        state: NodeState,
        session: Option<SessionId>,
    ) -> (Time, u32) {
        let (now, memory) = (self.now, self.memory);
        self.planning.watch(now, name, state, session, memory)
    }

    fn writing(&self, shard: &ShardId) -> Option<Option<NodeName>> {
        self.planning.writing.get(shard).map(|w| w.to.clone())
    }

    fn moved(&self, shard: &ShardId) -> Option<Time> {
        self.planning.moved.get(shard).copied()
    }
}

fn member(node: Participant<'_>) -> Member {
    Member {
        name: node.name.clone(),
        session: node.session,
        weight: node.record.weight,
    }
}

/// Numbers of changes in one plan.
#[derive(Default)]
struct Count {
    intended: usize,
    moved: usize,
    cancelled: usize,
    swept: Vec<Key>,
}

impl Leader {
    /// Plans at once after a pause, otherwise after a short wait, so that simultaneous changes lead to one plan.
    pub(super) fn plan_soon(&mut self, cx: &mut Ctx) {
        let Some(planning) = &self.planning else {
            return;
        };
        let last = planning.planned;
        let shards = u32::try_from(cx.view.shards.len()).unwrap_or(u32::MAX);
        let wait = (cx.config.timing.ttl / 200).min(SOON) + Duration::from_micros(4) * shards;
        cx.timers.set_sooner(Timer::Plan, cx.now.max(last + wait));
    }

    /// Plans every keyspace with `assigned_by = leader`.
    pub(super) fn plan(&mut self, cx: &mut Ctx, membership: &Membership) {
        if !self.leads(cx) {
            return self.check_leadership(cx, membership);
        }
        if let Some(planning) = &mut self.planning {
            planning.planned = cx.now;
        }
        let coordinated = cx
            .view
            .keyspaces
            .iter()
            .filter(|(_, k)| k.record.assigned_by == AssignedBy::Leader && !k.record.deleted);
        let names: Vec<KeyspaceName> = coordinated.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.plan_keyspace(cx, &name);
        }
    }

    fn plan_keyspace(&mut self, cx: &mut Ctx, keyspace: &KeyspaceName) {
        let Some(rules) = self.plan_rules(cx, keyspace) else {
            return;
        };
        let rules = self.adjusted_rules(cx, keyspace, rules);
        let Some(view) = self.plan_view(cx, keyspace, &rules) else {
            return;
        };
        let planned = match &cx.config.policy {
            Some(policy) => plan_with(&view, &rules, policy.as_policy(), cx.now),
            None => plan(&view, &rules, cx.now),
        };
        if let Some(at) = planned.look_again {
            cx.timers.set_sooner(Timer::Plan, at.max(cx.now));
        }
        let problems = planned.problems.iter().map(ToString::to_string);
        self.report_problems(cx, keyspace, problems.collect());
        self.carry_out(cx, keyspace, &view, &planned);
        self.clear_rebalance_request(cx, keyspace, &planned);
    }

    /// Reports the problems that the planner found, each once for as long as it exists.
    fn report_problems(
        &mut self,
        cx: &mut Ctx,
        keyspace: &KeyspaceName,
        problems: BTreeSet<String>,
    ) {
        let Some(planning) = &mut self.planning else {
            return;
        };
        let told = planning.told.entry(keyspace.clone()).or_default();
        let news: Vec<String> = problems.difference(told).cloned().collect();
        *told = problems;
        for problem in news {
            let keyspace = keyspace.clone();
            cx.note(NodeEvent::PlanProblem { keyspace, problem });
        }
    }

    fn plan_rules(&mut self, cx: &mut Ctx, keyspace: &KeyspaceName) -> Option<PlanRules> {
        let mut settings = cx.view.keyspaces.get(keyspace)?.planning.settings();
        // After an outage all sessions may be over. The first node to return gives the others time to return to their shards (P5). Failover
        // of nodes seen alive since then is not delayed: such a node expires no sooner than after a ttl.
        let ttl = cx.config.timing.ttl;
        let registered = cx.own.as_ref().map_or(Time::ZERO, |own| own.registered);
        if cx.now.since(registered) < ttl {
            settings.failover_after = settings.failover_after.max(ttl);
            cx.timers.set_sooner(Timer::Plan, registered + ttl);
        }
        match settings.check() {
            Ok(rules) => Some(rules),
            Err(problems) => {
                let all = problems.iter().map(ToString::to_string);
                self.report_problems(cx, keyspace, all.collect());
                None
            }
        }
    }

    fn plan_view(
        &mut self,
        cx: &mut Ctx,
        keyspace: &KeyspaceName,
        rules: &PlanRules,
    ) -> Option<PlanView> {
        let mut planning = self.planning.take()?;
        let now = cx.now;
        planning.moved.retain(|id, at| {
            id.keyspace != *keyspace
                || (now.since(*at) < rules.cool_down && cx.view.shards.get(id).is_some())
        });
        let view = &cx.view;
        planning
            .tried
            .retain(|id, tried| view.shards.get(id).is_some_and(|r| r.epoch == tried.epoch));
        let mut memory = Remembered {
            planning: &mut planning,
            now,
            memory: cx.config.timing.ttl * MEMORY,
        };
        let ended = |session| cx.ended(session);
        let view = LiveRecords::new(&cx.view, &ended).plan_view(keyspace, &mut memory);
        self.planning = Some(planning);
        view.ok()
    }

    /// Writes the decisions of a plan. Decisions that no longer fit are made again once the records show it.
    fn carry_out(
        &mut self,
        cx: &mut Ctx,
        keyspace: &KeyspaceName,
        view: &PlanView,
        planned: &Plan,
    ) {
        let mut words: Vec<(ShardId, PlanUpdate, bool)> = Vec::new();
        let mut count = Count::default();
        let mut decided = BTreeSet::new();
        for (id, word) in self.requested_updates(cx, keyspace) {
            count.moved += usize::from(matches!(word, PlanUpdate::Move(..)));
            decided.insert(id.clone());
            words.push((id, word, false));
        }
        for decision in planned.actions() {
            if words.len() >= MAX_UPDATES {
                self.plan_soon(cx);
                break;
            }
            let id = view.shard_id(decision.shard());
            if !decided.insert(id.clone()) {
                continue;
            }
            let Some(record) = cx.view.shards.get(&id).cloned() else {
                continue;
            };
            let Some(word) = self.update_for(cx, &id, &record, view, planned, decision) else {
                continue;
            };
            match decision {
                Decision::Move { .. } => count.moved += 1,
                Decision::Intend { .. } => count.intended += 1,
                _ => count.cancelled += 1,
            }
            let swept = cx.view.names_departed(&record, keyspace);
            if swept {
                count.swept.push(Key::Shard(id.clone()));
            }
            words.push((id, word, swept));
        }
        let all = cx.view.shards.iter();
        for (id, seen) in all.filter(|(id, _)| id.keyspace == *keyspace) {
            let stale = matches!(seen.record.ownership, Ownership::Free { .. })
                && cx.view.names_departed(&seen.record, keyspace)
                && !decided.contains(id)
                && !self.is_writing(cx, id);
            if stale {
                count.swept.push(Key::Shard(id.clone()));
                words.push((id.clone(), PlanUpdate::Assign(None), true));
            }
        }
        self.write_plan(cx, keyspace, view, planned, words, count);
    }

    /// Returns the plan update for a decision; `None` if the record has it already, a write is in progress, or the update must wait.
    fn update_for(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        record: &ShardRecord,
        view: &PlanView,
        planned: &Plan,
        decision: &Decision,
    ) -> Option<PlanUpdate> {
        if self.is_writing(cx, id) {
            return None;
        }
        let owner = record.owner().filter(|o| !cx.ended(o.session));
        let moving = record.ownership.moving();
        let comes = |mv: &Move| !cx.ended(mv.to.session);
        if moving.is_some_and(|(mv, phase)| phase == MovePhase::Sealed && comes(mv)) {
            // The target is about to take the shard, even if the owner is gone.
            return None;
        }
        let word = match decision {
            Decision::Intend { to, .. } | Decision::Move { to, .. } => {
                let more = planned.more_to.binary_search(to).is_ok();
                let to =
                    self.able_target(cx, id, record, &id.keyspace, view.node(*to).name.clone())?;
                let serving = matches!(record.ownership, Ownership::Owned { serving: true, .. });
                match owner {
                    Some(owner) if owner.node == to => return None,
                    Some(_) if moving.is_some() => return None,
                    Some(_) if serving && cx.pause.is_active(cx.now) => return None,
                    // A stopping owner starts its moves itself. After `drain_timeout` it closes the gates of the remaining shards.
                    Some(owner) if serving && cx.view.is_stopping(owner.session) => return None,
                    Some(_) if serving => PlanUpdate::Move(to, Reason::Planned, more),
                    _ => PlanUpdate::Assign(Some(to)),
                }
            }
            _ if moving.is_some_and(|(_, phase)| phase != MovePhase::Sealed) => PlanUpdate::Cancel,
            _ => PlanUpdate::Assign(owner.map(|o| o.node.clone())),
        };
        if let PlanUpdate::Assign(to) = &word
            && record.assigned == *to
        {
            return None;
        }
        if let PlanUpdate::Move(..) = &word
            && let Some(until) = self.deferred_until(cx, id, record)
        {
            cx.timers.set_sooner(Timer::Plan, until);
            return None;
        }
        Some(word)
    }

    /// Returns the time until which no move of a shard is started: an aborted move is not repeated at once.
    fn deferred_until(&mut self, cx: &mut Ctx, id: &ShardId, record: &ShardRecord) -> Option<Time> {
        let (now, timing) = (cx.now, cx.timing());
        let planning = self.planning.as_mut()?;
        let tried = planning.tried.get_mut(id)?;
        if tried.epoch != record.epoch {
            planning.tried.remove(id);
            return None;
        }
        if std::mem::take(&mut tried.open) {
            tried.until = now + timing.move_retry(tried.times);
            tried.times += 1;
        }
        (now < tried.until).then_some(tried.until)
    }

    fn write_plan(
        &mut self,
        cx: &mut Ctx,
        keyspace: &KeyspaceName,
        view: &PlanView,
        planned: &Plan,
        words: Vec<(ShardId, PlanUpdate, bool)>,
        count: Count,
    ) {
        let Some(planning) = self.planning.as_mut() else {
            return;
        };
        if words.is_empty() {
            return;
        }
        planning.seq += 1;
        let mark = planning.mark();
        for (id, word, sweeps) in words {
            self.write_update(cx, &id, word, mark, sweeps);
        }
        let alive = |n: &&PlanNode| n.state != NodeState::Away;
        let nodes = view.nodes().iter().filter(alive).count();
        cx.note(NodeEvent::Planned {
            keyspace: keyspace.clone(),
            plan: mark,
            nodes,
            assigned: count.intended,
            moved: count.moved,
            aborted: count.cancelled,
            deferred: planned
                .put_off
                .map(|p| (p.shards as usize, p.reason.as_str().to_owned())),
        });
        if !count.swept.is_empty() {
            cx.note(NodeEvent::StaleAssignmentsRemoved {
                keys: count.swept,
                plan: mark,
                nodes,
            });
        }
    }

    /// Returns the node that the planner chose, or another one if its current session has failed to load the shard.
    fn able_target(
        &self,
        cx: &Ctx,
        id: &ShardId,
        record: &ShardRecord,
        keyspace: &KeyspaceName,
        chosen: NodeName,
    ) -> Option<NodeName> {
        let failed = |name: &NodeName| {
            cx.view
                .present(name, keyspace)
                .is_none_or(|(session, _)| record.was_failed_by(session))
        };
        if record.failures.is_empty() || !failed(&chosen) {
            return Some(chosen);
        }
        let all = members::participants(&cx.view, keyspace, None);
        let takers: Vec<Member> = all.filter(Participant::takes).map(member).collect();
        let ranking = Ranking::new(&takers);
        ranking.winner(id, |name| !failed(name)).cloned()
    }

    pub(super) fn is_writing(&self, _cx: &Ctx, id: &ShardId) -> bool {
        let planning = self.planning.as_ref();
        planning.is_some_and(|p| p.writing.contains_key(id))
    }

    /// Writes a plan update to a shard's record.
    fn write_update(
        &mut self,
        cx: &mut Ctx,
        id: &ShardId,
        word: PlanUpdate,
        plan: PlanId,
        sweeps: bool,
    ) {
        let (Some(seen), Some(session)) = (cx.view.shards.seen(id).cloned(), cx.session()) else {
            return;
        };
        let (to, change) = match word {
            PlanUpdate::Assign(node) => (node.clone(), Transition::Assign { node, plan }),
            PlanUpdate::Cancel => {
                let owner = seen.record.owner().map(|o| o.node.clone());
                (owner, Transition::Cancel { failed: None })
            }
            PlanUpdate::DropRequest => (
                seen.record.assigned.clone(),
                Transition::RequestMove { node: None },
            ),
            PlanUpdate::Move(node, reason, more) => {
                let Some((session, _)) = cx.view.present(&node, &id.keyspace) else {
                    return;
                };
                let to = Owner {
                    node: node.clone(),
                    session,
                };
                let id = cx.move_id();
                let change = Transition::BeginMove {
                    id,
                    to,
                    plan,
                    reason,
                    more,
                };
                (Some(node), change)
            }
        };
        let moves = matches!(change, Transition::BeginMove { .. });
        let writer = WriteIdentity {
            owner: Owner {
                node: cx.config.name.clone(),
                session,
            },
            nonce: cx.nonce(),
        };
        let facts = TransitionContext {
            ended: &|s| cx.ended(s),
            highest_epoch: seen.record.epoch,
            min_generation: 0,
            load: None,
            rules: cx.config.rules,
        };
        let Ok(record) = ownership::apply(&seen.record, &writer, change, &facts) else {
            return;
        };
        let now = cx.now;
        if let Some(planning) = self.planning.as_mut() {
            let error = String::new();
            let writing = Writing { to, sweeps, error };
            planning.writing.insert(id.clone(), writing);
            if moves {
                planning.moved.insert(id.clone(), now);
                let tried = planning.tried.entry(id.clone()).or_default();
                tried.epoch = seen.record.epoch;
                tried.open = true;
            }
        }
        cx.put(
            Key::Shard(id.clone()),
            Expect::Version(seen.version),
            Record::Shard(Arc::new(record)),
            WritePurpose::Plan(id.clone()),
        );
    }

    /// Remembers the error of a failed plan update.
    pub(super) fn note_failure(&mut self, purpose: &WritePurpose, failure: &StoreFailure) {
        if let WritePurpose::Plan(id) = purpose
            && let Some(planning) = &mut self.planning
            && let Some(writing) = planning.writing.get_mut(id)
        {
            writing.error = failure.text().to_owned();
        }
    }

    pub(super) fn on_planned(&mut self, cx: &mut Ctx, id: &ShardId, outcome: WriteOutcome) {
        let Some(planning) = self.planning.as_mut() else {
            return;
        };
        let writing = planning.writing.remove(id);
        if let WriteOutcome::Failed { .. } = outcome {
            if let Some(Writing { error, .. }) = writing.filter(|w| w.sweeps) {
                let key = Key::Shard(id.clone());
                cx.note(NodeEvent::GcFailed { key, error });
            }
            let again = cx.later(cx.config.timing.renew_retry_interval);
            cx.timers.set_sooner(Timer::Plan, again);
        } else {
            self.plan_soon(cx);
        }
    }
}
