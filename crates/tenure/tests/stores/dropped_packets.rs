//! Packets that are really dropped, by a table of the packet filter that belongs to one test alone.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// All packets of one port of this machine are dropped for as long as this is kept.
pub(crate) struct Dropped {
    table: String,
}

impl Dropped {
    /// Drops what comes to and from a port, if this process may; says so where it may not.
    pub(crate) fn at(port: u16) -> Option<Self> {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let table = format!("tenure_test_{}_{number}", std::process::id());
        let rules = format!(
            "table inet {table} {{ chain cut {{ type filter hook input priority 0; policy accept; \
             iif \"lo\" tcp dport {port} drop; iif \"lo\" tcp sport {port} drop; }}\n}}\n"
        );
        if !nft("list tables") {
            tenure_store::servers::skipped(
                "packets cannot be dropped (nft is missing, or this is not root)",
            );
            return None;
        }
        let dropped = Self { table };
        assert!(nft(&rules), "nft does not take: {rules}");
        Some(dropped)
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        // Nothing to delete if it was never made.
        nft(&format!("delete table inet {}", self.table));
    }
}

fn nft(rules: &str) -> bool {
    let child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    if let Some(mut stdin) = child.stdin.take() {
        // What nft does not take, its exit code tells.
        let _ = stdin.write_all(rules.as_bytes());
    }
    child.wait().is_ok_and(|status| status.success())
}
