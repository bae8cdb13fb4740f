//! Asking before something is taken away.

use std::io::{self, BufRead as _, IsTerminal as _};

use crate::exit::Exit;

/// Goes on if `yes` was passed or a person says so at the terminal.
pub(crate) fn confirm(yes: bool, what: &str) -> Result<(), Exit> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Exit::usage(format!("{what}; pass --yes to confirm")));
    }
    eprint!("{what}. Type yes to continue: ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && answer.trim() == "yes" {
        return Ok(());
    }
    Err(Exit::failed("not confirmed; nothing was changed"))
}
