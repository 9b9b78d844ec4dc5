//! From entries to limits: all that is wrong with each, and not only the first thing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value as Scalar;

use super::document::{Entry, Format, SyntaxFault, Value};
use super::fault::{FileFault, FileFaultKind};
use super::nearest::nearest;
use crate::limit::{Limit, LimitFault, Storage};
use crate::spec::{LimitKind, LimitSpec};
use crate::tokens::Tokens;

/// The limits of a text, or all its faults in the order of their places.
pub(super) fn read(text: &str, format: Format) -> Result<Vec<Limit>, Vec<FileFault>> {
    let mut reader = Reader { text, faults: Vec::new() };
    let limits = match format.entries(text) {
        Ok(entries) => reader.limits(entries),
        Err(faults) => {
            for SyntaxFault { message, at } in faults {
                reader.fault(at, None, FileFaultKind::Syntax(message), None);
            }
            Vec::new()
        }
    };
    if reader.faults.is_empty() {
        return Ok(limits);
    }
    reader.faults.sort_by_key(|fault| (fault.line, fault.column));
    Err(reader.faults)
}

struct Reader<'t> {
    text: &'t str,
    faults: Vec<FileFault>,
}

impl Reader<'_> {
    fn limits(&mut self, entries: Vec<Entry<'_>>) -> Vec<Limit> {
        let mut limits: BTreeMap<String, Limit> = BTreeMap::new();
        for Entry { key, key_at, value, .. } in entries {
            let Value::Table(fields) = value else {
                let suggestion = format!("write [{key}], and its fields below");
                self.fault(key_at, None, FileFaultKind::NotATable(key.into_owned()), Some(suggestion));
                continue;
            };
            let limit = self.limit(&key, key_at, fields);
            if limits.insert(key.clone().into_owned(), limit).is_some() {
                self.fault(key_at, None, FileFaultKind::Repeated(key.into_owned()), None);
            }
        }
        limits.into_values().collect()
    }

    /// One limit. What is wrong with it is noted, and something harmless taken instead, so that the rest is checked as well.
    fn limit(&mut self, name: &str, name_at: usize, entries: Vec<Entry<'_>>) -> Limit {
        let mut fields = self.fields(name, entries);
        let mut table = Table { reader: self, name, name_at, fields: &mut fields };
        let mut spec = LimitSpec::new(name, LimitKind::FixedWindow, Tokens::ONE, HARMLESS_PERIOD);
        let kind = table.required("kind");
        spec.kind = kind.unwrap_or(spec.kind);
        spec.rate = table.required("rate").unwrap_or(spec.rate);
        spec.period = table.required("per").map_or(spec.period, |Span(span)| span);
        spec.capacity = table.optional("capacity");
        spec.start = table.optional("start").map(|Span(span)| span);
        spec.max_reserved = table.optional("max_reserved").map_or(spec.max_reserved, |Bound(bound)| bound);
        spec.shards = table.optional("shards").unwrap_or(spec.shards);
        spec.storage = table.optional("storage").unwrap_or(spec.storage);
        loop {
            match Limit::try_from(spec.clone()) {
                Ok(limit) => return limit,
                Err(error) => {
                    let field = mend(&mut spec, error.fault);
                    let at = fields.get(field).map_or(name_at, |field| field.at);
                    self.fault(at, Some(name), FileFaultKind::Limit(error.fault), None);
                }
            }
        }
    }

    /// The known fields by name.
    fn fields(&mut self, limit: &str, entries: Vec<Entry<'_>>) -> BTreeMap<&'static str, Field> {
        let mut fields = BTreeMap::new();
        for Entry { key, key_at, value, value_at } in entries {
            let canonical = if key == "period" { "per" } else { &key };
            let Some(field) = FIELDS.into_iter().find(|&field| field == canonical) else {
                let suggestion = instead_of(&key);
                self.fault(key_at, Some(limit), FileFaultKind::UnknownField(key.into_owned()), suggestion);
                continue;
            };
            let value = match value {
                Value::Scalar(scalar) => Ok(scalar),
                Value::Table(_) => Err("a table"),
                Value::Other(other) => Err(other),
            };
            if fields.insert(field, Field { at: value_at, value }).is_some() {
                self.fault(key_at, Some(limit), FileFaultKind::Repeated(field.to_owned()), None);
            }
        }
        fields
    }

    fn fault(&mut self, at: usize, limit: Option<&str>, kind: FileFaultKind, suggestion: Option<String>) {
        let (line, column) = line_and_column(self.text, at);
        self.faults.push(FileFault { line, column, limit: limit.map(str::to_owned), kind, suggestion });
    }
}

/// A value that a field was given, or what it is that no field takes.
struct Field {
    at: usize,
    value: Result<Scalar, &'static str>,
}

/// The fields of one limit, being read.
struct Table<'r, 't> {
    reader: &'r mut Reader<'t>,
    name: &'r str,
    name_at: usize,
    fields: &'r mut BTreeMap<&'static str, Field>,
}

impl Table<'_, '_> {
    fn required<T: FieldValue>(&mut self, field: &'static str) -> Option<T> {
        if !self.fields.contains_key(field) {
            let suggestion = Some(format!("add {}", T::EXAMPLE));
            self.reader.fault(self.name_at, Some(self.name), FileFaultKind::MissingField(field), suggestion);
        }
        self.optional(field)
    }

    fn optional<T: FieldValue>(&mut self, field: &'static str) -> Option<T> {
        let Field { at, value } = self.fields.get(field)?;
        let (reason, suggestion) = match value {
            Ok(Scalar::Null) => return None,
            Ok(scalar) => match T::read(scalar) {
                Ok(value) => return Some(value),
                Err(reason) => (reason, T::instead_of(scalar)),
            },
            Err(other) => (format!("it is {other}"), None),
        };
        let suggestion = suggestion.or_else(|| Some(format!("write {}", T::EXAMPLE)));
        self.reader.fault(*at, Some(self.name), FileFaultKind::WrongValue { field, reason }, suggestion);
        None
    }
}

/// What a field may hold.
trait FieldValue: Sized {
    const EXAMPLE: &'static str;

    fn read(scalar: &Scalar) -> Result<Self, String>;

    /// What was probably meant.
    fn instead_of(_: &Scalar) -> Option<String> {
        None
    }
}

impl FieldValue for Tokens {
    const EXAMPLE: &'static str = "a number of tokens, such as rate = 10";

    fn read(scalar: &Scalar) -> Result<Self, String> {
        by_serde(scalar)
    }
}

impl FieldValue for LimitKind {
    const EXAMPLE: &'static str = r#"kind = "token_bucket", "fixed_window" or "stepped_bucket""#;

    fn read(scalar: &Scalar) -> Result<Self, String> {
        by_serde(scalar).map_err(|_| format!("{scalar} is no kind of limit"))
    }

    fn instead_of(scalar: &Scalar) -> Option<String> {
        did_you_mean(scalar.as_str()?, &["token_bucket", "fixed_window", "stepped_bucket"])
    }
}

impl FieldValue for Storage {
    const EXAMPLE: &'static str = r#"storage = "durable" or "ephemeral""#;

    fn read(scalar: &Scalar) -> Result<Self, String> {
        by_serde(scalar).map_err(|_| format!("{scalar} is no storage"))
    }

    fn instead_of(scalar: &Scalar) -> Option<String> {
        did_you_mean(scalar.as_str()?, &["durable", "ephemeral"])
    }
}

impl FieldValue for u16 {
    const EXAMPLE: &'static str = "a number of rows, such as shards = 16";

    fn read(scalar: &Scalar) -> Result<Self, String> {
        by_serde(scalar)
    }
}

/// A duration as people write it.
struct Span(Duration);

impl FieldValue for Span {
    const EXAMPLE: &'static str = r#"a span of time with its unit, such as per = "1h 30m""#;

    fn read(scalar: &Scalar) -> Result<Self, String> {
        let text = scalar.as_str().ok_or_else(|| format!("{scalar} has no unit"))?;
        humantime::parse_duration(text).map(Self).map_err(|error| format!("{text:?} is no span of time: {error}"))
    }

    fn instead_of(scalar: &Scalar) -> Option<String> {
        scalar.as_u64().map(|seconds| format!("did you mean \"{seconds}s\"?"))
    }
}

/// How deep reservations may go.
struct Bound(Tokens);

impl FieldValue for Bound {
    const EXAMPLE: &'static str = r#"a number of tokens, or max_reserved = "unbounded""#;

    fn read(scalar: &Scalar) -> Result<Self, String> {
        if scalar == "unbounded" { Ok(Self(Tokens::MAX)) } else { by_serde(scalar).map(Self) }
    }

    fn instead_of(scalar: &Scalar) -> Option<String> {
        did_you_mean(scalar.as_str()?, &["unbounded"])
    }
}

fn by_serde<T: DeserializeOwned>(scalar: &Scalar) -> Result<T, String> {
    T::deserialize(scalar).map_err(|error| format!("{scalar}: {error}"))
}

/// Takes something harmless for what is wrong, and says which field it was; one of the table's name where it is none.
fn mend(spec: &mut LimitSpec, fault: LimitFault) -> &'static str {
    match fault {
        LimitFault::RateNotPositive | LimitFault::RateTooLarge => {
            spec.rate = Tokens::ONE;
            "rate"
        }
        LimitFault::PeriodNotWholeMicros | LimitFault::PeriodTooLong | LimitFault::PeriodZero => {
            spec.period = HARMLESS_PERIOD;
            "per"
        }
        LimitFault::CapacityTooLarge | LimitFault::NegativeCapacity => {
            spec.capacity = None;
            "capacity"
        }
        LimitFault::StartNotWholeMicros | LimitFault::StartOfContinuous => {
            spec.start = None;
            "start"
        }
        LimitFault::MaxReservedTooLarge | LimitFault::NegativeMaxReserved => {
            spec.max_reserved = Tokens::ZERO;
            "max_reserved"
        }
        LimitFault::ShardsOfFirstUse
        | LimitFault::ShardsTooMany
        | LimitFault::ShardsWithoutRate
        | LimitFault::ShardsZero => {
            spec.shards = 1;
            "shards"
        }
        LimitFault::EphemeralReservations => {
            spec.storage = Storage::Durable;
            "storage"
        }
        LimitFault::NameEmpty | LimitFault::NameNul | LimitFault::NameTooLong => {
            "name".clone_into(&mut spec.name);
            "name"
        }
    }
}

/// What to write instead of a field that no limit has.
fn instead_of(field: &str) -> Option<String> {
    match field {
        "name" => Some("the name is the table's own: drop this line".to_owned()),
        _ => did_you_mean(field, &FIELDS).or_else(|| Some(format!("a limit has {}", FIELDS.join(", ")))),
    }
}

fn did_you_mean(written: &str, known: &[&'static str]) -> Option<String> {
    nearest(written, known.iter().copied()).map(|nearest| format!("did you mean {nearest:?}?"))
}

/// Both counted from 1, the column in characters.
fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// In the order in which they are best written.
const FIELDS: [&str; 8] = ["kind", "rate", "per", "capacity", "start", "max_reserved", "shards", "storage"];

const HARMLESS_PERIOD: Duration = Duration::from_secs(1);
