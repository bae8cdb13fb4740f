//! Traces of simulated processes, as real ones write them: what the trace validator is tried on.

use tenure_core::ids::ClusterName;
use tenure_core::machine::{Event, Step};
use tenure_core::node::NodeConfig;
use tenure_core::time::Time;
use tenure_core::trace_format::{FORMAT, TraceBegin, TraceLine, TraceStep};

use crate::check::Violation;
use crate::clock::{Clock, Instant};
use crate::event_log::EventLog;
use crate::event_queue::Pid;
use crate::run_config::{Family, RunConfig};
use crate::world::{ProtocolVariant, World, named};

/// What every process of a run wrote down.
#[derive(Debug, Default)]
pub struct Recording {
    processes: Vec<Vec<TraceLine>>,
}

impl Recording {
    pub(crate) fn began(&mut self, config: &NodeConfig, clock: Clock, family: Family) {
        let process = self.processes.len() as u32;
        let clock = match family {
            // Clocks of several machines may not be compared, whatever they show.
            Family::OneMachine => format!("machine/{}", clock.offset),
            _ => format!("process/{process}"),
        };
        self.processes
            .push(vec![TraceLine::Begin(Box::new(TraceBegin {
                format: FORMAT,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                commit: None,
                cluster: named(ClusterName::new("simulated")),
                process,
                clock: Some(clock),
                config: config.clone(),
            }))]);
    }

    pub(crate) fn stepped(&mut self, pid: Pid, t: Time, event: Event, step: &Step) {
        let lines = &mut self.processes[pid];
        lines.push(TraceLine::Step(TraceStep {
            n: lines.len() as u64,
            t,
            event,
            actions: step.actions.clone(),
            wake: step.wake,
        }));
    }

    /// The trace of each process.
    pub fn processes(&self) -> &[Vec<TraceLine>] {
        &self.processes
    }
}

/// Runs a plan to its end, or to the first broken promise, and writes down what the processes did.
pub fn record(plan: RunConfig, under: ProtocolVariant) -> (Recording, Option<Violation>) {
    let mut world = World::new(plan, under, EventLog::Off);
    world.recording = Some(Recording::default());
    let violation = world.run_until(Instant::MAX).err();
    (world.recording.unwrap_or_default(), violation)
}
