use serde::Serialize;
use serde_json::json;

use tollgate::migrate::Rights;

use crate::error::CommandError;
use crate::migrate::{rights_document, who_may};
use crate::output::{BAD, CAUTION, FAINT, GOOD, OutputArgs, counted, printable, styled};

/// A fault, a risk, or a fact worth knowing; its meaning; and its remedy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// A stable word for scripts.
    check: &'static str,
    what: String,
    meaning: &'static str,
    remedy: String,
}

/// How bad it is; the worst first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// Callers fail, or get a wrong answer, now.
    Error,
    /// It costs something, or will hurt one day.
    Warning,
    /// Worth knowing.
    Note,
}

type Fixed = &'static str;

impl Finding {
    pub(super) fn error(check: Fixed, what: impl Into<String>, meaning: Fixed, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Error, check, what: what.into(), meaning, remedy: remedy.into() }
    }

    pub(super) fn warning(check: Fixed, what: impl Into<String>, meaning: Fixed, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(check, what, meaning, remedy) }
    }

    pub(super) fn note(check: Fixed, what: impl Into<String>, meaning: Fixed, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(check, what, meaning, remedy) }
    }
}

pub(super) fn print(output: OutputArgs, findings: &[Finding], rights: Option<&Rights>) -> Result<(), CommandError> {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let errors = count(Severity::Error);
    let rights_document = rights.map(rights_document);
    output.print(&json!({ "is_healthy": errors == 0, "findings": findings, "rights": rights_document }), || {
        let text = |Finding { severity, what, meaning, remedy, .. }: &Finding| {
            let label = match severity {
                Severity::Error => styled(BAD, "error"),
                Severity::Warning => styled(CAUTION, "warning"),
                Severity::Note => styled(FAINT, "note"),
            };
            // Both may have names that a stranger chose.
            let (what, remedy) = (printable(what), printable(remedy));
            format!("{label}: {what}\n  {meaning}\n  {} {remedy}\n", styled(FAINT, "→"))
        };
        let healthy = if errors == 0 { styled(GOOD, "healthy") } else { styled(BAD, "not healthy") };
        let (errors, warnings) = (counted(errors, "error"), counted(count(Severity::Warning), "warning"));
        let sum = format!("{healthy}: {errors}, {warnings}, {}", counted(count(Severity::Note), "note"));
        findings.iter().map(text).chain(rights.map(who_may)).chain([sum]).collect::<Vec<_>>().join("\n")
    })
}
