//! The driver's side of the contract in [`tenure_core::machine`]: every answer is to a question, once; what is said of a
//! stay is said of one that there is; signs of life are not from the future.

use std::collections::BTreeMap;

use tenure_core::machine::{Action, ActivationId, Event, OpId, Reply, Request};
use tenure_core::time::Time;
use tenure_core::trace_format::Stepped;

/// A request under way.
pub(super) struct Asked {
    pub(super) at: Time,
    pub(super) request: Request,
}

/// What a driver was asked to do and has said of it.
#[derive(Default)]
pub(super) struct Conduct {
    asked: BTreeMap<OpId, Asked>,
    highest: Option<OpId>,
    runs: BTreeMap<ActivationId, Run>,
}

#[derive(Clone, Copy, Default)]
struct Run {
    loaded: bool,
    failed: bool,
    closing: bool,
    drained: bool,
    catches_up: bool,
}

impl Conduct {
    /// Requests without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len()
    }

    /// Takes the event of a step; the request that it answers, if it does.
    pub(super) fn heard(&mut self, step: &Stepped) -> Result<Option<Asked>, String> {
        match &step.event {
            Event::Reply { op, reply } => return self.answered(*op, reply).map(Some),
            Event::Loaded(run) => self.of_run(*run, "loaded", |run| {
                !std::mem::replace(&mut run.loaded, true) && !run.failed && !run.drained
            })?,
            Event::LoadFailed {
                activation: run, ..
            } => self.of_run(*run, "failed to load", |run| {
                let loads = !run.loaded || run.catches_up;
                !std::mem::replace(&mut run.failed, true) && loads && !run.drained
            })?,
            Event::LoopEnded {
                activation: run, ..
            } => {
                self.of_run(*run, "ended", |run| run.loaded)?;
            }
            Event::Trouble {
                activation: run, ..
            }
            | Event::Cost {
                activation: run, ..
            } => {
                self.of_run(*run, "said something", |_| true)?;
            }
            Event::CaughtUp(run)
            | Event::Frozen {
                activation: run, ..
            } => {
                self.of_run(*run, "gone on", |run| run.loaded)?;
            }
            Event::Sealed {
                activation: run, ..
            }
            | Event::SealFailed {
                activation: run, ..
            } => {
                self.of_run(*run, "sealed", |run| run.loaded && !run.drained)?;
            }
            Event::Drained(run) => self.of_run(*run, "drained", |run| {
                !std::mem::replace(&mut run.drained, true) && run.closing
            })?,
            Event::Progress(at) if *at > step.t => {
                return Err(format!("a sign of life of {at} comes at {}", step.t));
            }
            Event::Progress(_)
            | Event::Tick
            | Event::Changed { .. }
            | Event::WatchGap
            | Event::Hold(_)
            | Event::Stop => {}
        }
        Ok(None)
    }

    /// Takes an action of a step.
    pub(super) fn told(&mut self, at: Time, action: &Action) {
        match action {
            Action::Store { op, request, .. } => {
                let request = request.clone();
                self.asked.insert(*op, Asked { at, request });
                self.highest = self.highest.max(Some(*op));
            }
            Action::Load {
                activation: run, ..
            }
            | Action::Warm {
                activation: run, ..
            } => {
                self.runs.insert(*run, Run::default());
            }
            Action::CatchUp {
                activation: run, ..
            } => {
                if let Some(run) = self.runs.get_mut(run) {
                    run.catches_up = true;
                }
            }
            Action::Close {
                activation: run, ..
            } => {
                if let Some(run) = self.runs.get_mut(run) {
                    run.closing = true;
                }
            }
            _ => {}
        }
    }

    fn answered(&mut self, op: OpId, reply: &Reply) -> Result<Asked, String> {
        let Some(asked) = self.asked.remove(&op) else {
            let why = if self.highest >= Some(op) {
                "which was answered before"
            } else {
                "which was never asked"
            };
            return Err(format!("an answer to request {}, {why}", op.0));
        };
        if fits(&asked.request, reply) {
            return Ok(asked);
        }
        Err(format!(
            "request {} was {:?}; {reply:?} is no answer to that",
            op.0, asked.request
        ))
    }

    fn of_run(
        &mut self,
        id: ActivationId,
        what: &str,
        fits: impl FnOnce(&mut Run) -> bool,
    ) -> Result<(), String> {
        match self.runs.get_mut(&id) {
            None => Err(format!(
                "stay {} is said to have {what}, but there is none",
                id.0
            )),
            Some(run) => {
                let before = *run;
                if fits(run) {
                    return Ok(());
                }
                let state = [
                    (before.loaded, "had loaded"),
                    (before.failed, "had failed to load"),
                    (before.drained, "was drained"),
                    (!before.closing, "was not to close"),
                ];
                let state: Vec<_> = state.iter().filter(|s| s.0).map(|s| s.1).collect();
                Err(format!(
                    "stay {} is said to have {what}, but it {}",
                    id.0,
                    state.join(" and ")
                ))
            }
        }
    }
}

fn fits(request: &Request, reply: &Reply) -> bool {
    if matches!(reply, Reply::Failed(_)) {
        return true;
    }
    match request {
        Request::Get(_) => matches!(reply, Reply::Got(_)),
        Request::List => matches!(reply, Reply::Listed(_)),
        Request::Revision => matches!(reply, Reply::Revision(_)),
        Request::Put { .. } | Request::Delete { .. } => {
            matches!(reply, Reply::Won(_) | Reply::Lost)
        }
        Request::CreateLease { .. } => matches!(reply, Reply::LeaseCreated(_)),
        Request::KeepAlive(_) => matches!(reply, Reply::KeptAlive(_)),
        Request::CheckLease(_) => matches!(reply, Reply::Lease(_)),
    }
}
