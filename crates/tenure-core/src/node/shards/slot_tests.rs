//! Tests of the table of phases, row by row.

use crate::ids::Epoch;
use crate::machine::{ActivationId, Close};
use crate::reason::Reason;
use crate::rules::Rules;
use crate::time::Time;

use super::slot::{AfterClose, Phase, PhaseEvent, Readiness};

const CURRENT: ActivationId = ActivationId(7);
const FORMER: ActivationId = ActivationId(6);

fn phases() -> Vec<Phase> {
    let (activation, epoch, since) = (CURRENT, Epoch(3), Time(1));
    let (mv, limit) = (9, Time(50));
    let taking = |step| Phase::Taking {
        activation,
        mv,
        step,
        limit,
    };
    let closing = |how| Phase::Closing {
        activation,
        epoch,
        how,
        cut_at: limit,
        then: AfterClose::Reevaluate,
        reason: Reason::Moving,
    };
    vec![
        Phase::Idle,
        Phase::RetryDelay { until: limit },
        Phase::Loading {
            activation,
            epoch,
            since,
        },
        Phase::Serving {
            activation,
            epoch,
            since,
        },
        Phase::Frozen {
            activation,
            epoch,
            mv,
            limit,
        },
        Phase::Sealing {
            activation,
            epoch,
            mv,
            limit,
        },
        taking(Readiness::Loading),
        taking(Readiness::Loaded),
        taking(Readiness::CatchingUp),
        taking(Readiness::Ready),
        closing(Close::Drain),
        closing(Close::Cancel),
    ]
}

fn name(phase: &Phase) -> String {
    match phase {
        Phase::Idle => "idle".to_owned(),
        Phase::RetryDelay { .. } => "retry-delay".to_owned(),
        Phase::Loading { .. } => "loading".to_owned(),
        Phase::Serving { .. } => "serving".to_owned(),
        Phase::Frozen { .. } => "frozen".to_owned(),
        Phase::Sealing { .. } => "sealing".to_owned(),
        Phase::Taking { step, .. } => format!("taking/{step:?}").to_lowercase(),
        Phase::Closing { how, .. } => format!("closing/{how:?}").to_lowercase(),
    }
}

/// Lists `from>to` for each phase that an event fits.
fn row(event: &PhaseEvent) -> String {
    let next = |phase: &Phase| phase.next(event.clone(), Time(10), Rules::default());
    let all = phases();
    let fits = all
        .iter()
        .filter_map(|phase| Some(format!("{}>{}", name(phase), name(&next(phase)?))));
    fits.collect::<Vec<_>>().join(" ")
}

fn close(how: Close) -> PhaseEvent {
    PhaseEvent::Close {
        how,
        drain_until: Time(100),
        cancel_until: Time(20),
        then: AfterClose::GiveUp,
        reason: Reason::LeaseLost,
    }
}

#[test]
fn the_table_of_phases() {
    let (activation, epoch, mv, limit) = (CURRENT, Epoch(4), 9, Time(60));
    let warm = PhaseEvent::Warm {
        activation,
        mv,
        limit,
    };
    let drained = PhaseEvent::Drained {
        activation,
        mv,
        limit,
    };
    for (event, expected) in [
        (
            PhaseEvent::Load { activation, epoch },
            "idle>loading retry-delay>loading",
        ),
        (warm, "idle>taking/loading retry-delay>taking/loading"),
        (
            PhaseEvent::Loaded(CURRENT),
            "loading>serving taking/loading>taking/loaded",
        ),
        (
            PhaseEvent::LoadFailed(CURRENT),
            "loading>idle taking/loading>idle taking/loaded>idle taking/catchingup>idle taking/ready>idle \
             closing/drain>idle closing/cancel>idle",
        ),
        (
            PhaseEvent::CatchUp { limit },
            "taking/loading>taking/catchingup taking/loaded>taking/catchingup \
             taking/catchingup>taking/catchingup taking/ready>taking/catchingup",
        ),
        (
            PhaseEvent::CaughtUp(CURRENT),
            "taking/catchingup>taking/ready",
        ),
        (
            PhaseEvent::Promote(epoch),
            "taking/loading>serving taking/loaded>serving taking/catchingup>serving taking/ready>serving",
        ),
        (PhaseEvent::Freeze { mv, limit }, "serving>frozen"),
        (PhaseEvent::Thaw, "frozen>serving"),
        (drained, "frozen>sealing"),
        (
            close(Close::Drain),
            "loading>closing/cancel serving>closing/drain frozen>closing/cancel sealing>closing/cancel \
             taking/loading>closing/cancel taking/loaded>closing/cancel taking/catchingup>closing/cancel \
             taking/ready>closing/cancel",
        ),
        (
            close(Close::Cancel),
            "loading>closing/cancel serving>closing/cancel frozen>closing/cancel sealing>closing/cancel \
             taking/loading>closing/cancel taking/loaded>closing/cancel taking/catchingup>closing/cancel \
             taking/ready>closing/cancel closing/drain>closing/cancel",
        ),
        (
            PhaseEvent::Stopped(CURRENT),
            "closing/drain>idle closing/cancel>idle",
        ),
        (
            PhaseEvent::Wait { until: limit },
            "idle>retry-delay retry-delay>retry-delay",
        ),
    ] {
        assert_eq!(row(&event), expected, "{event:?}");
    }
}

#[test]
fn events_of_a_former_activation_change_nothing() {
    for event in [
        PhaseEvent::Loaded(FORMER),
        PhaseEvent::LoadFailed(FORMER),
        PhaseEvent::CaughtUp(FORMER),
        PhaseEvent::Stopped(FORMER),
        PhaseEvent::Drained {
            activation: FORMER,
            mv: 9,
            limit: Time(60),
        },
        PhaseEvent::Drained {
            activation: CURRENT,
            mv: 8,
            limit: Time(60),
        },
    ] {
        assert_eq!(row(&event), "", "{event:?}");
    }
}

#[test]
fn a_cancelled_drain_keeps_its_first_reason_and_gets_the_time_of_a_cancellation() {
    let drains = phases().into_iter().find(|p| name(p) == "closing/drain");
    let after =
        drains.and_then(|phase| phase.next(close(Close::Cancel), Time(10), Rules::default()));
    assert_eq!(
        after,
        Some(Phase::Closing {
            activation: CURRENT,
            epoch: Epoch(3),
            how: Close::Cancel,
            cut_at: Time(20),
            then: AfterClose::GiveUp,
            reason: Reason::Moving,
        })
    );
}

#[test]
fn given_up_epochs_leave_only_a_serving_shard_in_its_phase() {
    for phase in phases() {
        let next = phase.next(PhaseEvent::GivenUp, Time(10), Rules::default());
        let expected = (!matches!(phase, Phase::Serving { .. })).then_some(Phase::Idle);
        assert_eq!(next, expected, "{phase:?}");
    }
}
