//! Report of one step of the model.

use super::reachability::Sight;

/// Report of a step, beside the state that it leads to.
#[derive(Debug, Default)]
pub(crate) struct StepReport {
    pub(crate) sights: u64,
    /// Lines that describe the step, if they are wanted.
    pub(crate) lines: Option<Vec<String>>,
}

impl StepReport {
    pub(crate) fn line(&mut self, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(words());
        }
    }

    pub(crate) fn saw(&mut self, sight: Sight) {
        self.sights |= sight.bit();
    }
}
