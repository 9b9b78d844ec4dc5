use serde::Serialize;

/// What is wrong, or risky, or worth knowing; what that means; and what to do about it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// A stable word for scripts.
    pub(super) check: &'static str,
    pub(super) what: String,
    pub(super) meaning: String,
    pub(super) remedy: String,
}

impl Finding {
    pub(super) fn error(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, check, what.into())
    }

    pub(super) fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, check, what.into())
    }

    pub(super) fn note(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Note, check, what.into())
    }

    pub(super) fn means(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = meaning.into();
        self
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    fn new(severity: Severity, check: &'static str, what: String) -> Self {
        Self { severity, check, what, meaning: String::new(), remedy: String::new() }
    }
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
