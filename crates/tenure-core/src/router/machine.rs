//! All shards of a router together: what is known of their owners' sessions, when each wants to be asked again, and what the
//! router's session is to say of what it holds.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Action, Event, KnownRefusal, OwnerSessionState, RecordVersion, RefusalDecision, RoutedShard,
    RouterTiming, ShardObservation, Step,
};
use crate::ids::{SessionId, ShardId};
use crate::record::HeldByRouter;
use crate::rules::{Mutant, Rules};
use crate::time::Time;

/// A refusal, as the request that met it tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestRefusal {
    /// What the request was sent by.
    pub sent_by: RecordVersion,
    /// Who owns the shard, by the word of whoever refused.
    pub owner: Option<SessionId>,
    /// How new that word is.
    pub mark: RecordVersion,
    /// Whether the request followed a refusal before.
    pub followed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    id: ShardId,
    shard: RoutedShard,
    wake: Option<Time>,
}

/// The machines of all shards, by the keys that their driver knows them by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouterMachine<K> {
    rules: Rules,
    pace: RouterTiming,
    /// Where the shards' counts of holds begin.
    holds: u64,
    shards: BTreeMap<K, Entry>,
    sessions: BTreeMap<SessionId, OwnerSessionState>,
    timers: BTreeSet<(Time, K)>,
    held: HeldByRouter,
    /// Since when what is held is to be told, and whether anybody waits for it.
    publish: Option<(Time, bool)>,
    out: Vec<(K, Action)>,
}

impl<K: Copy + Ord> RouterMachine<K> {
    /// A router that knows nothing.
    pub fn new(rules: Rules) -> Self {
        Self::with_pace(rules, RouterTiming::default())
    }

    /// The same, with waits of one's own.
    pub fn with_pace(rules: Rules, pace: RouterTiming) -> Self {
        Self {
            rules,
            pace,
            holds: 0,
            shards: BTreeMap::new(),
            sessions: BTreeMap::new(),
            timers: BTreeSet::new(),
            held: HeldByRouter::new(),
            publish: None,
            out: Vec::new(),
        }
    }

    /// The same, with counts of holds that begin here: for model checkers, which have to tell them from everything else.
    pub fn counting_from(self, holds: u64) -> Self {
        Self { holds, ..self }
    }

    /// What transports are to do, in this order: everything since this was asked last. [`Action::Publish`] and
    /// [`Action::Retract`] are not among it: see [`Self::tick`].
    pub fn take_actions(&mut self) -> Vec<(K, Action)> {
        std::mem::take(&mut self.out)
    }

    /// When [`Self::tick`] is wanted at the latest.
    pub fn wake(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let publish = self.publish.map(|(at, _)| at);
        timer.into_iter().chain(publish).min()
    }

    /// One shard.
    pub fn shard(&self, at: K) -> Option<&RoutedShard> {
        self.shards.get(&at).map(|kept| &kept.shard)
    }

    /// What is known of a session.
    pub fn reach(&self, session: SessionId) -> OwnerSessionState {
        self.sessions.get(&session).copied().unwrap_or_default()
    }

    /// A shard's record says this.
    pub fn seen(&mut self, now: Time, at: K, id: &ShardId, sight: ShardObservation) {
        let (rules, pace, holds) = (self.rules, self.pace, self.holds);
        self.shards.entry(at).or_insert_with(|| Entry {
            id: id.clone(),
            shard: RoutedShard::with(rules, pace, holds),
            wake: None,
        });
        let reach = sight
            .owner
            .map_or(OwnerSessionState::Unknown, |s| self.reach(s));
        self.step(now, at, Event::Seen(sight, reach));
    }

    /// Notes the state of a session in the view of the router's node. A session that has ended can only become live again if
    /// the store was restored under running processes.
    pub fn session(&mut self, now: Time, session: SessionId, reach: OwnerSessionState) {
        let known = self.reach(session);
        let stays_ended =
            self.rules.broken_by(Mutant::EndedForGood) && known == OwnerSessionState::Ended;
        if known == reach || stays_ended {
            return;
        }
        self.sessions.insert(session, reach);
        let owned = |(at, kept): (&K, &Entry)| (kept.shard.owner() == Some(session)).then_some(*at);
        let owned: Vec<K> = self.shards.iter().filter_map(owned).collect();
        for at in owned {
            self.step(now, at, Event::Reach(reach));
        }
    }

    /// Something happened to a shard.
    pub fn step(&mut self, now: Time, at: K, event: Event) {
        if let Some(kept) = self.shards.get_mut(&at) {
            let step = kept.shard.step(now, event);
            self.carry_out(now, at, step);
        }
    }

    /// A request for a shard was refused: says what it is to do.
    pub fn refused(&mut self, now: Time, at: K, refused: &RequestRefusal) -> RefusalDecision {
        let refusal = KnownRefusal {
            sent_by: refused.sent_by,
            owner: refused.owner.map(|owner| (owner, self.reach(owner))),
            mark: refused.mark,
            followed: refused.followed,
        };
        let Some(kept) = self.shards.get_mut(&at) else {
            return RefusalDecision::Wait;
        };
        let (verdict, step) = kept.shard.refused(now, &refusal);
        if verdict == RefusalDecision::Wait {
            self.carry_out(now, at, step);
        }
        verdict
    }

    /// Time has passed. If the router's session is to say something new of what is held, says what, and whether somebody
    /// waits to hear it.
    ///
    /// Whoever has more to tell tells it first: one word then says all of it. Nobody is waited for: requests are held
    /// meanwhile, and what comes a little later is told together while the word is on its way.
    pub fn tick(&mut self, now: Time) -> Option<(HeldByRouter, bool)> {
        while let Some((wake, at)) = self.timers.first().copied()
            && wake <= now
        {
            self.timers.pop_first();
            if let Some(kept) = self.shards.get_mut(&at) {
                kept.wake = None;
            }
            self.step(now, at, Event::Tick);
        }
        let (_, news) = self.publish.take()?;
        Some((self.held.clone(), news && !self.held.is_empty()))
    }

    fn carry_out(&mut self, now: Time, at: K, step: Step) {
        let Some(kept) = self.shards.get_mut(&at) else {
            return;
        };
        if let Some(wake) = kept.wake.take() {
            self.timers.remove(&(wake, at));
        }
        if let Some(wake) = step.wake {
            kept.wake = Some(wake);
            self.timers.insert((wake, at));
        }
        let id = kept.id.clone();
        for action in step.actions {
            match action {
                Action::Publish(mv) => {
                    let shards = self.held.entry(id.keyspace.clone()).or_default();
                    shards.insert(id.shard.clone(), mv);
                    self.publish_soon(now, true);
                }
                Action::Retract => {
                    if let Some(shards) = self.held.get_mut(&id.keyspace) {
                        shards.remove(&id.shard);
                        if shards.is_empty() {
                            self.held.remove(&id.keyspace);
                        }
                    }
                    self.publish_soon(now, false);
                }
                action => self.out.push((at, action)),
            }
        }
    }

    fn publish_soon(&mut self, now: Time, news: bool) {
        let (_, told) = self.publish.get_or_insert((now, false));
        *told |= news;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::{Epoch, KeyspaceName, ShardName};
    use crate::record::MovePhase;

    const OWNER: SessionId = SessionId(1);

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn id(n: u32) -> ShardId {
        let keyspace = KeyspaceName::new("orders").unwrap();
        ShardId::new(keyspace, ShardName::index(n))
    }

    fn sight(rev: u64, moving: Option<(u64, MovePhase)>) -> ShardObservation {
        let epoch = Epoch(1);
        ShardObservation {
            mark: RecordVersion { epoch, rev },
            owner: Some(OWNER),
            serving: true,
            moving,
        }
    }

    /// Shards that are served, with nothing in flight.
    fn keeper(shards: u32) -> RouterMachine<u32> {
        let mut keeper = RouterMachine::new(Rules::sound());
        keeper.session(ms(0), OWNER, OwnerSessionState::Live);
        for n in 0..shards {
            keeper.seen(ms(0), n, &id(n), sight(1, None));
            keeper.step(ms(0), n, Event::Drained(1));
        }
        keeper.take_actions();
        keeper
    }

    #[test]
    fn one_word_tells_of_all_moves_that_come_together() {
        let mut keeper = keeper(3);
        for n in 0..3 {
            let freezing = Some((100 + u64::from(n), MovePhase::Freezing));
            keeper.seen(ms(1), n, &id(n), sight(2, freezing));
        }
        assert_eq!(keeper.wake(), Some(ms(1)));
        let (held, news) = keeper.tick(ms(1)).unwrap();
        let shards = &held[&id(0).keyspace];
        assert!(news && shards.len() == 3 && shards[&id(1).shard] == 101);
        assert_eq!(keeper.tick(ms(9)), None, "told once");
    }

    #[test]
    fn what_is_over_before_it_is_told_is_no_news() {
        let mut keeper = keeper(1);
        let freezing = Some((100, MovePhase::Freezing));
        keeper.seen(ms(1), 0, &id(0), sight(2, freezing));
        keeper.seen(ms(1), 0, &id(0), sight(3, None));
        let (held, news) = keeper.tick(ms(2)).unwrap();
        assert!(held.is_empty() && !news);
    }

    #[test]
    fn a_session_that_ends_holds_all_of_its_shards() {
        let mut keeper = keeper(2);
        keeper.session(ms(1), OWNER, OwnerSessionState::Ended);
        let held: Vec<u32> = keeper.take_actions().into_iter().map(|(n, _)| n).collect();
        assert_eq!(
            (keeper.reach(OWNER), held),
            (OwnerSessionState::Ended, vec![0, 1])
        );
    }

    #[test]
    fn shards_of_a_session_that_a_restored_store_brings_back_are_served_again() {
        let mut keeper = keeper(2);
        keeper.session(ms(1), OWNER, OwnerSessionState::Ended);
        keeper.take_actions();
        keeper.session(ms(2), OWNER, OwnerSessionState::Live);
        let flushed = |(n, action)| (action == Action::Flush).then_some(n);
        let flushed: Vec<u32> = keeper
            .take_actions()
            .into_iter()
            .filter_map(flushed)
            .collect();
        assert_eq!(
            (keeper.reach(OWNER), flushed),
            (OwnerSessionState::Live, vec![0, 1])
        );
    }

    #[test]
    fn a_shard_that_was_refused_is_tried_when_its_time_has_come() {
        let mut keeper = keeper(1);
        let epoch = Epoch(1);
        let turned_away = RequestRefusal {
            sent_by: RecordVersion { epoch, rev: 1 },
            owner: None,
            mark: RecordVersion::default(),
            followed: false,
        };
        assert_eq!(
            keeper.refused(ms(5), 0, &turned_away),
            RefusalDecision::Wait
        );
        assert_eq!(keeper.wake(), Some(ms(5) + Duration::from_millis(1)));
        keeper.take_actions();
        keeper.tick(ms(6));
        let actions = keeper.take_actions();
        assert!(actions.contains(&(0, Action::FlushOne)), "{actions:?}");
    }
}
