//! Turns the entries of a file into limits, and collects all faults on the way.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value as Scalar;

use super::document::{FileEntry, FileFormat, FileValue};
use super::fault::{FileFault, FileFaultKind};
use crate::limit::Limit;
use crate::spec::LimitSpec;
use crate::tokens::Tokens;

/// The limits of a text by name, or all its faults in the order of the text.
pub(super) fn read(text: &str, format: FileFormat) -> Result<BTreeMap<String, Limit>, Vec<FileFault>> {
    let mut reader = Reader { text, faults: Vec::new() };
    let limits = match format.entries(text) {
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
    fn limits(&mut self, entries: Vec<FileEntry>) -> BTreeMap<String, Limit> {
        let mut limits = BTreeMap::new();
        for FileEntry { key, key_at, value, .. } in entries {
            let FileValue::Table(fields) = value else {
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

    fn limit(&mut self, name: &str, name_at: usize, entries: Vec<FileEntry>) -> Limit {
        let fields = self.known_fields(name, entries);
        let spec = LimitSpec { capacity: None, ..VALID.spec() };
        let mut draft = LimitDraft { reader: self, name, name_at, fields, spec, limit: VALID };
        draft.set(name_at, |spec| name.clone_into(&mut spec.name));
        draft.required("kind", one_of_words, |spec, kind| spec.kind = kind);
        draft.required("rate", by_serde, |spec, rate| spec.rate = rate);
        draft.required("per", span_of_time, |spec, period| spec.period = period);
        draft.optional("capacity", by_serde, |spec, capacity| spec.capacity = capacity);
        draft.optional("start", span_of_time, |spec, start| spec.start = Some(start));
        draft.optional("resolution", by_serde, |spec, resolution| spec.resolution = Some(resolution));
        draft.optional("max_reserved", reservation_bound, |spec, bound| spec.max_reserved = bound);
        draft.optional("shards", by_serde, |spec, shards| spec.shards = shards);
        draft.optional("storage", one_of_words, |spec, storage| spec.storage = storage);
        draft.limit
    }

    fn known_fields(&mut self, limit: &str, entries: Vec<FileEntry>) -> BTreeMap<&'static str, FileEntry> {
        let mut fields = BTreeMap::new();
        for entry in entries {
            let canonical = if ["period", "lease"].contains(&entry.key.as_str()) { "per" } else { &entry.key };
            let key_at = entry.key_at;
            match FIELDS.iter().find(|field| field.name == canonical) {
                None => {
                    let suggestion = instead_of_field(&entry.key);
                    self.fault(key_at, Some(limit), FileFaultKind::UnknownField(entry.key), Some(suggestion));
                }
                Some(field) if fields.insert(field.name, entry).is_some() => {
                    self.fault(key_at, Some(limit), FileFaultKind::Repeated(field.name.to_owned()), None);
                }
                Some(_) => {}
            }
        }
        fields
    }

    fn fault(&mut self, at: usize, limit: Option<&str>, kind: FileFaultKind, suggestion: Option<String>) {
        let (line, column) = line_and_column(self.text, at);
        self.faults.push(FileFault { line, column, limit: limit.map(str::to_owned), kind, suggestion });
    }
}

/// A limit that gets its fields one by one. It is valid at each step: a field that would make it invalid is reported
/// and left out, so that the rest is checked as well.
struct LimitDraft<'r, 't> {
    reader: &'r mut Reader<'t>,
    name: &'r str,
    name_at: usize,
    fields: BTreeMap<&'static str, FileEntry>,
    spec: LimitSpec,
    limit: Limit,
}

impl LimitDraft<'_, '_> {
    fn required<T>(&mut self, field: &'static str, read: Read<T>, set: impl Fn(&mut LimitSpec, T)) {
        if !self.fields.contains_key(field) {
            let suggestion = Some(format!("add {}", help(field).example));
            self.fault(self.name_at, FileFaultKind::MissingField(field), suggestion);
        }
        self.optional(field, read, set);
    }

    fn optional<T>(&mut self, field: &'static str, read: Read<T>, set: impl Fn(&mut LimitSpec, T)) {
        let Some(FileEntry { value, value_at, .. }) = self.fields.remove(field) else { return };
        let (reason, suggestion) = match value {
            FileValue::Scalar(Scalar::Null) => return,
            FileValue::Scalar(scalar) => match read(&scalar) {
                Ok(value) => return self.set(value_at, |spec| set(spec, value)),
                Err(reason) => (reason, help(field).instead_of(&scalar)),
            },
            FileValue::Table(_) => ("it is a table".to_owned(), None),
            FileValue::Other(other) => (format!("it is {other}"), None),
        };
        let suggestion = suggestion.unwrap_or_else(|| format!("write {}", help(field).example));
        self.fault(value_at, FileFaultKind::WrongValue { field, reason }, Some(suggestion));
    }

    fn set(&mut self, at: usize, set: impl FnOnce(&mut LimitSpec)) {
        let mut spec = self.spec.clone();
        set(&mut spec);
        match Limit::try_from(spec.clone()) {
            Ok(limit) => (self.spec, self.limit) = (spec, limit),
            Err(error) => self.fault(at, FileFaultKind::Limit(error.fault), None),
        }
    }

    fn fault(&mut self, at: usize, kind: FileFaultKind, suggestion: Option<String>) {
        self.reader.fault(at, Some(self.name), kind, suggestion);
    }
}

/// Reads the value of a field, or says what is wrong with it.
type Read<T> = fn(&Scalar) -> Result<T, String>;

fn by_serde<T: DeserializeOwned>(scalar: &Scalar) -> Result<T, String> {
    T::deserialize(scalar).map_err(|error| format!("{scalar}: {error}"))
}

fn one_of_words<T: DeserializeOwned>(scalar: &Scalar) -> Result<T, String> {
    T::deserialize(scalar).map_err(|_| format!("{scalar} is unknown"))
}

fn span_of_time(scalar: &Scalar) -> Result<Duration, String> {
    let text = scalar.as_str().ok_or_else(|| format!("{scalar} has no unit"))?;
    humantime::parse_duration(text).map_err(|error| format!("{text:?} is not a span of time: {error}"))
}

fn reservation_bound(scalar: &Scalar) -> Result<Tokens, String> {
    if scalar == "unbounded" { Ok(Tokens::MAX) } else { by_serde(scalar) }
}

/// What to write instead of a field that no limit has.
fn instead_of_field(field: &str) -> String {
    if field == "name" {
        return "the table's name is the limit's name: remove this line".to_owned();
    }
    let known = FIELDS.map(|field| field.name);
    did_you_mean(field, &known).unwrap_or_else(|| format!("a limit has {}", known.join(", ")))
}

fn did_you_mean(written: &str, known: &[&'static str]) -> Option<String> {
    nearest(written, known.iter().copied()).map(|nearest| format!("did you mean {nearest:?}?"))
}

/// The candidate that `written` most probably misspells: at most every third letter is wrong, missing or swapped.
pub(super) fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let distance = |candidate: &&str| strsim::osa_distance(&written.to_lowercase(), &candidate.to_lowercase());
    let best = candidates.min_by_key(distance)?;
    let most = (written.chars().count().max(best.chars().count()) / 3).max(1);
    (distance(&best) <= most).then_some(best)
}

/// Both counted from 1, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// What suggestions need to know about a field.
struct FieldHelp {
    name: &'static str,
    example: &'static str,
    /// The words that the field takes.
    words: &'static [&'static str],
}

impl FieldHelp {
    /// What a wrong value probably means.
    fn instead_of(&self, scalar: &Scalar) -> Option<String> {
        match scalar.as_u64() {
            Some(seconds) if self.example == SPAN => Some(format!("did you mean \"{seconds}s\"?")),
            _ => did_you_mean(scalar.as_str()?, self.words),
        }
    }
}

fn help(field: &'static str) -> &'static FieldHelp {
    FIELDS.iter().find(|help| help.name == field).expect("each field that is read has its help")
}

/// What a limit is before its fields are read.
const VALID: Limit = Limit::fixed_window("valid", 1, Duration::from_secs(1));

/// In the order in which people write them.
const FIELDS: [FieldHelp; 9] = [
    FieldHelp {
        name: "kind",
        example: KIND,
        words: &["token_bucket", "fixed_window", "stepped_bucket", "sliding_window", "concurrency"],
    },
    FieldHelp { name: "rate", example: NUMBER, words: &[] },
    FieldHelp { name: "per", example: SPAN, words: &[] },
    FieldHelp { name: "capacity", example: NUMBER, words: &[] },
    FieldHelp { name: "start", example: SPAN, words: &[] },
    FieldHelp { name: "resolution", example: "a number of steps, such as resolution = 10", words: &[] },
    FieldHelp { name: "max_reserved", example: BOUND, words: &["unbounded"] },
    FieldHelp { name: "shards", example: "a number of rows, such as shards = 16", words: &[] },
    FieldHelp { name: "storage", example: r#"storage = "durable" or "ephemeral""#, words: &["durable", "ephemeral"] },
];
const BOUND: &str = r#"a number of tokens, or max_reserved = "unbounded""#;
const KIND: &str = r#"kind = "token_bucket", "fixed_window", "stepped_bucket", "sliding_window" or "concurrency""#;
const NUMBER: &str = "a number of tokens, such as rate = 10";
const SPAN: &str = r#"a span of time with its unit, such as per = "1h 30m""#;
