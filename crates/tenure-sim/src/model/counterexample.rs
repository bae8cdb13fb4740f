//! The way to a broken promise, one line per event.

use super::canonical::without_bases;
use super::explore::Exploration;
use super::liveness::BOUND;
use super::state::State;
use super::step_report::StepReport;
use super::transitions::ModelAction;

/// How many lines of a beginning, or of a recovery that fails, are told.
const ENDS: usize = 40;

impl Exploration {
    /// What was broken, and how it came to that.
    pub(super) fn story(
        &self,
        promise: &str,
        path: &[(State, Option<ModelAction>)],
    ) -> (String, Vec<String>) {
        let mut telling = StepReport {
            lines: Some(Vec::new()),
            ..StepReport::default()
        };
        if let [(only, None)] = path {
            self.tell_beginning(only, &mut telling);
        }
        for (state, act) in path {
            if let Some(act) = act {
                state.clone().apply_act(*act, self.rules, &mut telling);
            }
        }
        let last = path.last().map(|(state, _)| state);
        let what = match last.map(|state| (state, &state.broken)) {
            Some((_, Some(breach))) => breach.to_string(),
            Some((state, None)) => {
                format!("{promise}: {}", self.tell_recovery(state, &mut telling))
            }
            None => promise.to_owned(),
        };
        let lines = telling.lines.unwrap_or_default();
        let tidy = |line: &String| without_bases(line);
        (without_bases(&what), lines.iter().map(tidy).collect())
    }

    /// Tells the end of the start, for a promise that is broken before anything goes wrong.
    fn tell_beginning(&self, broken: &State, telling: &mut StepReport) {
        let print = broken.print();
        for beginning in self.beginnings() {
            let mut all = StepReport {
                lines: Some(Vec::new()),
                ..StepReport::default()
            };
            if self.begin(&beginning, &mut all).print() == print {
                let lines = all.lines.unwrap_or_default();
                let skipped = lines.len().saturating_sub(ENDS);
                telling.line(|| format!("({skipped} lines of the start before)"));
                lines[skipped..]
                    .iter()
                    .for_each(|line| telling.line(|| line.clone()));
                return;
            }
        }
    }

    /// Tells the beginning of a recovery that does not succeed, and what is missing at its end.
    fn tell_recovery(&self, state: &State, telling: &mut StepReport) -> String {
        telling.line(|| "faults stop here".to_owned());
        let begun = telling.lines.as_ref().map_or(0, Vec::len);
        let mut state = state.healed(self.rules, telling);
        let mut steps = 0;
        while let Some(act) = state
            .first_calm()
            .filter(|_| steps < BOUND && state.broken.is_none())
        {
            state.apply_act(act, self.rules, telling);
            state.keep_going(self.rules, telling);
            steps += 1;
        }
        if let Some(lines) = &mut telling.lines {
            lines.truncate(begun + ENDS);
        }
        let missing = state.missing().unwrap_or("nothing any more");
        let missing = match &state.broken {
            Some(breach) => breach.to_string(),
            None => missing.to_owned(),
        };
        format!("after {steps} steps without faults: {missing}")
    }
}
