//! Makes a failing run smaller: leaves out whatever it fails without.

use crate::check::Violation;
use crate::event_log::EventLog;
use crate::run::run_plan;
use crate::run_config::{Mask, RunConfig};
use crate::world::ProtocolVariant;

/// A failing run with as little in it as could be found.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// What was left out.
    pub mask: Mask,
    /// How many faults are left.
    pub faults: usize,
    /// What is still broken.
    pub violation: Violation,
}

/// Leaves out parts of a run, larger ones first, as long as the same promise is still broken; `None` if none is.
pub fn shrink(seed: u64, under: ProtocolVariant) -> Option<Shrunk> {
    let plan = RunConfig::draw(seed);
    let fails = |mask: &Mask| run_plan(plan.clone().masked(mask), under, EventLog::Off).violation;
    let mut mask = Mask::default();
    let mut violation = fails(&mask)?;
    let promise = violation.promise;
    let mut attempt = |candidate: Mask, mask: &mut Mask| {
        if let Some(found) = fails(&candidate).filter(|found| found.promise == promise) {
            violation = found;
            *mask = candidate;
        }
    };
    for part in [
        |m: &mut Mask| m.net = true,
        |m: &mut Mask| m.watch = true,
        |m: &mut Mask| m.app = true,
        |m: &mut Mask| m.clocks = true,
    ] {
        let mut candidate = mask.clone();
        part(&mut candidate);
        attempt(candidate, &mut mask);
    }
    let count = plan.faults.len();
    let mut size = count;
    while size > 0 {
        for from in (0..count).step_by(size) {
            let mut candidate = mask.clone();
            candidate.faults.extend(from..(from + size).min(count));
            if candidate != mask {
                attempt(candidate, &mut mask);
            }
        }
        size /= 2;
    }
    Some(Shrunk {
        faults: count - mask.faults.len(),
        mask,
        violation,
    })
}
