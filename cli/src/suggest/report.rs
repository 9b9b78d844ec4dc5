use serde::Serialize;
use serde_json::Value;
use tollgate::{Limit, LimitKind, Span, Tokens};
use tollgate_simulation::{Question, Suggestion};

use crate::error::CommandError;
use crate::output::{CAUTION, HEADING, columns, counted, span, styled};
use crate::trace::{Format, without};

/// The answer, for people and for programs.
#[derive(Debug, Serialize)]
pub(super) struct SuggestReport<'s> {
    trace: String,
    format: Format,
    /// Lines that were not understood.
    skipped: usize,
    calls: usize,
    keys: usize,
    span_us: u64,
    refuse_at_most: String,
    allowed_calls: usize,
    /// None where all callers share the limit.
    allowed_keys: Option<usize>,
    choices: Vec<ChoiceReport>,
    /// The place of the answer among the choices.
    chosen: usize,
    limit: &'s Limit,
    /// The answer as a line of a limits file.
    toml: String,
    caveats: &'s [String],
    #[serde(skip)]
    suggestion: &'s Suggestion,
}

#[derive(Debug, Serialize)]
struct ChoiceReport {
    rate: Tokens,
    capacity: Tokens,
    refused_calls: usize,
    refused_keys: Option<usize>,
}

impl<'s> SuggestReport<'s> {
    pub(super) fn of(
        trace: String,
        format: Format,
        skipped: usize,
        question: &Question,
        suggestion: &'s Suggestion,
    ) -> Result<Self, CommandError> {
        let keys = |keys| Some(keys).filter(|_| !question.is_global);
        let choices = suggestion.choices.iter().map(|choice| ChoiceReport {
            rate: choice.limit.rate,
            capacity: choice.limit.most(),
            refused_calls: choice.refused_calls,
            refused_keys: keys(choice.refused_keys),
        });
        let limit = &suggestion.chosen().limit;
        Ok(Self {
            trace,
            format,
            skipped,
            calls: suggestion.calls,
            keys: suggestion.keys,
            span_us: u64::try_from(suggestion.span.as_micros()).unwrap_or(u64::MAX),
            refuse_at_most: question.refuse_at_most.to_string(),
            allowed_calls: suggestion.allowed_calls,
            allowed_keys: keys(suggestion.allowed_keys),
            choices: choices.collect(),
            chosen: suggestion.choice,
            limit,
            toml: toml(limit)?,
            caveats: &suggestion.caveats,
            suggestion,
        })
    }

    /// The trace, a line for each choice, the answer, and what the trace does not tell.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![self.heard(), self.allowed(), String::new()];
        let per = Span(self.limit.period);
        let is_bucket = self.limit.kind == LimitKind::TokenBucket;
        let mut table = columns(&self.table());
        table[0] = styled(HEADING, &table[0]);
        lines.extend(table);
        lines.push(String::new());
        lines.push(if is_bucket {
            format!("> grants a key the least in any {per}: rate and capacity add up to the least")
        } else {
            "> is the smallest that refuses no more".to_owned()
        });
        lines.extend(self.caveats.iter().map(|caveat| format!("{}: {caveat}", styled(CAUTION, "caution"))));
        lines.extend([String::new(), self.toml.clone()]);
        lines.join("\n")
    }

    fn heard(&self) -> String {
        let (calls, keys) = (counted(self.calls, "call"), counted(self.keys, "key"));
        format!("{}: {calls} of {keys} in {}{}", self.trace, span(self.suggestion.span), without(self.skipped))
    }

    fn allowed(&self) -> String {
        let calls = counted(self.allowed_calls, "call");
        let keys = self.allowed_keys.map(|keys| format!(" and {}", counted(keys, "key"))).unwrap_or_default();
        format!("at most {} refused: {calls}{keys}", self.refuse_at_most)
    }

    fn table(&self) -> Vec<Vec<String>> {
        let per = Span(self.limit.period);
        let is_bucket = self.limit.kind == LimitKind::TokenBucket;
        let mut heads = vec![String::new(), format!("rate each {per}")];
        heads.extend(is_bucket.then(|| ["capacity".to_owned(), format!("in any {per}")]).into_iter().flatten());
        heads.extend(["refused calls", "share"].map(str::to_owned));
        heads.extend(self.allowed_keys.map(|_| ["refused keys", "share"].map(str::to_owned)).into_iter().flatten());
        let line = |(place, choice): (usize, &ChoiceReport)| {
            let ChoiceReport { rate, capacity, refused_calls, refused_keys } = *choice;
            let mark = if place == self.chosen { ">" } else { "" };
            let mut line = vec![mark.to_owned(), rate.to_string()];
            let sum = rate.checked_add(capacity).unwrap_or(Tokens::MAX);
            line.extend([capacity, sum].iter().filter(|_| is_bucket).map(Tokens::to_string));
            line.extend([refused_calls.to_string(), share(refused_calls, self.calls)]);
            line.extend(refused_keys.map(|keys| [keys.to_string(), share(keys, self.keys)]).into_iter().flatten());
            line
        };
        std::iter::once(heads).chain(self.choices.iter().enumerate().map(line)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share is for people")]
fn share(part: usize, whole: usize) -> String {
    format!("{:.3} %", 100.0 * part as f64 / whole as f64)
}

/// A limit as a line of a limits file.
fn toml(limit: &Limit) -> Result<String, serde_json::Error> {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name = limit.name();
    // TOML escapes as JSON does, and one character more.
    let name = if name.chars().all(is_bare) {
        name.to_owned()
    } else {
        Value::from(name).to_string().replace('\u{7f}', "\\u007f")
    };
    let kind = serde_json::to_value(limit.kind)?;
    let capacity = Some(limit.most()).filter(|_| limit.kind == LimitKind::TokenBucket);
    let capacity = capacity.map(|capacity| format!(", capacity = {capacity}")).unwrap_or_default();
    Ok(format!("{name} = {{ kind = {kind}, rate = {}, per = \"{}\"{capacity} }}", limit.rate, Span(limit.period)))
}
