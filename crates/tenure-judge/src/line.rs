//! One line of a log.

use std::borrow::Cow;

use serde::Deserialize;

/// One line of a log: what a process says it was doing, and when.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LogLine<'a> {
    /// Nanoseconds of the machine's boot-time monotonic clock.
    pub t: u64,
    /// The process that does the work.
    pub pid: u64,
    /// What it works on.
    #[serde(borrow)]
    pub shard: Cow<'a, str>,
    /// The fencing token it works under.
    pub epoch: u64,
    /// What happened.
    pub ev: LogEvent,
    /// The node on whose behalf it works.
    #[serde(borrow)]
    pub node: Cow<'a, str>,
}

/// What a line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogEvent {
    /// The work begins.
    Start,
    /// The work is still going on.
    Beat,
    /// The work has changed something that others can see.
    Effect,
    /// The work is over.
    End,
}

impl LogEvent {
    /// The word that stands for it in a log.
    pub fn name(self) -> &'static str {
        match self {
            LogEvent::Start => "start",
            LogEvent::Beat => "beat",
            LogEvent::Effect => "effect",
            LogEvent::End => "end",
        }
    }
}

impl<'a> LogLine<'a> {
    /// Reads one line of a log, without its line end.
    pub fn parse(bytes: &'a [u8]) -> Result<LogLine<'a>, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"t":7,"pid":3,"shard":"orders/17","epoch":4294967297,"ev":"beat", "node":"n1"}"#;

    #[test]
    fn a_line_is_read_field_by_field() {
        let line = LogLine::parse(GOOD.as_bytes()).unwrap();
        let expected = LogLine {
            t: 7,
            pid: 3,
            shard: "orders/17".into(),
            epoch: 4_294_967_297,
            ev: LogEvent::Beat,
            node: "n1".into(),
        };
        assert_eq!(line, expected);
    }

    #[test]
    fn fields_of_ones_own_and_escaped_names_are_accepted() {
        let text =
            r#"{"extra":[1],"t":1,"pid":1,"shard":"a\"b\u00e9","epoch":1,"ev":"end","node":"n"}"#;
        assert_eq!(LogLine::parse(text.as_bytes()).unwrap().shard, "a\"bé");
    }

    #[test]
    fn a_line_that_lacks_a_field_or_has_a_wrong_one_is_refused() {
        let cases = [
            ("\"t\":7,", "", "missing field `t`"),
            ("\"t\":7,", "\"t\":-7,", "invalid value"),
            ("\"t\":7,", "\"t\":7.5,", "invalid type"),
            (", \"node\":\"n1\"", "", "missing field `node`"),
            ("beat", "stopped", "unknown variant `stopped`"),
            ("}", "} {", "trailing characters"),
            ("\"pid\":3", "\"pid\":3,\"pid\":4", "duplicate field `pid`"),
        ];
        for (from, to, message) in cases {
            let text = GOOD.replace(from, to);
            let error = LogLine::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn no_proper_beginning_of_a_line_is_itself_a_line() {
        for cut in 0..GOOD.len() {
            assert!(
                LogLine::parse(&GOOD.as_bytes()[..cut]).is_err(),
                "{}",
                &GOOD[..cut]
            );
        }
    }
}
