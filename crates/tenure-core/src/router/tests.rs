//! What a router does with one shard, case by case.

use super::*;

const OWNER: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

fn ms(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn mark(epoch: u64, rev: u64) -> RecordVersion {
    let epoch = Epoch(epoch);
    RecordVersion { epoch, rev }
}

fn held(owner: SessionId, mark: RecordVersion) -> Event {
    sight(Some(owner), mark, true, None)
}

fn moving(phase: MovePhase, mark: RecordVersion) -> Event {
    sight(
        Some(OWNER),
        mark,
        phase != MovePhase::Sealed,
        Some((77, phase)),
    )
}

fn sight(
    owner: Option<SessionId>,
    mark: RecordVersion,
    serving: bool,
    moving: Option<(u64, MovePhase)>,
) -> Event {
    let sight = ShardObservation {
        mark,
        owner,
        serving,
        moving,
    };
    Event::Seen(sight, OwnerSessionState::Live)
}

/// A shard that is served, with requests under way.
fn serving() -> RoutedShard {
    let mut shard = RoutedShard::new();
    let step = shard.step(ms(0), held(OWNER, mark(1, 1)));
    assert_eq!(step.actions, [Action::Switch(OWNER), Action::Flush]);
    shard
}

fn actions(shard: &mut RoutedShard, at: u64, event: Event) -> Vec<Action> {
    shard.step(ms(at), event).actions
}

fn refusal(sent_by: RecordVersion, told: RecordVersion, owner: Option<SessionId>) -> KnownRefusal {
    KnownRefusal {
        sent_by,
        owner: owner.map(|session| (session, OwnerSessionState::Live)),
        mark: told,
        followed: false,
    }
}

#[test]
fn a_router_that_knows_nothing_holds() {
    let mut shard = RoutedShard::new();
    assert_eq!(shard.holding(), Some(HoldReason::Unknown));
    assert_eq!(actions(&mut shard, 0, Event::Tick), []);
    let free = sight(None, mark(1, 1), false, None);
    let expected = [Action::Hold(HoldReason::Unowned)];
    assert_eq!(actions(&mut shard, 1, free), expected);
    let loading = sight(Some(OWNER), mark(2, 2), false, None);
    let expected = [Action::Hold(HoldReason::Loading)];
    assert_eq!(actions(&mut shard, 2, loading), expected);
    let expected = [Action::Switch(OWNER), Action::Flush];
    assert_eq!(actions(&mut shard, 3, held(OWNER, mark(2, 3))), expected);
}

#[test]
fn a_move_is_published_once_nothing_is_in_flight_and_retracted_when_it_is_over() {
    let mut shard = serving();
    assert_eq!(
        actions(&mut shard, 1, moving(MovePhase::Warming, mark(1, 2))),
        []
    );
    let freezing = moving(MovePhase::Freezing, mark(1, 3));
    let expected = [Action::Hold(HoldReason::Freezing), Action::Drain(1)];
    assert_eq!(actions(&mut shard, 2, freezing.clone()), expected);
    assert_eq!(actions(&mut shard, 3, freezing), [], "told twice");
    assert_eq!(
        actions(&mut shard, 4, Event::Drained(0)),
        [],
        "of an older hold"
    );
    let expected = [Action::Publish(77)];
    assert_eq!(actions(&mut shard, 5, Event::Drained(1)), expected);
    assert_eq!(
        actions(&mut shard, 6, Event::Drained(1)),
        [],
        "reported twice"
    );
    let sealed = moving(MovePhase::Sealed, mark(1, 4));
    let expected = [Action::Hold(HoldReason::Sealed)];
    assert_eq!(actions(&mut shard, 7, sealed), expected);
    let expected = [Action::Switch(OTHER), Action::Flush, Action::Retract];
    assert_eq!(actions(&mut shard, 8, held(OTHER, mark(2, 5))), expected);
}

#[test]
fn a_move_that_is_called_off_flushes_to_the_owner_that_stayed() {
    let mut shard = serving();
    shard.step(ms(1), moving(MovePhase::Freezing, mark(1, 3)));
    shard.step(ms(2), Event::Drained(1));
    let expected = [Action::Flush, Action::Retract];
    assert_eq!(actions(&mut shard, 3, held(OWNER, mark(1, 4))), expected);
    assert_eq!(shard.holding(), None);
}

/// Seed 200039571: a router that ignored a lower mark held all requests for good.
#[test]
fn a_restored_store_brings_a_lower_mark_and_is_believed() {
    let mut shard = serving();
    let unowned = sight(None, mark(6, 77), false, None);
    let expected = [Action::Hold(HoldReason::Unowned), Action::Drain(1)];
    assert_eq!(actions(&mut shard, 1, unowned), expected);
    shard.step(ms(2), Event::Drained(1));
    let expected = [Action::Switch(OTHER), Action::Flush];
    assert_eq!(actions(&mut shard, 3, held(OTHER, mark(3, 7))), expected);
    assert_eq!((shard.known(), shard.holding()), (mark(3, 7), None));
}

#[test]
fn what_was_in_flight_before_a_hold_settles_before_the_flush_but_not_for_ever() {
    let mut shard = serving();
    shard.step(ms(1), moving(MovePhase::Freezing, mark(1, 3)));
    let step = shard.step(ms(2), held(OWNER, mark(1, 4)));
    assert_eq!((step.actions, step.wake), (vec![], Some(ms(22))));
    let mut other = shard.clone();
    assert_eq!(
        actions(&mut shard, 3, Event::Drained(1)),
        [Action::Flush],
        "all settled"
    );
    assert_eq!(actions(&mut other, 22, Event::Tick), [Action::Flush]);
    assert_eq!(other.holding(), None);
}

#[test]
fn a_refusal_is_followed_once_and_only_to_newer_knowledge() {
    let mut shard = serving();
    let newer = refusal(mark(1, 1), mark(2, 5), Some(OTHER));
    let (verdict, step) = shard.refused(ms(1), &newer);
    assert_eq!(
        (verdict, step),
        (RefusalDecision::Follow(OTHER), Step::default()),
        "nobody else is kept"
    );
    let again = KnownRefusal {
        followed: true,
        ..newer.clone()
    };
    let (verdict, step) = shard.clone().refused(ms(1), &again);
    assert_eq!(verdict, RefusalDecision::Wait);
    assert_eq!(step.actions[0], Action::Hold(HoldReason::Refused));
    let nowhere = KnownRefusal {
        owner: Some((OTHER, OwnerSessionState::Unknown)),
        ..newer
    };
    assert_eq!(
        shard.clone().refused(ms(1), &nowhere).0,
        RefusalDecision::Wait
    );
    let same = refusal(mark(1, 1), mark(1, 1), Some(OTHER));
    assert_eq!(shard.refused(ms(1), &same).0, RefusalDecision::Wait);
}

#[test]
fn a_refusal_by_older_knowledge_than_what_is_known_holds_nobody() {
    let mut shard = serving();
    shard.step(ms(1), held(OTHER, mark(2, 5)));
    let old = refusal(mark(1, 1), mark(1, 1), None);
    assert_eq!(
        shard.refused(ms(2), &old),
        (RefusalDecision::Wait, Step::default()),
        "it goes to the new owner from its place"
    );
    assert_eq!(shard.holding(), None);
}

#[test]
fn an_owner_that_refuses_what_it_should_take_is_tried_by_one_request_at_a_time_with_growing_pauses()
{
    let mut shard = serving();
    let refused = refusal(mark(1, 1), mark(1, 1), None);
    let (_, step) = shard.refused(ms(10), &refused);
    assert_eq!(
        step.actions,
        [Action::Hold(HoldReason::Refused), Action::Drain(1)]
    );
    assert_eq!(step.wake, Some(ms(11)));
    let step = shard.step(ms(11), Event::Tick);
    assert_eq!(step.actions, [Action::FlushOne, Action::Drain(2)]);
    assert_eq!(step.wake, Some(ms(13)));
    let (verdict, step) = shard.refused(ms(12), &refused);
    assert_eq!((verdict, step.wake), (RefusalDecision::Wait, Some(ms(13))));
    let step = shard.step(ms(13), Event::Tick);
    assert_eq!(step.actions, [Action::FlushOne, Action::Drain(3)]);
    assert_eq!(step.wake, Some(ms(17)));
    shard.step(ms(14), Event::Drained(3));
    assert_eq!(actions(&mut shard, 14, Event::Answered), [Action::Flush]);
    assert_eq!(shard.holding(), None);
}

#[test]
fn a_newer_record_ends_a_refusal() {
    let mut shard = serving();
    shard.refused(ms(10), &refusal(mark(1, 1), mark(1, 1), None));
    shard.step(ms(10), Event::Drained(1));
    let expected = [Action::Switch(OTHER), Action::Flush];
    assert_eq!(actions(&mut shard, 10, held(OTHER, mark(2, 2))), expected);
}

#[test]
fn a_shard_whose_owner_is_gone_or_cannot_be_found_is_held() {
    let mut shard = serving();
    let expected = [Action::Hold(HoldReason::OwnerEnded), Action::Drain(1)];
    assert_eq!(
        actions(&mut shard, 1, Event::Reach(OwnerSessionState::Ended)),
        expected
    );
    assert_eq!(
        actions(&mut shard, 2, Event::Reach(OwnerSessionState::Live)),
        []
    );
    let mut unfound = RoutedShard::new();
    let Event::Seen(sight, _) = held(OWNER, mark(1, 1)) else {
        unreachable!()
    };
    let seen = Event::Seen(sight, OwnerSessionState::Unknown);
    let expected = [Action::Hold(HoldReason::Unreachable)];
    assert_eq!(actions(&mut unfound, 1, seen), expected);
    let expected = [Action::Switch(OWNER), Action::Flush];
    assert_eq!(
        actions(&mut unfound, 2, Event::Reach(OwnerSessionState::Live)),
        expected
    );
}

#[test]
fn a_second_move_is_published_although_the_first_was_never_seen_to_end() {
    let mut shard = serving();
    shard.step(ms(1), moving(MovePhase::Freezing, mark(1, 3)));
    shard.step(ms(2), Event::Drained(1));
    let next = Some((78, MovePhase::Freezing));
    let again = sight(Some(OWNER), mark(1, 6), true, next);
    assert_eq!(actions(&mut shard, 3, again), [Action::Publish(78)]);
}
