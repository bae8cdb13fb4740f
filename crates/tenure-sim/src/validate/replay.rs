//! The machine that ships, made from the same settings and told the same at the same times, must do the same.
//!
//! That is what ties a run outside to the simulator: if the steps are equal, nothing that the simulator does not see, such
//! as state in the driver, chance or a second clock, had a part in what the node decided.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tenure_core::machine::{Action, Event, Step};
use tenure_core::node::Node;
use tenure_core::trace_format::{TraceBegin, TraceLine, TraceStep};

/// How much of an action a finding shows.
const SHOWN: usize = 600;

/// A machine that is run again; nothing once it has gone another way.
pub(super) struct Replay {
    machine: Option<Node>,
    version: String,
}

impl Replay {
    pub(super) fn begin(begin: &TraceBegin) -> Self {
        Self {
            machine: Some(Node::new(Arc::new(begin.config.clone()))),
            version: begin.version.clone(),
        }
    }

    /// Tells the machine what it was told; whether it was still on the same way, or how it left it.
    pub(super) fn step(&mut self, recorded: &TraceStep) -> Result<bool, String> {
        let Some(machine) = &mut self.machine else {
            return Ok(false);
        };
        let event = recorded.event.clone();
        let again = catch_unwind(AssertUnwindSafe(|| machine.step(recorded.t, event)));
        let difference = match again {
            Ok(step) => difference(recorded, step),
            Err(_) => Some("the node's state machine panics when the step is replayed".to_owned()),
        };
        let Some(difference) = difference else {
            return Ok(true);
        };
        self.machine = None;
        let mut what = format!(
            "step {} ({}): {difference}",
            recorded.n,
            kind(&recorded.event)
        );
        if self.version != env!("CARGO_PKG_VERSION") {
            let ours = env!("CARGO_PKG_VERSION");
            what.push_str(&format!(
                "; the trace was written by version {} and replayed by version {ours}",
                self.version
            ));
        }
        Err(what)
    }
}

fn difference(recorded: &TraceStep, again: Step) -> Option<String> {
    if again.actions == recorded.actions && again.wake == recorded.wake {
        return None;
    }
    // Records hold whole milliseconds: what is written of a finer time is no difference.
    let written = TraceLine::Step(TraceStep {
        actions: again.actions,
        wake: again.wake,
        ..recorded.clone()
    });
    let Ok(TraceLine::Step(again)) = TraceLine::parse(&written.to_json()) else {
        return Some(
            "the actions of the replayed step cannot be written as a trace line".to_owned(),
        );
    };
    let (then, now) = (&recorded.actions, &again.actions);
    for n in 0..then.len().max(now.len()) {
        if then.get(n) != now.get(n) {
            let show = |action: Option<&Action>| action.map_or("nothing".to_owned(), shown);
            return Some(format!(
                "action {} was {} in the trace, but {} in the replay",
                n + 1,
                show(then.get(n)),
                show(now.get(n))
            ));
        }
    }
    (again.wake != recorded.wake).then(|| {
        let show = |wake: Option<tenure_core::time::Time>| {
            wake.map_or("never".to_owned(), |time| time.to_string())
        };
        format!(
            "the next wake-up was {} in the trace, but {} in the replay",
            show(recorded.wake),
            show(again.wake)
        )
    })
}

fn shown(action: &Action) -> String {
    let mut text = format!("{action:?}");
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

/// The kind of an event in one word.
pub(super) fn kind(event: &Event) -> &'static str {
    match event {
        Event::Tick => "tick",
        Event::Reply { .. } => "reply",
        Event::Changed { .. } => "changed",
        Event::WatchGap => "watch_gap",
        Event::Loaded(_) => "loaded",
        Event::LoadFailed { .. } => "load_failed",
        Event::LoopEnded { .. } => "run_ended",
        Event::Trouble { .. } => "trouble",
        Event::Cost { .. } => "load",
        Event::CaughtUp(_) => "caught up",
        Event::Frozen { .. } => "frozen",
        Event::Sealed { .. } | Event::SealFailed { .. } => "sealed",
        Event::Hold(_) => "hold",
        Event::Drained(_) => "drained",
        Event::Progress(_) => "progress",
        Event::Stop => "stop",
    }
}
