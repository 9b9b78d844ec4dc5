//! Turns the entries of a file into limits, and collects all faults on the way.
//!
//! The reader notes the first fault of a limit, puts something harmless in its place, and runs the checks of
//! `LimitSpec` again until none complains. So a file has no rules of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value as Scalar, json};

use super::document::{FieldValue, FileEntry, FileFormat, LimitFields};
use super::fault::{FileFault, FileFaultKind};
use crate::limit::{Limit, LimitSpec};

/// The limits of a text by name, or all its faults in the order of the text.
pub(super) fn read(text: &str, format: FileFormat) -> Result<BTreeMap<String, Limit>, Vec<FileFault>> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader { text, faults: Vec::new() };
    let limits = match format.limits(text) {
        Ok(entries) => reader.limits(entries),
        Err(faults) => {
            for (message, at) in faults {
                reader.fault(at, None, FileFaultKind::Syntax(message), None);
            }
            BTreeMap::new()
        }
    };
    reader.faults.sort_by_key(|fault| (fault.line, fault.column));
    if reader.faults.is_empty() { Ok(limits) } else { Err(reader.faults) }
}

struct Reader<'t> {
    text: &'t str,
    faults: Vec<FileFault>,
}

impl Reader<'_> {
    fn limits(&mut self, entries: Vec<FileEntry<Option<LimitFields>>>) -> BTreeMap<String, Limit> {
        let mut limits = BTreeMap::new();
        for FileEntry { key, key_at, value, .. } in entries {
            let Some(fields) = value else {
                let suggestion = format!("write [{key}], and its fields below");
                self.fault(key_at, None, FileFaultKind::NotATable(key), Some(suggestion));
                continue;
            };
            let limit = self.limit(&key, key_at, fields);
            if limits.insert(key.clone(), limit).is_some() {
                self.fault(key_at, None, FileFaultKind::Repeated(key), None);
            }
        }
        limits
    }

    fn limit(&mut self, name: &str, name_at: usize, fields: LimitFields) -> Limit {
        let mut fields = self.known_fields(name, fields);
        let (mut draft, required) = Draft::of_kind(fields.get("kind").map(|kind| &kind.value));
        if let Err(kind) = draft.set("name", &Ok(name.into())) {
            self.fault(name_at, Some(name), kind, None);
        }
        for (nth, (field, example)) in FIELDS.into_iter().enumerate() {
            match fields.remove(field) {
                Some(FileEntry { value, value_at, .. }) => {
                    if let Err(kind) = draft.set(field, &value) {
                        let suggestion = instead_of_value(&value, &kind, example);
                        self.fault(value_at, Some(name), kind, suggestion);
                    }
                }
                None if nth < required => {
                    let suggestion = Some(format!("add {example}"));
                    self.fault(name_at, Some(name), FileFaultKind::MissingField(field), suggestion);
                }
                None => {}
            }
        }
        draft.limit
    }

    fn known_fields(&mut self, limit: &str, fields: LimitFields) -> BTreeMap<&'static str, FileEntry<FieldValue>> {
        let mut known = BTreeMap::new();
        for entry in fields {
            let canonical = match entry.key.as_str() {
                "period" | "lease" => "per",
                "overdraft" => "max_reserved",
                other => other,
            };
            let key_at = entry.key_at;
            match FIELDS.into_iter().find(|(field, _)| *field == canonical) {
                None => {
                    let suggestion = instead_of_field(&entry.key);
                    self.fault(key_at, Some(limit), FileFaultKind::UnknownField(entry.key), Some(suggestion));
                }
                Some((field, _)) if known.insert(field, entry).is_some() => {
                    self.fault(key_at, Some(limit), FileFaultKind::Repeated(field.to_owned()), None);
                }
                Some(_) => {}
            }
        }
        known
    }

    fn fault(&mut self, at: usize, limit: Option<&str>, kind: FileFaultKind, suggestion: Option<String>) {
        let (line, column) = line_and_column(self.text, at);
        self.faults.push(FileFault { line, column, limit: limit.map(str::to_owned), kind, suggestion });
    }
}

/// A limit that gets its fields one by one. The limit is valid at each step: a field that would make it invalid is left
/// out, so that the rest is checked as well.
struct Draft {
    /// The fields as a serialized [`LimitSpec`].
    fields: Scalar,
    limit: Limit,
}

impl Draft {
    /// A draft to begin with, and the number of required fields: a wallet has neither a rate nor a period.
    fn of_kind(kind: Option<&FieldValue>) -> (Self, usize) {
        if matches!(kind, Some(Ok(Scalar::String(kind))) if kind == "wallet") {
            let fields = json!({ "name": "valid", "kind": "wallet" });
            return (Self { fields, limit: Limit::wallet("valid") }, 1);
        }
        let fields = json!({ "name": "valid", "kind": "fixed_window", "rate": 1, "per": "1s" });
        (Self { fields, limit: Limit::fixed_window("valid", 1, Duration::from_secs(1)) }, REQUIRED)
    }

    fn set(&mut self, field: &'static str, value: &FieldValue) -> Result<(), FileFaultKind> {
        let wrong = |reason| FileFaultKind::WrongValue { field, reason };
        let mut fields = self.fields.clone();
        fields[field] = value.clone().map_err(|other| wrong(format!("it is {other}")))?;
        let spec = LimitSpec::deserialize(&fields).map_err(|error| wrong(error.to_string()))?;
        self.limit = Limit::try_from(spec).map_err(|error| FileFaultKind::Limit(error.fault))?;
        self.fields = fields;
        Ok(())
    }
}

/// A suggestion in place of a value that its field does not take.
fn instead_of_value(value: &FieldValue, kind: &FileFaultKind, example: &str) -> Option<String> {
    let FileFaultKind::WrongValue { reason, .. } = kind else { return None };
    // The reason itself says what to write.
    if reason.ends_with(')') {
        return None;
    }
    let meant = match value {
        // The reason quotes the word, and then those that the field takes.
        Ok(Scalar::String(word)) => did_you_mean(word, reason.split('`').skip(3).step_by(2)),
        Ok(scalar) if example == SPAN => scalar.as_u64().map(|seconds| format!("did you mean \"{seconds}s\"?")),
        _ => None,
    };
    Some(meant.unwrap_or_else(|| format!("write {example}")))
}

/// A suggestion in place of a field that no limit has.
fn instead_of_field(field: &str) -> String {
    if field == "name" {
        return "the table's name is the limit's name: remove this line".to_owned();
    }
    let known = FIELDS.map(|(field, _)| field);
    did_you_mean(field, known.into_iter()).unwrap_or_else(|| format!("a limit has {}", known.join(", ")))
}

fn did_you_mean<'c>(written: &str, known: impl Iterator<Item = &'c str>) -> Option<String> {
    nearest(written, known).map(|nearest| format!("did you mean {nearest:?}?"))
}

/// The candidate that `written` most probably misspells: at most every third letter is wrong, missing or swapped.
pub(super) fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let distance = |candidate: &&str| strsim::osa_distance(&written.to_lowercase(), &candidate.to_lowercase());
    let best = candidates.min_by_key(distance)?;
    let most = (written.chars().count().max(best.chars().count()) / 3).max(1);
    (distance(&best) <= most).then_some(best)
}

/// Both count from 1. The column counts characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The fields of a limit, and an example of each. They are in the order in which people write them. A field that does
/// not go with the kind of limit is the fault, because it comes later.
const FIELDS: [(&str, &str); 9] = [
    ("kind", r#"kind = "token_bucket", "fixed_window", "stepped_bucket", "sliding_window", "concurrency" or "wallet""#),
    ("rate", NUMBER),
    ("per", SPAN),
    ("capacity", NUMBER),
    ("start", SPAN),
    ("resolution", "a number of steps, such as resolution = 10"),
    ("max_reserved", r#"a number of tokens, or max_reserved = "unbounded"; of a wallet, overdraft"#),
    ("shards", "a number of rows, such as shards = 16"),
    ("storage", r#"storage = "durable" or "ephemeral""#),
];
/// The number of required fields, except for a wallet.
const REQUIRED: usize = 3;
const NUMBER: &str = "a number of tokens, such as rate = 10";
const SPAN: &str = r#"a span of time with its unit, such as per = "1h 30m""#;
