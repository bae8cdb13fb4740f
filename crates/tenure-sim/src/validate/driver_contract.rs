//! The driver's side of the contract in [`tenure_core::machine`]: every answer is to a question, once; what is said of a
//! stay is said of one that there is; signs of life are not from the future.

use std::collections::BTreeMap;

use tenure_core::machine::{Action, ActivationId, Event, OpId, Reply, Request};
use tenure_core::time::Time;
use tenure_core::trace_format::TraceStep;

/// A request under way.
pub(super) struct Asked {
    pub(super) at: Time,
    pub(super) request: Request,
}

/// Checker of the driver's contract: what a driver was asked to do and has reported.
#[derive(Default)]
pub(super) struct DriverContractChecker {
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

impl DriverContractChecker {
    /// Requests without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len()
    }

    /// Takes the event of a step; the request that it answers, if it does.
    pub(super) fn heard(&mut self, step: &TraceStep) -> Result<Option<Asked>, String> {
        match &step.event {
            Event::Reply { op, reply } => return self.answered(*op, reply).map(Some),
            Event::Loaded(activation) => self.of_run(*activation, "loaded", |activation| {
                !std::mem::replace(&mut activation.loaded, true)
                    && !activation.failed
                    && !activation.drained
            })?,
            Event::LoadFailed { activation, .. } => {
                self.of_run(*activation, "failed to load", |activation| {
                    let loads = !activation.loaded || activation.catches_up;
                    !std::mem::replace(&mut activation.failed, true) && loads && !activation.drained
                })?
            }
            Event::LoopEnded { activation, .. } => {
                self.of_run(*activation, "ended", |activation| activation.loaded)?;
            }
            Event::Trouble { activation, .. } | Event::Cost { activation, .. } => {
                self.of_run(*activation, "reported a problem or cost", |_| true)?;
            }
            Event::CaughtUp(activation) | Event::Frozen { activation, .. } => {
                self.of_run(*activation, "caught up or frozen", |activation| {
                    activation.loaded
                })?;
            }
            Event::Sealed { activation, .. } | Event::SealFailed { activation, .. } => {
                self.of_run(*activation, "sealed", |activation| {
                    activation.loaded && !activation.drained
                })?;
            }
            Event::Drained(activation) => self.of_run(*activation, "drained", |activation| {
                !std::mem::replace(&mut activation.drained, true) && activation.closing
            })?,
            Event::Progress(at) if *at > step.t => {
                return Err(format!(
                    "a progress report dated {at} arrives earlier, at {}",
                    step.t
                ));
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
            Action::Load { activation, .. } | Action::Warm { activation, .. } => {
                self.runs.insert(*activation, Run::default());
            }
            Action::CatchUp { activation, .. } => {
                if let Some(activation) = self.runs.get_mut(activation) {
                    activation.catches_up = true;
                }
            }
            Action::Close { activation, .. } => {
                if let Some(activation) = self.runs.get_mut(activation) {
                    activation.closing = true;
                }
            }
            _ => {}
        }
    }

    fn answered(&mut self, op: OpId, reply: &Reply) -> Result<Asked, String> {
        let Some(asked) = self.asked.remove(&op) else {
            let reason = if self.highest >= Some(op) {
                "which already had a response"
            } else {
                "which was never sent"
            };
            return Err(format!("a response to store request {}, {reason}", op.0));
        };
        if fits(&asked.request, reply) {
            return Ok(asked);
        }
        Err(format!(
            "store request {} was {:?}; {reply:?} is not a response to such a request",
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
                "activation {} is reported to have {what}, but does not exist",
                id.0
            )),
            Some(activation) => {
                let before = *activation;
                if fits(activation) {
                    return Ok(());
                }
                let state = [
                    (before.loaded, "had loaded"),
                    (before.failed, "had failed to load"),
                    (before.drained, "was drained"),
                    (!before.closing, "was not ordered to close"),
                ];
                let state: Vec<_> = state.iter().filter(|s| s.0).map(|s| s.1).collect();
                Err(format!(
                    "activation {} is reported to have {what}, but it {}",
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
