use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::TaskId;
use crate::retry::RetryPolicy;
use crate::task::TaskSpec;

fn at(seconds: u64) -> StoreTime {
    StoreTime::from_millis(seconds * 1000)
}

fn new(attempts: u32) -> Task {
    let spec = TaskSpec {
        payload: Payload::none(),
        priority: 5,
        attempt_timeout: None,
        claim_timeout: Duration::from_secs(30),
        retry: RetryPolicy {
            max_attempts: attempts,
            delay: Duration::from_secs(4),
            delay_max: Duration::from_secs(60),
        },
        metadata: BTreeMap::new(),
        key: None,
    };
    Task::submitted(TaskId::new("t").unwrap(), spec, at(10), at(10), Nonce(1))
}

fn worker(name: &str) -> WorkerName {
    WorkerName::new(name).unwrap()
}

fn claim(n: u64) -> Transition {
    Transition::Claim {
        claim: ClaimId(n),
        worker: worker(&format!("w{n}")),
    }
}

fn finish(n: u64) -> Transition {
    Transition::Finish {
        claim: ClaimId(n),
        result: Payload::bytes("ok"),
    }
}

fn fail(n: u64) -> Transition {
    Transition::Fail {
        claim: ClaimId(n),
        reason: "broken".to_owned(),
        for_good: false,
        after: None,
        chance: 0,
    }
}

fn expire() -> Transition {
    Transition::Expire {
        by: worker("owner"),
        chance: 0,
    }
}

/// Makes changes one after the other; each must fit.
fn after(task: Task, changes: &[(u64, Transition)]) -> Task {
    changes.iter().fold(task, |task, (seconds, change)| {
        let nonce = Nonce(task.rev + 100);
        apply(&task, change, at(*seconds), nonce).expect("a change that fits")
    })
}

fn refused(task: &Task, seconds: u64, change: &Transition) -> TransitionError {
    apply(task, change, at(seconds), Nonce(9)).unwrap_err()
}

#[test]
fn a_task_is_claimed_when_it_is_due_and_by_one_only() {
    let task = new(3);
    assert_eq!(
        refused(&task, 9, &claim(1)),
        TransitionError::NotDue(at(10))
    );
    let task = after(task, &[(10, claim(1))]);
    assert_eq!(task.running().unwrap().expires, at(40));
    assert_eq!(
        refused(&task, 11, &claim(2)),
        TransitionError::Is(TaskStatus::Running)
    );
    assert_eq!((task.attempts, task.entered, task.rev), (1, 2, 2));
}

#[test]
fn whoever_lost_its_claim_can_do_nothing_more() {
    let task = after(new(3), &[(10, claim(1)), (40, expire()), (60, claim(2))]);
    let back = Transition::GiveBack { claim: ClaimId(1) };
    let stopped = Transition::Stopped { claim: ClaimId(1) };
    let extend = Transition::Extend {
        claim: ClaimId(1),
        progress: None,
    };
    let later = Transition::Reschedule {
        claim: ClaimId(1),
        due: at(99),
        note: None,
    };
    for change in [finish(1), fail(1), back, stopped, extend, later] {
        assert_eq!(
            refused(&task, 61, &change),
            TransitionError::ClaimLost,
            "{change:?}"
        );
    }
    let done = after(task, &[(61, finish(2))]);
    assert_eq!(refused(&done, 62, &finish(2)), TransitionError::ClaimLost);
    let claims: Vec<_> = done.history.iter().filter_map(|e| e.claim).collect();
    assert_eq!(
        claims,
        [1, 1, 2, 2].map(ClaimId),
        "history shows both attempts"
    );
}

#[test]
fn a_claim_is_extended_and_runs_out_only_then() {
    let extend = Transition::Extend {
        claim: ClaimId(1),
        progress: Some(TaskProgress {
            permille: Some(500),
            note: "half".to_owned(),
        }),
    };
    let task = after(new(3), &[(10, claim(1)), (30, extend)]);
    let running = task.running().unwrap();
    assert_eq!(running.expires, at(60));
    assert_eq!(running.progress.as_ref().unwrap().permille, Some(500));
    assert_eq!(task.entered, 2, "an extension is no new state");
    assert_eq!(task.history.len(), 2, "and no event");
    assert_eq!(
        refused(&task, 59, &expire()),
        TransitionError::StillClaimed(at(60))
    );
    assert_eq!(after(task, &[(60, expire())]).status(), TaskStatus::Ready);
}

#[test]
fn a_claim_is_never_good_for_much_longer_than_the_attempt_may_take() {
    let mut task = new(3);
    task.attempt_timeout = Some(Duration::from_secs(12));
    let extend = Transition::Extend {
        claim: ClaimId(1),
        progress: None,
    };
    let task = after(task, &[(10, claim(1)), (21, extend)]);
    assert_eq!(task.running().unwrap().deadline, Some(at(22)));
    assert_eq!(task.running().unwrap().expires, at(22).plus(DEADLINE_GRACE));
    let task = after(task, &[(27, expire())]);
    let note = task.history.last().unwrap().note.clone().unwrap();
    assert!(note.contains("timed out"), "{note}");
}

#[test]
fn failures_wait_longer_each_time_and_end_as_a_dead_letter() {
    let task = after(new(3), &[(10, claim(1)), (11, fail(1))]);
    // With no chance at all a wait is shorter by a quarter.
    assert_eq!(task.state, TaskState::Ready { due: at(14) });
    let task = after(task, &[(14, claim(2)), (20, fail(2))]);
    assert_eq!(task.state, TaskState::Ready { due: at(26) });
    let task = after(task, &[(26, claim(3)), (27, fail(3))]);
    let reason = "broken".to_owned();
    assert_eq!(task.state, TaskState::Dead { at: at(27), reason });
    let task = after(task, &[(50, Transition::Retry { by: None })]);
    assert_eq!((task.attempts, task.status()), (0, TaskStatus::Ready));
}

#[test]
fn some_failures_are_for_good_and_some_name_their_wait() {
    let change = |for_good, after| Transition::Fail {
        claim: ClaimId(1),
        reason: "x".to_owned(),
        for_good,
        after,
        chance: 7,
    };
    let task = after(new(3), &[(10, claim(1))]);
    let dead = after(task.clone(), &[(11, change(true, None))]);
    assert_eq!(dead.status(), TaskStatus::Dead);
    let wait = Duration::from_secs(100);
    let later = after(task, &[(11, change(false, Some(wait)))]);
    assert_eq!(later.state, TaskState::Ready { due: at(111) });
}

#[test]
fn what_is_given_back_or_rescheduled_is_no_attempt() {
    let back = Transition::GiveBack { claim: ClaimId(1) };
    let later = Transition::Reschedule {
        claim: ClaimId(2),
        due: at(500),
        note: Some("not now".to_owned()),
    };
    let changes = [(10, claim(1)), (12, back), (12, claim(2)), (13, later)];
    let task = after(new(1), &changes);
    assert_eq!(
        (task.attempts, task.state),
        (0, TaskState::Ready { due: at(500) })
    );
}

#[test]
fn a_cancelled_task_ends_however_its_attempt_does() {
    let cancel = Transition::Cancel { by: None };
    let task = after(new(3), &[(10, cancel.clone())]);
    assert_eq!(task.state, TaskState::Cancelled { at: at(10) });
    assert_eq!(
        refused(&task, 11, &claim(1)),
        TransitionError::Is(TaskStatus::Cancelled)
    );

    let asked = after(new(3), &[(10, claim(1)), (11, cancel.clone())]);
    assert!(asked.running().unwrap().cancel);
    assert_eq!(
        refused(&asked, 12, &cancel),
        TransitionError::Is(TaskStatus::Running)
    );
    for end in [fail(1), Transition::Stopped { claim: ClaimId(1) }] {
        assert_eq!(
            after(asked.clone(), &[(12, end)]).status(),
            TaskStatus::Cancelled
        );
    }
    assert_eq!(
        after(asked.clone(), &[(40, expire())]).status(),
        TaskStatus::Cancelled
    );
    // What is done is done.
    let done = after(asked, &[(12, finish(1))]);
    assert_eq!(done.status(), TaskStatus::Done);
    assert_eq!(
        refused(&done, 13, &cancel),
        TransitionError::Is(TaskStatus::Done)
    );
    let retry = Transition::Retry { by: None };
    assert_eq!(
        refused(&done, 13, &retry),
        TransitionError::Is(TaskStatus::Done)
    );
}

#[test]
fn history_keeps_its_beginning_and_its_end() {
    let mut task = new(u32::MAX);
    for n in 0..100 {
        let now = 100 * (n + 1);
        task = after(task, &[(now, claim(n)), (now + 1, fail(n))]);
    }
    assert_eq!(task.history.len(), HISTORY_MAX);
    assert_eq!(task.dropped_events as usize + HISTORY_MAX, 201);
    assert_eq!(task.history[0].event, TaskEventKind::Submitted);
    assert_eq!(task.history.last().unwrap().attempt, Some(100));
}

#[test]
fn long_words_are_cut_between_characters() {
    let text = shortened(&"ä".repeat(2000));
    assert!(
        text.len() <= NOTE_MAX + 4 && text.ends_with("ä…"),
        "{}",
        text.len()
    );
}

#[test]
fn a_task_reads_back_as_it_was_and_keeps_what_it_does_not_know() {
    let task = after(new(3), &[(10, claim(1))]);
    let mut value = serde_json::to_value(&task).unwrap();
    assert_eq!(value["state"]["status"], "running");
    assert_eq!(value["created"], "1970-01-01T00:00:10.000Z");
    value["colour"] = "blue".into();
    let read: Task = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value);
}

fn any_change() -> impl Strategy<Value = Transition> {
    let number = 0u64..4;
    prop_oneof![
        number.clone().prop_map(claim),
        number.clone().prop_map(finish),
        number.clone().prop_map(fail),
        number.clone().prop_map(|n| Transition::Extend {
            claim: ClaimId(n),
            progress: None
        }),
        number
            .clone()
            .prop_map(|n| Transition::GiveBack { claim: ClaimId(n) }),
        number
            .clone()
            .prop_map(|n| Transition::Stopped { claim: ClaimId(n) }),
        number.prop_map(|n| Transition::Reschedule {
            claim: ClaimId(n),
            due: at(n * 50),
            note: None
        }),
        Just(expire()),
        Just(Transition::Cancel { by: None }),
        Just(Transition::Retry { by: None }),
    ]
}

proptest! {
    #[test]
    fn whatever_is_asked_in_whatever_order_the_record_stays_sound(
        changes in proptest::collection::vec((any_change(), 0u64..40), 1..60)
    ) {
        let (mut task, mut now, mut finished) = (new(3), 10, 0);
        for (n, (change, wait)) in changes.into_iter().enumerate() {
            now += wait;
            let Ok(next) = apply(&task, &change, at(now), Nonce(1000 + n as u64)) else {
                continue;
            };
            prop_assert_eq!(next.rev, task.rev + 1);
            prop_assert!(next.attempts <= 3);
            prop_assert!(next.entered == task.entered || next.entered == next.rev);
            // Whoever changes a claimed task holds the claim, unless the claim ran out or somebody wants it to stop.
            if let Some(running) = task.running() {
                match &change {
                    Transition::Finish { claim, .. } | Transition::Fail { claim, .. } => {
                        prop_assert_eq!(*claim, running.claim);
                    }
                    Transition::Expire { .. } => prop_assert!(running.expires <= at(now)),
                    Transition::Claim { .. } | Transition::Retry { .. } => prop_assert!(false),
                    _ => {}
                }
            }
            finished += u32::from(matches!(change, Transition::Finish { .. }));
            prop_assert!(finished <= 1, "nothing is finished twice");
            prop_assert!(task.status() != TaskStatus::Done, "nothing follows the end");
            prop_assert!(next.contains(Nonce(1000 + n as u64)));
            let text = serde_json::to_vec(&next).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Task>(&text).unwrap(), next.clone());
            task = next;
        }
    }
}
