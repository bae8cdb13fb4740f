//! What a store finds out about its own surroundings, for `tenure store check`.

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but something may go wrong that need not.
    Warn,
    /// A promise does not hold, or will not for long.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub about: &'static str,
    /// How good it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do about it, unless all is well.
    pub advice: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(about: &'static str, found: impl Into<String>) -> Self {
        Self {
            about,
            level: Level::Ok,
            found: found.into(),
            advice: None,
        }
    }

    /// It works, but.
    pub fn warn(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            about,
            level: Level::Warn,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }

    /// A promise does not hold.
    pub fn fail(about: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            about,
            level: Level::Fail,
            found: found.into(),
            advice: Some(advice.into()),
        }
    }
}
