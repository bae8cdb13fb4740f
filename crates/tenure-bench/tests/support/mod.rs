//! Calls of `tenure-bench`, and a store with a cluster that it must leave as it was.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tenure_console::program;

/// Exit code and output of one call.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        let (out, err) = (&self.out, &self.err);
        assert_eq!(self.code, code, "stdout:\n{out}\nstderr:\n{err}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}", self.out))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs a program without the settings of the environment; only the path of `tenure` is passed on.
fn ran(mut command: Command, args: &[&str]) -> Ran {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") && name != program::TENURE_BIN {
            command.env_remove(name);
        }
    }
    command
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

pub(crate) fn bench(args: &[&str]) -> Ran {
    ran(Command::new(env!("CARGO_BIN_EXE_tenure-bench")), args)
}

pub(crate) fn tenure(args: &[&str]) -> Ran {
    ran(Command::new(program::tenure(None).unwrap()), args)
}

pub(crate) fn tenure_sim(args: &[&str]) -> Ran {
    ran(Command::new(program::beside("tenure-sim").unwrap()), args)
}

/// SQLite file with a cluster `shop` that has a keyspace `orders`.
pub(crate) struct Shop(tempfile::TempDir);

impl Shop {
    pub(crate) fn new() -> Self {
        let shop = Self(tempfile::tempdir().unwrap());
        let create = ["keyspace", "create", "orders", "--shards", "4"];
        tenure(&[&["-s", &shop.url(), "-c", "shop"], &create[..]].concat()).with(0);
        shop
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("shop.db").display())
    }

    /// The clusters in the store, as `tenure cluster list` prints them.
    pub(crate) fn clusters(&self) -> Value {
        tenure(&["-s", &self.url(), "cluster", "list", "--json"])
            .with(0)
            .json()
    }
}
