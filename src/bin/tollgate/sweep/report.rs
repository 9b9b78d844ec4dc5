use std::fmt;

use serde::Serialize;
use tollgate::Swept;

use crate::output::counted;

/// What one pass did.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) swept: Swept,
    /// Whether it came to its end.
    pub(super) complete: bool,
    pub(super) dry_run: bool,
    pub(super) seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Swept { buckets, rate_limits, kept, missed, pages, yielded, .. } = self.swept;
        let verb = if self.dry_run { "would delete" } else { "deleted" };
        write!(f, "{verb} {rate_limits} durable and {buckets} ephemeral rows")?;
        write!(f, "; looked at {} in {:.1} s", counted(pages, "page"), self.seconds)?;
        if kept > 0 {
            write!(f, "; kept {}, not full by the limits file or within the margin", counted(kept, "row"))?;
        }
        if missed > 0 {
            write!(f, "; left {} in use", counted(missed, "row"))?;
        }
        if yielded {
            write!(f, "; another sweeper is at work, and has the rest")?;
        } else if !self.complete {
            write!(f, "; ended early")?;
        }
        Ok(())
    }
}
