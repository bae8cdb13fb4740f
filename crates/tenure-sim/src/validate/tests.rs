//! Traces of simulated processes: good ones pass, and one in which something was changed does not.

use std::sync::OnceLock;

use tenure_core::ids::Version;
use tenure_core::keys::Key;
use tenure_core::machine::{Action, ActivationId, Event, Expect, Found, OpId, Reply, Request};
use tenure_core::record::{EndReason, Record, SessionRecord, ShardRecord};
use tenure_core::time::Time;
use tenure_core::trace_format::{TraceEnd, TraceGap, TraceStep};

use super::*;
use crate::fault::Fault;
use crate::run_config::{Family, RunConfig};
use crate::trace_recorder::record;
use crate::world::ProtocolVariant;

type Traces = Vec<Vec<TraceLine>>;

fn text(lines: &[TraceLine]) -> String {
    lines.iter().map(|line| line.to_json() + "\n").collect()
}

fn validated(traces: &[Vec<TraceLine>]) -> ValidationReport {
    let mut validator = Validator::new();
    for (n, lines) in traces.iter().enumerate() {
        let read = validator.read(&format!("p{n}"), text(lines).as_bytes());
        read.expect("lines");
    }
    validator.finish()
}

/// A run of several processes on one machine, with failovers, renewals and releases.
fn good() -> Traces {
    static GOOD: OnceLock<Traces> = OnceLock::new();
    let find = || {
        let of_one_machine = |seed: &u64| RunConfig::draw(*seed).family == Family::OneMachine;
        let mut runs = (0..)
            .filter(of_one_machine)
            .map(|seed| record(RunConfig::draw(seed), ProtocolVariant::default()));
        let mut found = runs.find_map(|(recording, _)| {
            let traces = recording.processes().to_vec();
            let report = validated(&traces);
            let enough = report.failovers > 3 && report.writes.contains_key("release");
            (enough && report.steps < 4000).then_some(traces)
        });
        found.take().expect("a seed")
    };
    GOOD.get_or_init(find).clone()
}

fn steps(traces: &mut [Vec<TraceLine>]) -> impl Iterator<Item = &mut TraceStep> {
    let lines = traces.iter_mut().flatten();
    lines.filter_map(|line| match line {
        TraceLine::Step(step) => Some(step),
        _ => None,
    })
}

fn actions(traces: &mut [Vec<TraceLine>]) -> impl Iterator<Item = &mut Action> {
    steps(traces).flat_map(|step| &mut step.actions)
}

/// Adds a step to the end of a process's trace.
fn add(lines: &mut Vec<TraceLine>, event: Event, actions: Vec<Action>) {
    let (n, t, wake) = match lines.last() {
        Some(TraceLine::Step(last)) => (last.n, last.t, last.wake),
        _ => panic!("a step"),
    };
    lines.push(TraceLine::Step(TraceStep {
        n: n + 1,
        t,
        event,
        actions,
        wake,
    }));
}

/// Changes a good run; what is found must be of this kind, and say this.
fn check(change: impl FnOnce(&mut Traces), kind: CheckKind, says: &str) {
    let mut traces = good();
    change(&mut traces);
    let findings = validated(&traces).findings;
    let hit = |f: &&Finding| f.check == kind && f.what.contains(says);
    assert!(findings.iter().any(|f| hit(&f)), "{findings:#?}");
    assert!(findings.iter().all(|f| f.line > 1), "{findings:#?}");
}

#[test]
fn whatever_happens_in_the_simulator_its_traces_are_clean() {
    let (mut failovers, mut openings) = (0, 0);
    for seed in 0..60 {
        let mut plan = RunConfig::draw(seed);
        // What people do to records by hand is in nobody's trace.
        plan.faults
            .retain(|(_, fault)| !matches!(fault, Fault::Hand { .. } | Fault::Restore { .. }));
        let (recording, violation) = record(plan, ProtocolVariant::default());
        assert_eq!(violation, None);
        let report = validated(recording.processes());
        assert!(report.is_clean(), "seed {seed}: {:#?}", report.findings);
        assert_eq!(report.replayed, report.steps, "seed {seed}");
        failovers += report.failovers;
        openings += report.openings;
    }
    assert!(failovers > 50 && openings > 500, "{failovers} {openings}");
}

#[test]
fn a_line_that_is_missing_is_found() {
    let drop_one = |traces: &mut Traces| drop(traces[0].remove(5));
    check(drop_one, CheckKind::Trace, "step 6 follows step 4");
}

#[test]
fn a_line_after_the_end_is_found() {
    let end = |traces: &mut Traces| {
        let at = traces[0].len() - 1;
        traces[0].insert(at, TraceLine::End(TraceEnd { t: Time(0) }));
    };
    check(end, CheckKind::Trace, "a line after its `end` line");
}

#[test]
fn an_action_that_is_not_the_machines_is_found_and_shown() {
    let change = |traces: &mut Traces| {
        let mut opens = actions(traces).filter_map(|action| match action {
            Action::Open(activation) => Some(activation),
            _ => None,
        });
        opens.next().expect("an opening").0 += 1000;
    };
    check(change, CheckKind::Replay, "was Open(ActivationId(10");
    let remove = |traces: &mut Traces| {
        let busy = steps(traces).find(|step| step.actions.len() > 1);
        busy.expect("a busy step").actions.pop();
    };
    check(remove, CheckKind::Replay, "was nothing in the trace, but");
}

#[test]
fn another_wake_up_time_is_found() {
    let later = |traces: &mut Traces| {
        let waiting = steps(traces).find(|step| step.wake.is_some());
        waiting.expect("a wait").wake = Some(Time::NEVER);
    };
    check(later, CheckKind::Replay, "the next wake-up was never");
}

fn replies(traces: &mut [Vec<TraceLine>]) -> impl Iterator<Item = (&mut OpId, &mut Reply)> {
    steps(traces).filter_map(|step| match &mut step.event {
        Event::Reply { op, reply } => Some((op, reply)),
        _ => None,
    })
}

#[test]
fn answers_that_changed_places_are_found() {
    let swap = |traces: &mut Traces| {
        let mut answers: Vec<_> = replies(&mut traces[..1]).map(|(_, reply)| reply).collect();
        let listed = answers.iter().position(|r| matches!(r, Reply::Listed(_)));
        let won = answers.iter().position(|r| matches!(r, Reply::Won(_)));
        let (listed, won) = (listed.expect("a list"), won.expect("a write"));
        let list = std::mem::replace(answers[listed], Reply::Lost);
        *answers[listed] = std::mem::replace(answers[won], list);
    };
    check(
        swap,
        CheckKind::Driver,
        "is not a response to such a request",
    );
}

#[test]
fn a_second_answer_and_one_that_nobody_asked_for_are_found() {
    let again = |traces: &mut Traces| {
        let (op, reply) = replies(&mut traces[..1]).next().expect("an answer");
        let event = Event::Reply {
            op: *op,
            reply: reply.clone(),
        };
        add(&mut traces[0], event, vec![]);
    };
    check(again, CheckKind::Driver, "which already had a response");
    let unasked = |traces: &mut Traces| {
        let event = Event::Reply {
            op: OpId(999_999),
            reply: Reply::Lost,
        };
        add(&mut traces[0], event, vec![]);
    };
    check(unasked, CheckKind::Driver, "which was never sent");
}

#[test]
fn what_is_said_of_a_stay_that_is_not_there_or_not_so_is_found() {
    let none = |traces: &mut Traces| add(&mut traces[0], Event::Loaded(ActivationId(9999)), vec![]);
    check(none, CheckKind::Driver, "but does not exist");
    let twice = |traces: &mut Traces| {
        let mut drained = traces[0].iter().filter_map(|line| match line {
            TraceLine::Step(step) => match step.event {
                Event::Drained(activation) => Some(activation),
                _ => None,
            },
            _ => None,
        });
        let activation = drained.next().expect("a stay that ended");
        add(&mut traces[0], Event::Drained(activation), vec![]);
    };
    check(twice, CheckKind::Driver, "was drained");
    let early = |traces: &mut Traces| {
        let open = |action: &mut Action| match action {
            Action::Open(activation) => Some(*activation),
            _ => None,
        };
        let last = actions(&mut traces[..1]).filter_map(open).last();
        let activation = last.expect("an opening");
        let is_close = |action: &Action| matches!(action, Action::Close { activation: r, .. } if *r == activation);
        steps(&mut traces[..1]).for_each(|step| step.actions.retain(|a| !is_close(a)));
        let is_drained = |step: &TraceStep| step.event == Event::Drained(activation);
        if !steps(&mut traces[..1]).any(|step| is_drained(step)) {
            add(&mut traces[0], Event::Drained(activation), vec![]);
        }
    };
    check(early, CheckKind::Driver, "was not ordered to close");
}

#[test]
fn a_clock_that_goes_back_and_a_sign_of_life_from_the_future_are_found() {
    let back = |traces: &mut Traces| steps(traces).nth(7).expect("steps").t = Time(1);
    check(
        back,
        CheckKind::Driver,
        "the clock of the process decreased",
    );
    let future = |traces: &mut Traces| add(&mut traces[0], Event::Progress(Time::NEVER), vec![]);
    check(future, CheckKind::Driver, "a progress report dated");
}

#[test]
fn two_gates_that_are_open_at_once_are_found() {
    let never_close = |traces: &mut Traces| {
        // Whoever goes on living while another has its shards must have closed them.
        for step in steps(traces) {
            step.actions.retain(|a| !matches!(a, Action::Close { .. }));
            for action in &mut step.actions {
                if let Action::Lease { stop_time, .. } = action {
                    *stop_time = Time::NEVER;
                }
            }
        }
    };
    check(never_close, CheckKind::P1, "although that of node");
}

#[test]
fn a_session_that_is_ended_before_its_time_is_found() {
    let good_for_ever = |traces: &mut Traces| {
        // Not every tombstone that is asked for is written: one of them is.
        let expired: Vec<_> = written_sessions(traces)
            .filter(|(_, record)| record.ended.is_some_and(|e| e.reason == EndReason::Expired))
            .map(|(id, _)| id)
            .collect();
        for action in actions(traces) {
            if let Action::Lease {
                session, deadline, ..
            } = action
                && expired.contains(session)
            {
                *deadline = Time::NEVER;
            }
        }
    };
    check(good_for_ever, CheckKind::P1, "is ended as expired");
}

fn written_sessions(
    traces: &mut [Vec<TraceLine>],
) -> impl Iterator<Item = (tenure_core::ids::SessionId, &SessionRecord)> {
    actions(traces).filter_map(|action| match action {
        Action::Store {
            request:
                Request::Put {
                    key: Key::Session(id),
                    record: Record::Session(record),
                    ..
                },
            ..
        } => Some((*id, &**record)),
        _ => None,
    })
}

/// A session whose end this process wrote, and the store confirmed.
fn won_end(lines: &[TraceLine]) -> Option<(tenure_core::ids::SessionId, SessionRecord)> {
    let steps = lines.iter().filter_map(|line| match line {
        TraceLine::Step(step) => Some(step),
        _ => None,
    });
    let won: std::collections::BTreeSet<OpId> = steps
        .filter_map(|step| match step.event {
            Event::Reply {
                op,
                reply: Reply::Won(_),
            } => Some(op),
            _ => None,
        })
        .collect();
    let mut one = [lines.to_vec()];
    let mut ends = actions(&mut one).filter_map(|action| match action {
        Action::Store {
            op,
            request:
                Request::Put {
                    key: Key::Session(id),
                    record: Record::Session(record),
                    ..
                },
            ..
        } if record.ended.is_some() && won.contains(op) => Some((*id, (**record).clone())),
        _ => None,
    });
    ends.next()
}

#[test]
fn a_session_that_goes_on_after_its_end_is_found() {
    let renew = |traces: &mut Traces| {
        let ended = traces.iter().find_map(|lines| won_end(lines));
        let (id, mut record) = ended.expect("an end");
        record.ended = None;
        record.renewals += 1;
        record.head.rev += 1;
        let found = Found {
            version: Version::Number(u64::MAX),
            record: Ok(Record::Session(record.into())),
        };
        let event = Event::Changed {
            changes: vec![(Key::Session(id), Some(found))],
            upto: tenure_core::ids::Revision(1),
        };
        add(&mut traces[0], event, vec![]);
    };
    check(renew, CheckKind::Session, "is renewed after its end");
}

/// Claims that are asked for, with what they replace.
fn claims(traces: &mut [Vec<TraceLine>]) -> impl Iterator<Item = (OpId, &mut Request)> {
    actions(traces).filter_map(|action| match action {
        Action::Store { op, request, .. } => match request {
            Request::Put {
                record: Record::Shard(record),
                expect: Expect::Version(_),
                ..
            } if record.owner().is_some() && record.epoch.count() > 1 => Some((*op, request)),
            _ => None,
        },
        _ => None,
    })
}

fn shard_of(request: &mut Request) -> &mut ShardRecord {
    match request {
        Request::Put {
            record: Record::Shard(record),
            ..
        } => std::sync::Arc::make_mut(record),
        _ => panic!("a write of a shard"),
    }
}

#[test]
fn an_epoch_that_is_used_again_is_found() {
    let reuse = |traces: &mut Traces| {
        claims(traces).for_each(|(_, claim)| shard_of(claim).epoch.0 -= 1);
    };
    check(reuse, CheckKind::P2, "belongs to session");
}

#[test]
fn a_write_that_is_no_transition_is_found() {
    let skip = |traces: &mut Traces| {
        let (_, claim) = claims(traces).next().expect("a claim");
        shard_of(claim).head.rev += 1;
    };
    check(skip, CheckKind::Record, "the rev of");
    let alter = |traces: &mut Traces| {
        let (_, claim) = claims(traces).next().expect("a claim");
        shard_of(claim).history.clear();
    };
    check(alter, CheckKind::Record, "no transition of");
}

#[test]
fn two_writes_that_win_against_one_version_are_found() {
    let both = |traces: &mut Traces| {
        let mut won = traces.iter_mut().enumerate().filter_map(|(n, trace)| {
            let trace = std::slice::from_mut(trace);
            let won: Vec<OpId> = replies(trace)
                .filter_map(|(op, reply)| matches!(reply, Reply::Won(_)).then_some(*op))
                .collect();
            let claim = claims(trace).find(|(op, _)| won.contains(op))?;
            Some((n, claim.1.clone()))
        });
        let (n, request) = won.next().expect("a claim that won");
        let op = OpId(999_999);
        let ask = Action::Store {
            op,
            connection: tenure_core::machine::Connection::Default,
            request,
        };
        add(&mut traces[n], Event::Tick, vec![ask]);
        let reply = Reply::Won(Version::Number(u64::MAX));
        add(&mut traces[n], Event::Reply { op, reply }, vec![]);
    };
    check(both, CheckKind::Record, "was replaced by version");
}

#[test]
fn half_a_line_at_the_end_or_before_another_process_is_forgiven() {
    let traces = good();
    let mut file = text(&traces[0]);
    let steps = traces[0].len() as u64 - 1;
    file.truncate(file.len() - 20);
    let mut killed = Validator::new();
    killed.read("killed", file.as_bytes()).unwrap();
    let report = killed.finish();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.processes, report.cut_off), (1, 1));
    assert_eq!(report.steps, steps - 1);
    file.push('\n');
    file.push_str(&text(&traces[1][..3]));
    let mut two = Validator::new();
    two.read("empty", &b""[..]).unwrap();
    two.read("two", file.as_bytes()).unwrap();
    let again = two.read("two", file.as_bytes()).unwrap_err();
    assert_eq!(
        again.to_string(),
        "two:1: the trace of this process was already read at two:1; pass each file once"
    );
    let report = two.finish();
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.files, report.processes), (2, 2));
    assert_eq!(report.steps, steps - 1 + 2);
}

#[test]
fn what_is_no_trace_is_not_read() {
    let good = text(&good()[0][..4]);
    let mut lines: Vec<&str> = good.lines().collect();
    let read = |text: String| {
        let read = Validator::new().read("f", text.as_bytes());
        read.expect_err("no trace").to_string()
    };
    assert!(read("hello\nworld\n".to_owned()).starts_with("f:1: not a trace line"));
    assert!(read(lines[1].to_owned() + "\n").contains("must be a `begin` line"));
    let newer = good.replacen("\"format\":1", "\"format\":7", 1);
    assert!(read(newer).starts_with("f:1: the trace has format 7"));
    lines[2] = "{\"step\":{}}";
    assert!(read(lines.join("\n") + "\n").starts_with("f:3: not a trace line"));
    let nowhere = Validator::new().read_file("/nowhere/f").unwrap_err();
    assert!(nowhere.to_string().starts_with("/nowhere/f: "), "{nowhere}");
}

#[test]
fn a_trace_that_was_given_up_is_no_violation_but_is_told() {
    let mut traces = good();
    let reason = "the disk is slow".to_owned();
    traces[0].truncate(10);
    traces[0].push(TraceLine::Gap(TraceGap { n: 10, reason }));
    let report = validated(&traces);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.gaps.len(), 1);
    let told = &report.gaps[0];
    assert!(
        told.starts_with("p0:11: node n") && told.contains("the disk is slow"),
        "{told}"
    );
}
