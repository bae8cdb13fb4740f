//! The router's decisions for one shard: what to hold, when that can be published, when to let go, and what a refusal means.
//!
//! A value per shard, told what the records say and what its transport reports. It never waits: through [`Step::wake`] it
//! says when it wants to be asked again. Late, repeated and crossing reports change nothing, because each names what it is an
//! answer to.
//!
//! | the record says | requests |
//! |---|---|
//! | nothing yet, or nobody owns it | are held (a router starts closed) |
//! | owned, not serving | are held |
//! | owned and serving, also while another node warms up | pass |
//! | freezing | are held; once none is in flight the move is published, and the owner need not wait any longer |
//! | sealed | are held |
//! | any newer value, owned and serving | pass, those held first: also after a move that was called off |

pub mod hold_queue;
mod limits;
mod machine;

use std::time::Duration;

use crate::ids::{Epoch, SessionId};
use crate::record::MovePhase;
use crate::rules::{Mutant, Rules};
use crate::time::Time;
use crate::view::View;
pub use limits::HoldLimits;
pub use machine::{RequestRefusal, RouterMachine};

/// How long a router waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterTiming {
    /// For how long what was in flight before a hold may still come back refused, and so go first, when the hold is over.
    pub settle: Duration,
    /// The first pause after an owner has refused what the records say it should take; doubles with each.
    pub pause_min: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
}

impl Default for RouterTiming {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(20),
            pause_min: Duration::from_millis(1),
            pause_max: Duration::from_millis(256),
        }
    }
}

impl RouterTiming {
    fn pause(self, tries: u32) -> Duration {
        let pause = self.pause_min.saturating_mul(1 << tries.min(16));
        pause.min(self.pause_max)
    }

    /// One try more, as far as that makes the pause longer.
    fn one_more(self, tries: u32) -> u32 {
        tries + u32::from(self.pause(tries) < self.pause_max)
    }
}

/// How new a piece of knowledge about a shard is: compared from top to bottom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordVersion {
    /// The shard's epoch.
    pub epoch: Epoch,
    /// Which of the record's values.
    pub rev: u64,
}

/// What a shard's record says, as far as a router cares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardObservation {
    /// How new it is.
    pub mark: RecordVersion,
    /// The session that owns the shard.
    pub owner: Option<SessionId>,
    /// Whether the owner serves.
    pub serving: bool,
    /// The move that the shard is in.
    pub moving: Option<(u64, MovePhase)>,
}

/// State of the session that owns a shard, as the records say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OwnerSessionState {
    /// Its record was not seen yet, so nobody knows where it is.
    #[default]
    Unknown,
    /// It lives, and where it can be reached is known.
    Live,
    /// It is over.
    Ended,
}

impl OwnerSessionState {
    /// State of a session in a view. A record that is missing or unreadable gives none.
    ///
    /// The view decides, not the message that brought a record: a late message changes nothing, and a session that a restored
    /// store has brought back to life is live again.
    pub fn of(view: &View, session: SessionId) -> Option<Self> {
        let record = view.sessions.get(&session)?;
        Some(match record.is_live() {
            true => Self::Live,
            false => Self::Ended,
        })
    }
}

/// Why requests for a shard are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldReason {
    /// No record of the shard was seen yet.
    Unknown,
    /// Nobody owns it.
    Unowned,
    /// Its owner is loading it.
    Loading,
    /// It is about to change hands.
    Freezing,
    /// It is changing hands.
    Sealed,
    /// Its owner's session has ended.
    OwnerEnded,
    /// Where its owner can be reached is not known.
    Unreachable,
    /// Its owner refused a request that it should take by all that is known.
    Refused,
}

impl HoldReason {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "its record has not been read yet",
            Self::Unowned => "nobody owns it",
            Self::Loading => "its owner is loading it",
            Self::Freezing => "its owner freezes it for a move",
            Self::Sealed => "it is moving to another node",
            Self::OwnerEnded => "its owner's session has ended",
            Self::Unreachable => "its owner's address is not known",
            Self::Refused => "its owner rejects requests",
        }
    }
}

/// Something that happened to a shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Its record says this, and of its owner's session this is known.
    Seen(ShardObservation, OwnerSessionState),
    /// Of its owner's session this is known now.
    Reach(OwnerSessionState),
    /// Nothing that was in flight when this hold began is any more. In answer to [`Action::Drain`].
    Drained(u64),
    /// An owner answered a request that was let go with [`Action::FlushOne`], or nobody was waiting to be.
    Answered,
    /// Time has passed.
    Tick,
}

/// Something for the transport to do with a shard, or for the session to say of it. In the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send nothing more; keep what comes.
    Hold(HoldReason),
    /// Report when nothing is in flight any more, with this number.
    Drain(u64),
    /// From now on requests go to this session.
    Switch(SessionId),
    /// Send what was kept, in order, and then what comes.
    Flush,
    /// Send the first of what was kept and report what becomes of it; go on keeping the rest.
    FlushOne,
    /// The session is to say that what comes for the shard is held during this move.
    Publish(u64),
    /// The session need no longer say so.
    Retract,
}

/// What follows from an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Step {
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// When the next [`Event::Tick`] is wanted at the latest.
    pub wake: Option<Time>,
}

/// A refusal, as the request that met it tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KnownRefusal {
    /// What the request was sent by.
    pub sent_by: RecordVersion,
    /// Who owns the shard, by the word of whoever refused, and what is known here of that session.
    pub owner: Option<(SessionId, OwnerSessionState)>,
    /// How new that word is.
    pub mark: RecordVersion,
    /// Whether the request followed a refusal before.
    pub followed: bool,
}

/// Decision on a request that an owner refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalDecision {
    /// Go to this session, once.
    Follow(SessionId),
    /// Go back to its place among those that are held.
    Wait,
}

/// An owner that refuses what it should take: it is behind, or cut off for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Refused {
    /// Version of the record that the router knew at the refusal. The refusal says nothing about any other version.
    upto: RecordVersion,
    tries: u32,
    again_at: Time,
}

/// One shard at a router.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutedShard {
    sight: Option<ShardObservation>,
    reach: OwnerSessionState,
    /// Why the transport holds, if it does.
    holding: Option<HoldReason>,
    /// Counts the times that the transport was told to send, so that a report is known for what it is about.
    hold: u64,
    drained: bool,
    published: Option<u64>,
    refused: Option<Refused>,
    /// The hold is over once nothing is in flight, or at this time.
    settling: Option<Time>,
    switched: Option<SessionId>,
    rules: Rules,
    pace: RouterTiming,
}

impl Default for RoutedShard {
    fn default() -> Self {
        Self::new()
    }
}

impl RoutedShard {
    /// A shard of which nothing is known: what comes for it is held.
    pub fn new() -> Self {
        Self::with(Rules::sound(), RouterTiming::default(), 0)
    }

    fn with(rules: Rules, pace: RouterTiming, hold: u64) -> Self {
        Self {
            rules,
            pace,
            hold,
            sight: None,
            reach: OwnerSessionState::Unknown,
            holding: Some(HoldReason::Unknown),
            drained: true,
            published: None,
            refused: None,
            settling: None,
            switched: None,
        }
    }

    /// Why requests are held; nothing if they pass.
    pub fn holding(&self) -> Option<HoldReason> {
        self.holding
    }

    /// The session that owns the shard, as far as is known.
    pub fn owner(&self) -> Option<SessionId> {
        self.sight.as_ref().and_then(|sight| sight.owner)
    }

    /// Takes an event at a time and says what to do.
    pub fn step(&mut self, now: Time, event: Event) -> Step {
        let mut actions = Vec::new();
        match event {
            Event::Seen(sight, reach) => self.seen(sight, reach),
            Event::Reach(reach) => self.reach = reach,
            Event::Drained(hold) => self.drained |= hold == self.hold,
            Event::Answered => self.refused = None,
            Event::Tick => {}
        }
        self.settle(now, &mut actions);
        Step {
            actions,
            wake: self.wake(),
        }
    }

    /// A request was refused: says what it is to do, and what follows for the others.
    ///
    /// It is followed at most once and only to newer knowledge than this router has. Else it waits until the record changes.
    /// A record that need not change (its owner has not heard yet that it owns the shard, or is cut off for a while) is
    /// tried again after growing pauses, by one request at a time.
    pub fn refused(&mut self, now: Time, refusal: &KnownRefusal) -> (RefusalDecision, Step) {
        let known = self.known();
        let older = self.rules.broken_by(Mutant::OldRefusalFollowed);
        if (older || refusal.mark > known && !refusal.followed)
            && let Some((session, OwnerSessionState::Live)) = refusal.owner
        {
            return (RefusalDecision::Follow(session), Step::default());
        }
        // Whatever was refused by older knowledge says nothing of what is known now.
        if refusal.sent_by >= known {
            let tries = self.refused.map_or(0, |refused| refused.tries);
            let pending = self.refused.filter(|refused| now < refused.again_at);
            self.refused = Some(pending.unwrap_or(Refused {
                upto: known,
                tries: self.pace.one_more(tries),
                again_at: now + self.pace.pause(tries),
            }));
        }
        let mut actions = Vec::new();
        self.settle(now, &mut actions);
        let wake = self.wake();
        (RefusalDecision::Wait, Step { actions, wake })
    }

    /// How new what is known is.
    pub fn known(&self) -> RecordVersion {
        self.sight.as_ref().map(|s| s.mark).unwrap_or_default()
    }

    /// Takes over what the view of the router's node says, which applies only newer values. A mark below the known one is that
    /// of a store that was restored, and replaces it.
    fn seen(&mut self, sight: ShardObservation, reach: OwnerSessionState) {
        if self.overlooks(&sight) {
            return;
        }
        if self.refused.is_some_and(|r| r.upto != sight.mark) {
            self.refused = None;
        }
        (self.sight, self.reach) = (Some(sight), reach);
    }

    /// Whether this value says that a move was called off, to a router that does not care.
    fn overlooks(&self, sight: &ShardObservation) -> bool {
        let frozen = self.holding == Some(HoldReason::Freezing);
        let called_off = frozen && sight.moving.is_none() && sight.mark.epoch == self.known().epoch;
        called_off && self.rules.broken_by(Mutant::HeldAfterCancel)
    }

    /// Why requests are to be held by what is known.
    fn reason(&self) -> Option<HoldReason> {
        let Some(sight) = &self.sight else {
            return Some(HoldReason::Unknown);
        };
        match (sight.owner, sight.moving) {
            (None, _) => return Some(HoldReason::Unowned),
            (_, Some((_, MovePhase::Freezing))) => return Some(HoldReason::Freezing),
            (_, Some((_, MovePhase::Sealed))) => return Some(HoldReason::Sealed),
            // Sent on before the record says that its owner serves.
            _ if self.rules.broken_by(Mutant::FlushBeforeServing) => {}
            _ if !sight.serving => return Some(HoldReason::Loading),
            _ => {}
        }
        match self.reach {
            OwnerSessionState::Ended => Some(HoldReason::OwnerEnded),
            OwnerSessionState::Unknown => Some(HoldReason::Unreachable),
            OwnerSessionState::Live => self.refused.map(|_| HoldReason::Refused),
        }
    }

    /// Brings what the transport does and what the session says in line with what is known.
    fn settle(&mut self, now: Time, actions: &mut Vec<Action>) {
        match self.reason() {
            Some(reason) => self.keep(now, reason, actions),
            None => self.let_go(now, actions),
        }
        self.publish(actions);
    }

    fn keep(&mut self, now: Time, reason: HoldReason, actions: &mut Vec<Action>) {
        self.settling = None;
        if self.holding != Some(reason) {
            self.holding = Some(reason);
            actions.push(Action::Hold(reason));
            if !self.drained {
                actions.push(Action::Drain(self.hold));
            }
        }
        let pace = self.pace;
        if let Some(refused) = &mut self.refused
            && reason == HoldReason::Refused
            && now >= refused.again_at
        {
            let again_at = now + pace.pause(refused.tries);
            (refused.tries, refused.again_at) = (pace.one_more(refused.tries), again_at);
            self.sends();
            actions.extend([Action::FlushOne, Action::Drain(self.hold)]);
        }
    }

    fn let_go(&mut self, now: Time, actions: &mut Vec<Action>) {
        let owner = self.owner();
        if self.holding.is_none() {
            return self.switch(owner, actions);
        }
        let until = *self.settling.get_or_insert(now + self.pace.settle);
        if !self.drained && now < until {
            return;
        }
        self.holding = None;
        self.settling = None;
        self.switch(owner, actions);
        self.sends();
        actions.push(Action::Flush);
    }

    fn switch(&mut self, owner: Option<SessionId>, actions: &mut Vec<Action>) {
        if let Some(owner) = owner
            && self.switched.replace(owner) != Some(owner)
        {
            actions.push(Action::Switch(owner));
        }
    }

    /// Requests go out: what was reported of those before is no longer the whole.
    fn sends(&mut self) {
        self.hold += 1;
        self.drained = false;
    }

    fn publish(&mut self, actions: &mut Vec<Action>) {
        let moving = self.sight.as_ref().and_then(|sight| sight.moving);
        let published = match moving {
            Some((mv, MovePhase::Freezing)) if self.drained => Some(mv),
            // What was said stays said until the move is over.
            Some((mv, MovePhase::Freezing | MovePhase::Sealed)) => {
                self.published.filter(|said| *said == mv)
            }
            _ => None,
        };
        if published == self.published {
            return;
        }
        self.published = published;
        actions.push(published.map_or(Action::Retract, Action::Publish));
    }

    fn wake(&self) -> Option<Time> {
        let again = self
            .refused
            .filter(|_| self.holding == Some(HoldReason::Refused))
            .map(|refused| refused.again_at);
        self.settling.or(again)
    }
}

#[cfg(test)]
mod tests;
