//! Questions to whoever sits at the terminal.

use std::io::{IsTerminal, Write, stderr, stdin};

use crate::error::CommandError;

/// Whether somebody at the terminal says yes.
pub(crate) fn confirmed(question: &str) -> Result<bool, CommandError> {
    write!(stderr(), "{question} [y/N] ")?;
    stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Fails where nobody can answer; says what then was not done.
pub(crate) fn expect_terminal(not_done: &str) -> Result<(), CommandError> {
    if stdin().is_terminal() {
        return Ok(());
    }
    let what = format!("{not_done}: this asks first, and nobody can answer here");
    Err(CommandError::new(what, "say --yes"))
}
