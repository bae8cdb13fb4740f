//! Printed names of Rust items in transcripts and digests.
//!
//! Transcripts, digests and counterexamples print values by their `Debug` form. This table fixes the printed word of each name
//! that the code spells differently, so that a renamed type, variant or field changes no transcript.

use std::fmt::Debug;

/// Rust name and printed word, ordered by name.
const WORDS: &[(&str, &str)] = &[
    ("ActivationId", "RunId"),
    ("CheckLease", "AskLease"),
    ("ClockJump", "Overslept"),
    ("CreateLease", "Grant"),
    ("LeadershipAcquired", "Leads"),
    ("LeadershipLost", "LeadsNoLonger"),
    ("LoopEnded", "RunEnded"),
    ("LoopFailed", "RunFailed"),
    ("MoveRequested", "Wished"),
    ("PlanId", "PlanMark"),
    ("StoreReplaced", "Estranged"),
    ("Unattached", "Loose"),
    ("WouldDo", "Would"),
];

/// `Debug` form of a value with the words of [`WORDS`]. Text in quotation marks is left as it is.
pub(crate) fn spelled(value: &impl Debug) -> String {
    respell(&format!("{value:?}"), WORDS)
}

fn respell(text: &str, words: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut name = String::new();
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars().chain(['\0']) {
        if !quoted && (c == '_' || c.is_ascii_alphanumeric()) {
            name.push(c);
            continue;
        }
        let word = words.binary_search_by(|(rust, _)| (*rust).cmp(&name));
        out.push_str(word.map_or(&name, |at| words[at].1));
        name.clear();
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        if c != '\0' {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_as_wholes_and_quoted_text_is_not() {
        let words = [("Run", "Go"), ("id", "number")];
        let text = r#"Run { id: 1, ids: Running("Run \" id"), Run }"#;
        let expected = r#"Go { number: 1, ids: Running("Run \" id"), Go }"#;
        assert_eq!(respell(text, &words), expected);
    }

    #[test]
    fn the_table_is_ordered_and_no_entry_is_idle() {
        assert!(WORDS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(WORDS.iter().all(|(name, word)| name != word));
    }
}
