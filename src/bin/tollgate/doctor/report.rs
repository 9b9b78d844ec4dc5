use std::io::Write;

use serde_json::json;

use super::finding::{Finding, Severity};
use crate::error::CommandError;
use crate::output::{self, BAD, CAUTION, FAINT, GOOD, OutputArgs, counted, styled};

pub(super) fn print(output: OutputArgs, findings: &[Finding]) -> Result<(), CommandError> {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings, notes) = (count(Severity::Error), count(Severity::Warning), count(Severity::Note));
    if output.json {
        return output::json(&json!({ "is_healthy": errors == 0, "findings": findings }));
    }
    let mut out = output::out();
    for Finding { severity, what, meaning, remedy, .. } in findings {
        let label = match severity {
            Severity::Error => styled(BAD, "error"),
            Severity::Warning => styled(CAUTION, "warning"),
            Severity::Note => styled(FAINT, "note"),
        };
        writeln!(out, "{label}: {what}\n  {meaning}\n  {} {remedy}\n", styled(FAINT, "→"))?;
    }
    let healthy = if errors == 0 { styled(GOOD, "healthy") } else { styled(BAD, "not healthy") };
    Ok(writeln!(
        out,
        "{healthy}: {}, {}, {}",
        counted(errors, "error"),
        counted(warnings, "warning"),
        counted(notes, "note")
    )?)
}
