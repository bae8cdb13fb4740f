//! Failures of commands, with their exit codes.

use std::fmt;
use std::process::ExitCode;

/// Failure of a command, printed once on standard error.
#[derive(Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code: 1 if the command failed, was rejected or found a condition not met; 2 for invalid usage or input.
    pub code: u8,
    /// The message, with the offending input and the way out.
    pub message: String,
}

impl Exit {
    /// A failure or rejection: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
        }
    }

    /// Invalid usage, input or configuration: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            code: 2,
            message: message.into(),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints a failure on standard error and returns the exit code of the program.
pub fn finish(done: Result<ExitCode, Exit>) -> ExitCode {
    done.unwrap_or_else(|exit| {
        for line in exit.message.lines() {
            eprintln!("error: {line}");
        }
        ExitCode::from(exit.code)
    })
}

#[cfg(feature = "library-errors")]
mod library_errors {
    use tenure::AdminError;
    use tenure_core::ids::BadName;
    use tenure_queue::QueueError;
    use tenure_store::StoreError;

    use super::Exit;

    impl From<StoreError> for Exit {
        fn from(error: StoreError) -> Self {
            Self::failed(error.to_string())
        }
    }

    impl From<BadName> for Exit {
        fn from(error: BadName) -> Self {
            Self::usage(error.to_string())
        }
    }

    impl From<AdminError> for Exit {
        fn from(error: AdminError) -> Self {
            match error {
                AdminError::Invalid(message) => Self::usage(message),
                AdminError::Raced(what) => Self::failed(format!("{what}; run the command again")),
                AdminError::OutcomeUnknown { key, done, reason } => Self::failed(format!(
                    "whether {key} was {done} is unknown ({reason}); run the command again, it is safe to repeat"
                )),
                other => Self::failed(other.to_string()),
            }
        }
    }

    impl From<QueueError> for Exit {
        fn from(error: QueueError) -> Self {
            match error {
                QueueError::Invalid(problems) => Self::usage(problems.join("\n")),
                QueueError::Store(StoreError::Denied { reason }) => Self::usage(reason),
                QueueError::NoQueue { ref queue, .. } => {
                    Self::failed(format!("{error}: `tenure queue create {queue}`"))
                }
                QueueError::Deleted(queue) => Self::failed(format!(
                    "queue {queue:?} was deleted, or its deletion was interrupted; `tenure queue delete {queue}` finishes it"
                )),
                QueueError::Corrupt { key, reason } => Self::failed(format!(
                    "key {key:?} is corrupt: {reason}; `tenure queue repair-index` reports all such keys, and removing the \
                     key is safe"
                )),
                other => Self::failed(other.to_string()),
            }
        }
    }
}
