//! Shards that this node should own, by the assignment mode of their keyspace.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::assign::{
    FairShareNode, FairShares, OwnedCounts, Ranking, ShardLimit, greedy_surplus, rank,
};
use crate::hash::shard_number;
use crate::ids::{KeyspaceName, NodeName, ShardId};
use crate::plan::{Decision, LiveRecords, NoMemory, PlanNode, PlanSettings, Planner, ViewChange};
use crate::reason::Reason;
use crate::record::{AssignedBy, NodeMode, Ownership, Role, ShardRecord};
use crate::rules::Mutant;
use crate::time::Time;

use super::context::Ctx;
use super::membership::{KeyspaceMember, Membership};
use super::shards::Slots;
use super::{Life, election};

/// State derived from the members and records, recomputed when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Assignment {
    /// Best-ranked node of each shard that no node failed to load. Depends on the members alone.
    winners: BTreeMap<ShardId, Option<NodeName>>,
    greedy: BTreeMap<KeyspaceName, Option<FairShareChanges>>,
    /// Shards that the leader would assign to this shadow node if the node took part.
    simulated: BTreeMap<KeyspaceName, Option<BTreeSet<ShardId>>>,
}

/// Shards that a node takes and gives in a fair-share keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FairShareChanges {
    take: BTreeSet<ShardId>,
    give: BTreeMap<ShardId, NodeName>,
}

impl Assignment {
    pub(super) fn stale(&mut self, keyspace: &KeyspaceName) {
        if let Some(plan) = self.greedy.get_mut(keyspace) {
            *plan = None;
        }
        if let Some(plan) = self.simulated.get_mut(keyspace) {
            *plan = None;
        }
    }

    /// Forgets the winners of a keyspace whose nodes have changed.
    pub(super) fn new_ranking(&mut self, keyspace: &KeyspaceName) {
        self.winners.retain(|id, _| id.keyspace != *keyspace);
    }

    pub(super) fn all_stale(&mut self) {
        self.greedy.values_mut().for_each(|plan| *plan = None);
        self.simulated.values_mut().for_each(|plan| *plan = None);
    }

    /// Returns the keyspaces for which a fair share was derived.
    pub(super) fn greedy(&self) -> Vec<KeyspaceName> {
        self.greedy.keys().cloned().collect()
    }

    pub(super) fn depends_on_shards(&self, keyspace: &KeyspaceName) -> bool {
        self.greedy.contains_key(keyspace) || self.simulated.contains_key(keyspace)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KeyspaceAssignment<'a> {
    /// The node takes and gives the shards of these changes.
    FairShare(&'a FairShareChanges),
    /// The node takes shards that the leader assigned to it. The fallback without a leader begins after this wait.
    ByLeader(Duration),
    /// The node takes the shards for which it ranks best.
    ByRank,
}

impl Assignment {
    /// Returns the assignment in a keyspace that exists and that this node serves, with the keyspace's minimum generation. Returns
    /// `None` if the assignment has not been derived yet.
    pub(super) fn keyspace_assignment(
        &self,
        cx: &Ctx,
        keyspace: &KeyspaceName,
    ) -> Option<(KeyspaceAssignment<'_>, u32)> {
        let record = cx.view.keyspaces.get(keyspace)?;
        if record.deleted || !cx.config.keyspaces.contains_key(keyspace) {
            return None;
        }
        let wanted = match self.greedy.get(keyspace) {
            Some(plan) => KeyspaceAssignment::FairShare(plan.as_ref()?),
            None if record.assigned_by == AssignedBy::Leader => {
                KeyspaceAssignment::ByLeader(fallback_wait(cx))
            }
            None => KeyspaceAssignment::ByRank,
        };
        Some((wanted, record.min_generation))
    }

    /// Returns `true` if this node certainly does not want a shard that another live node owns. `since` is the time since which this
    /// ownership is known. Returns `false` if the answer needs a full evaluation.
    pub(super) fn leaves_to_owner(
        &self,
        cx: &Ctx,
        wanted: KeyspaceAssignment<'_>,
        id: &ShardId,
        record: &ShardRecord,
        since: Time,
    ) -> bool {
        let me = &cx.config.name;
        match wanted {
            KeyspaceAssignment::FairShare(plan) => !plan.take.contains(id),
            KeyspaceAssignment::ByLeader(patience) => {
                record.assigned.as_ref() != Some(me) && cx.now < since + patience
            }
            KeyspaceAssignment::ByRank => {
                let winner = self.winners.get(id).and_then(Option::as_ref);
                record.failures.is_empty() && winner.is_some_and(|winner| winner != me)
            }
        }
    }

    /// Returns `true` if this node certainly keeps a shard that it owns, `false` if the answer needs a full evaluation.
    pub(super) fn keeps_owned(
        &self,
        cx: &Ctx,
        membership: &Membership,
        wanted: KeyspaceAssignment<'_>,
        id: &ShardId,
        record: &ShardRecord,
    ) -> bool {
        let me = &cx.config.name;
        match wanted {
            KeyspaceAssignment::FairShare(plan) => !plan.give.contains_key(id),
            KeyspaceAssignment::ByLeader(_) => record.assigned.as_ref().is_none_or(|to| to == me),
            KeyspaceAssignment::ByRank => {
                let winner = self.winners.get(id).and_then(Option::as_ref);
                record.failures.is_empty() && winner == Some(me)
                    || membership.is_cordoned(cx, &id.keyspace)
            }
        }
    }

    /// Returns the cordoned node that keeps a shard. A cordoned node also keeps the shards that it owned before it restarted or lost
    /// its session.
    fn cordoned_owner<'a>(
        &'a self,
        _cx: &Ctx,
        membership: &'a Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<&'a NodeName> {
        let seat = membership.of(&id.keyspace).seat(&record.owner()?.node)?;
        seat.cordoned.then_some(&seat.name)
    }

    /// Returns whether `more` further shards would exceed this node's capacity. The count includes shards that the node owns, claims or
    /// receives by a move. Where a leader plans, the leader counts. In `rendezvous` keyspaces capacity has no effect, because no node
    /// takes a shard that its winner leaves.
    pub(super) fn lacks_room(
        &self,
        cx: &Ctx,
        slots: &Slots,
        keyspace: &KeyspaceName,
        more: usize,
    ) -> bool {
        let Some(most) = cx.config.capacity else {
            return false;
        };
        cx.view.is_greedy(keyspace) && self.count_mine(cx, slots, |_| true) + more > most as usize
    }

    /// Counts this node's shards in the selected keyspaces: owned, being claimed, or moving to this node.
    fn count_mine(&self, cx: &Ctx, slots: &Slots, of: impl Fn(&KeyspaceName) -> bool) -> usize {
        let me = cx.session();
        let all = cx.view.shards.iter().filter(|(id, _)| of(&id.keyspace));
        all.filter(|(id, seen)| {
            let moving = seen.record.ownership.moving();
            let slot = slots.get(id);
            cx.is_mine(&seen.record)
                || moving.is_some_and(|(mv, _)| Some(mv.to.session) == me)
                || slot.is_some_and(|slot| slot.is_claiming())
        })
        .count()
    }

    /// Recomputes the state derived for a keyspace if it is stale.
    pub(super) fn derive(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        slots: &Slots,
        keyspace: &KeyspaceName,
    ) {
        let runs = matches!(cx.life, Life::Running | Life::Stopping)
            && cx.config.keyspaces.contains_key(keyspace);
        if !runs || matches!(self.greedy.get(keyspace), Some(Some(_))) {
            return;
        }
        if simulates_plan(cx, keyspace) && !matches!(self.simulated.get(keyspace), Some(Some(_))) {
            let plan = self.simulate_plan(cx, keyspace);
            self.simulated.insert(keyspace.clone(), Some(plan));
        }
        if cx.view.is_greedy(keyspace) {
            let plan = self.greedy_plan(cx, membership, slots, keyspace);
            self.greedy.insert(keyspace.clone(), Some(plan));
        }
    }

    /// Returns `true` if this node should take the shard as soon as a claim is possible.
    pub(super) fn should_take(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> bool {
        if let Some(Some(plan)) = self.greedy.get(&id.keyspace) {
            return plan.take.contains(id);
        }
        if simulates_plan(cx, &id.keyspace) {
            let plan = self.simulated.get(&id.keyspace);
            return plan.is_some_and(|plan| plan.as_ref().is_some_and(|p| p.contains(id)));
        }
        if cx.view.is_coordinated(&id.keyspace) {
            return self.is_meant_for_me(cx, membership, id, record);
        }
        self.find_winner(membership, id, record);
        let keeper = self.cordoned_owner(cx, membership, id, record);
        keeper.or_else(|| self.winner(cx, membership, id, record)) == Some(&cx.config.name)
    }

    /// Returns the shards that the leader would eventually assign to this shadow node if the node took part.
    fn simulate_plan(&self, cx: &Ctx, keyspace: &KeyspaceName) -> BTreeSet<ShardId> {
        let settings = cx
            .view
            .keyspaces
            .get(keyspace)
            .map(|k| k.planning.settings());
        let ended = |session| cx.ended(session);
        let live = LiveRecords::new(&cx.view, &ended);
        let (Some(Ok(rules)), Ok(view)) = (
            settings.map(PlanSettings::check),
            live.plan_view(keyspace, &mut NoMemory),
        ) else {
            return BTreeSet::new();
        };
        let config = &cx.config;
        let mut planner = Planner::new(view, rules.at_once());
        planner.apply(ViewChange::Node(PlanNode {
            weight: config.weight,
            zone: config.zone.clone(),
            labels: config.labels.clone(),
            capacity: config.capacity,
            ..PlanNode::new(config.name.clone(), Time::ZERO)
        }));
        let plan = planner.plan(cx.now);
        let view = planner.view();
        let mine = plan.actions().filter(|decision| {
            let to = match decision {
                Decision::Intend { to, .. } | Decision::Move { to, .. } => *to,
                _ => return false,
            };
            view.node(to).name == config.name
        });
        mine.map(|decision| view.shard_id(decision.shard()))
            .collect()
    }

    /// Returns `true` if the leader assigned a shard to this node. If no leader has assigned it for too long, returns `true` if this
    /// node is the one to claim it without a leader.
    fn is_meant_for_me(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> bool {
        let me = &cx.config.name;
        let member = membership.of(&id.keyspace).seat(me).is_some();
        // A leader assigns a shard to a node that failed to load it only if all nodes have failed.
        if member && record.assigned.as_ref() == Some(me) {
            return true;
        }
        // This node does not wait for a shard with a live owner, however old the leader's assignment is.
        let live = record.owner().is_some_and(|o| !cx.ended(o.session));
        if live && !cx.config.rules.broken_by(Mutant::RetriesUsedUp) {
            return false;
        }
        let since = cx.view.shards.seen(id).map_or(cx.now, |s| s.since);
        if cx.now < fallback_claim_at(cx, record, since) {
            return false;
        }
        self.fallback_winner(cx, membership, id, record) == Some(&cx.config.name)
    }

    /// Returns the target and the reason for releasing a shard that this node owns, or `None` if the node keeps the shard.
    pub(super) fn release_target(
        &mut self,
        cx: &mut Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<(Option<NodeName>, Reason)> {
        let coordinated = cx.view.is_coordinated(&id.keyspace);
        let planned = self
            .planned_target(cx, membership, id, record)
            .filter(|_| coordinated);
        if matches!(cx.life, Life::Stopping) {
            let to = planned.or_else(|| self.winner_without_me(cx, membership, id, record));
            return Some((to, Reason::NodeStopping));
        }
        if cx.pause.is_active(cx.now) {
            return None;
        }
        if !is_active(cx) {
            // The leader limits the number of concurrent moves. Shards that it has not moved within four ttl move without it.
            let told = cx.view.nodes.seen(&cx.config.name);
            let patient = told.is_some_and(|n| cx.now < n.since + cx.config.timing.ttl * 4);
            let led = coordinated && election::is_led(cx) && patient;
            let to = match planned {
                Some(to) => to,
                None if led => return None,
                None => self.winner_without_me(cx, membership, id, record)?,
            };
            return Some((Some(to), Reason::NodeDraining));
        }
        if coordinated {
            return planned.map(|to| (Some(to), Reason::Planned));
        }
        let since = membership.of(&id.keyspace).since;
        if cx.now < since + cx.config.timing.assignment_settle_time {
            return None;
        }
        if membership.is_cordoned(cx, &id.keyspace) {
            return None;
        }
        let to = match self.greedy.get(&id.keyspace) {
            Some(Some(plan)) => plan.give.get(id).cloned(),
            Some(None) => None,
            None => {
                self.find_winner(membership, id, record);
                let winner = self.winner(cx, membership, id, record);
                winner.filter(|name| **name != cx.config.name).cloned()
            }
        };
        to.map(|to| (Some(to), Reason::Rebalance))
    }

    /// Computes the winner of a shard without failed loads, for [`Self::winner`].
    fn find_winner(&mut self, membership: &Membership, id: &ShardId, record: &ShardRecord) {
        if record.failures.is_empty() && !self.winners.contains_key(id) {
            let ranking = &membership.of(&id.keyspace).ranking;
            let winner = ranking.winner(id, |_| true).cloned();
            self.winners.insert(id.clone(), winner);
        }
    }

    /// Returns the node that should own the shard: the best-ranked one that has not failed to load it.
    fn winner<'a>(
        &'a self,
        cx: &Ctx,
        membership: &'a Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<&'a NodeName> {
        if !record.failures.is_empty() {
            let allowed = |name: &NodeName| !membership.has_failed(cx, id, record, name);
            return membership.of(&id.keyspace).ranking.winner(id, allowed);
        }
        self.winners.get(id)?.as_ref()
    }

    fn winner_without_me(
        &self,
        cx: &Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<NodeName> {
        let me = &cx.config.name;
        let allowed = |name: &NodeName| name != me && !membership.has_failed(cx, id, record, name);
        if cx.config.rules.broken_by(Mutant::HandedToStranger) {
            let anybody = Ranking::new(&membership.members);
            return anybody
                .winner(id, allowed)
                .filter(|name| *name != me)
                .cloned();
        }
        let best = membership.of(&id.keyspace).ranking.winner(id, allowed);
        best.filter(|name| *name != me).cloned()
    }

    /// Returns the maximum number of shards of a keyspace for each of its nodes: the node's capacity less its shards of other
    /// keyspaces.
    fn rooms(
        &self,
        cx: &Ctx,
        membership: &Membership,
        slots: &Slots,
        keyspace: &KeyspaceName,
    ) -> Vec<usize> {
        let seats = &membership.of(keyspace).seats;
        let mut elsewhere = OwnedCounts::default();
        if seats.iter().any(|seat| seat.capacity.is_some()) {
            let others = cx.view.shards.iter();
            for (_, seen) in others.filter(|(id, _)| id.keyspace != *keyspace) {
                if let Some(owner) = seen.record.owner() {
                    elsewhere.add(&owner.node);
                }
            }
        }
        let most = |seat: &KeyspaceMember| match seat.capacity {
            None => usize::MAX,
            Some(most) => {
                let mine = seat.name == cx.config.name;
                let has = match mine {
                    true => self.count_mine(cx, slots, |other| other != keyspace),
                    false => elsewhere.of(&seat.name),
                };
                (most as usize).saturating_sub(has)
            }
        };
        seats.iter().map(most).collect()
    }

    /// Divides the shards of a keyspace among its nodes. `owned` counts the shards that each node has, `rooms` limits them.
    fn shares(
        &self,
        _cx: &Ctx,
        membership: &Membership,
        keyspace: &KeyspaceName,
        shards: usize,
        owned: &OwnedCounts<'_>,
        rooms: &[usize],
    ) -> FairShares {
        let seats = &membership.of(keyspace).seats;
        let sharers = seats.iter().zip(rooms).map(|(seat, most)| FairShareNode {
            node: &seat.name,
            weight: seat.weight,
            limit: match seat.cordoned {
                true => ShardLimit::Fixed(owned.of(&seat.name)),
                false => ShardLimit::Most(*most),
            },
        });
        FairShares::new(keyspace, shards, sharers)
    }

    /// Computes this node's changes: claimable shards up to its fair share, and shards above the share for nodes below theirs.
    fn greedy_plan(
        &self,
        cx: &Ctx,
        membership: &Membership,
        slots: &Slots,
        keyspace: &KeyspaceName,
    ) -> FairShareChanges {
        let me = &cx.config.name;
        let mut total = 0;
        let mut owned = OwnedCounts::default();
        let (mut held, mut mine, mut offered, mut open) = (0, Vec::new(), Vec::new(), Vec::new());
        let (mut meant, mut kept) = (Vec::new(), Vec::new());
        let mut plan = FairShareChanges::default();
        for (id, seen) in cx
            .view
            .shards
            .iter()
            .filter(|(id, _)| id.keyspace == *keyspace)
        {
            let record = &seen.record;
            if matches!(record.ownership, Ownership::Deleted) {
                continue;
            }
            total += 1;
            let claiming = || slots.get(id).is_some_and(|slot| slot.is_claiming());
            let live = record.owner().filter(|o| !cx.ended(o.session));
            let to = match live {
                Some(owner) => Some(&owner.node),
                None if claiming() => Some(me),
                None => None,
            };
            match to {
                Some(node) => {
                    if node == me {
                        held += 1;
                        if live.is_some() && record.failures.is_empty() {
                            mine.push(id);
                        }
                    }
                    owned.add(node);
                }
                None if record.quarantine.is_some() => {}
                None if let Some(keeper) = self.cordoned_owner(cx, membership, id, record) => {
                    kept.push((id, keeper))
                }
                // The shard goes to the best-ranked node without a failed load, even above that node's share.
                None if !record.failures.is_empty() => {
                    let allowed = |name: &NodeName| !membership.has_failed(cx, id, record, name);
                    if membership.of(keyspace).ranking.winner(id, allowed) == Some(me) {
                        plan.take.insert(id.clone());
                        owned.add(me);
                    }
                }
                None => match &record.assigned {
                    Some(node) => meant.push((id, node)),
                    None => open.push(id),
                },
            }
        }
        let rooms = self.rooms(cx, membership, slots, keyspace);
        for (id, keeper) in kept {
            let mut seats = membership.of(keyspace).seats.iter().zip(&rooms);
            let room = seats.find(|(seat, _)| seat.name == *keeper);
            // A node that returned with a lower capacity leaves the excess to others.
            if room.is_some_and(|(_, most)| owned.of(keeper) >= *most) {
                open.push(id);
                continue;
            }
            owned.add(keeper);
            if keeper == me {
                held += 1;
                plan.take.insert(id.clone());
            }
        }
        let shares = self.shares(cx, membership, keyspace, total, &owned, &rooms);
        for (id, node) in meant {
            // Two nodes that both saw a node below its share may have offered it too many shards. Shards within its share are left to
            // it: no other node needs them for its own share.
            if owned.of(node) >= shares.of(node) {
                open.push(id);
                continue;
            }
            owned.add(node);
            if node == me {
                offered.push(id);
            }
        }
        let room = shares.of(me).saturating_sub(held);
        if room > 0 {
            // Each node tries in a different order, so that few nodes try the same shard.
            open.sort_by_cached_key(|id| rank(shard_number(id), me));
        }
        plan.take
            .extend(offered.into_iter().chain(open).take(room).cloned());
        let surplus = held.saturating_sub(shares.of(me));
        if surplus > 0 {
            let give = greedy_surplus(me, &shares, &owned)
                .into_iter()
                .take(surplus);
            mine.sort_by_cached_key(|id| std::cmp::Reverse(rank(shard_number(id), me)));
            plan.give = mine.into_iter().cloned().zip(give).collect();
        }
        plan
    }
}

impl Assignment {
    /// Returns the node to which the leader assigned a shard that this node owns, if that is another node that may take the shard.
    pub(super) fn planned_target(
        &self,
        cx: &Ctx,
        membership: &Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<NodeName> {
        let intended = record.assigned.as_ref()?;
        let seat = membership.of(&id.keyspace).seat(intended)?;
        let fits = *intended != cx.config.name && seat.takes();
        (fits && !record.was_failed_by(seat.session)).then(|| intended.clone())
    }

    /// Returns the node that claims a shard which no leader has assigned: the best-ranked of the nodes that a leader could choose.
    pub(super) fn fallback_winner<'a>(
        &self,
        cx: &Ctx,
        membership: &'a Membership,
        id: &ShardId,
        record: &ShardRecord,
    ) -> Option<&'a NodeName> {
        let keyspace = cx.view.keyspaces.get(&id.keyspace)?;
        let labels = &keyspace.planning.required_labels;
        let fits = |name: &NodeName, forgiving: bool| {
            let Some((session, node)) = cx.view.present(name, &id.keyspace) else {
                return false;
            };
            let labelled = labels.iter().all(|(k, v)| node.labels.get(k) == Some(v));
            let room = node
                .capacity
                .is_none_or(|most| cx.view.owned_by(session) < most as usize);
            let pinned_elsewhere = record.pin.as_ref().is_some_and(|pin| pin != name);
            let failed = record.was_failed_by(session) && !forgiving;
            labelled && room && !pinned_elsewhere && !failed
        };
        // A node that failed to load the shard may try again if no other node fits. If no node fits, the shard stays unowned, and the
        // leader reports the reason.
        let best = |forgiving| {
            let ranking = &membership.of(&id.keyspace).ranking;
            let winner = ranking.winner(id, |name| fits(name, forgiving));
            winner.filter(|name| fits(name, forgiving))
        };
        best(false).or_else(|| best(true))
    }
}

/// Returns `true` if the mode of this node is `active`, or if the node's record is not known.
pub(super) fn is_active(cx: &Ctx) -> bool {
    let me = cx.view.nodes.get(&cx.config.name);
    me.is_none_or(|node| node.mode == NodeMode::Active)
}

/// Returns `true` if the leader plans for a keyspace and this node only simulates it, as a shadow node.
pub(super) fn simulates_plan(cx: &Ctx, keyspace: &KeyspaceName) -> bool {
    cx.config.role == Role::Shadow && cx.view.is_coordinated(keyspace)
}

/// Returns the time from which an unowned shard may be claimed without an assignment by the leader.
pub(super) fn fallback_claim_at(cx: &Ctx, record: &ShardRecord, since: Time) -> Time {
    let ended = record
        .owner()
        .and_then(|o| cx.view.sessions.seen(&o.session));
    let free_since = ended.map_or(since, |seen| since.max(seen.since));
    free_since + fallback_wait(cx)
}

/// Returns the time for which an unowned shard is left to the leader.
pub(super) fn fallback_wait(cx: &Ctx) -> Duration {
    cx.config.timing.ttl * if election::is_led(cx) { 8 } else { 2 }
}
