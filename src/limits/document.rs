//! Parses a limits file, in TOML or JSON, into entries that know their place in the text.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Scalar;
use serde_json::value::RawValue;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The language of a limits file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FileFormat {
    Json,
    Toml,
}

impl FileFormat {
    /// JSON if the file's name ends in `.json`, none for YAML, else TOML.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let ends_in = |ending| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let is_yaml = ends_in("yaml") || ends_in("yml");
        (!is_yaml).then_some(if ends_in("json") { Self::Json } else { Self::Toml })
    }

    /// The entries at the top of a text: limits by name, `None` for an entry that is no table.
    pub(super) fn limits(self, text: &str) -> Result<Vec<FileEntry<Option<LimitFields>>>, Vec<SyntaxFault>> {
        match self {
            Self::Json => json_limits(text).map_err(|fault| vec![fault]),
            Self::Toml => toml_limits(text),
        }
    }
}

/// A key with its value. The places are byte offsets in the text.
#[derive(Debug)]
pub(super) struct FileEntry<V> {
    pub(super) key: String,
    pub(super) key_at: usize,
    pub(super) value: V,
    pub(super) value_at: usize,
}

/// The table of a limit.
pub(super) type LimitFields = Vec<FileEntry<FieldValue>>;

/// A null, a boolean, a number or a string; or the name of a type that no field takes.
pub(super) type FieldValue = Result<Scalar, &'static str>;

/// The message of a parser about a text that it could not read, and the byte offset of the fault.
pub(super) type SyntaxFault = (String, usize);

fn toml_limits(text: &str) -> Result<Vec<FileEntry<Option<LimitFields>>>, Vec<SyntaxFault>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        let limit = |value| if let DeValue::Table(table) = value { Some(toml_table(table, toml_field)) } else { None };
        return Ok(toml_table(table.into_inner(), limit));
    }
    let fault = |error: &toml::de::Error| (error.message().to_owned(), error.span().map_or(0, |span| span.start));
    Err(errors.iter().map(fault).collect())
}

fn toml_table<'t, V>(table: DeTable<'t>, value: impl Fn(DeValue<'t>) -> V) -> Vec<FileEntry<V>> {
    let entry = |(key, of_key): (Spanned<_>, Spanned<_>)| {
        let (key_at, value_at) = (key.span().start, of_key.span().start);
        FileEntry { key: String::from(key.into_inner()), key_at, value: value(of_key.into_inner()), value_at }
    };
    table.into_iter().map(entry).collect()
}

fn toml_field(value: DeValue<'_>) -> FieldValue {
    match value {
        DeValue::String(text) => Ok(Scalar::String(text.into_owned())),
        // An integer beyond 64 bits stays a string of digits. Its field reports that it is too large.
        DeValue::Integer(integer) => {
            let number = i64::from_str_radix(integer.as_str(), integer.radix()).map(Scalar::from);
            Ok(number.unwrap_or_else(|_| Scalar::String(integer.to_string())))
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            number.map(Scalar::Number).ok_or(NOT_FINITE)
        }
        DeValue::Boolean(flag) => Ok(Scalar::Bool(flag)),
        DeValue::Datetime(_) => Err("a date"),
        DeValue::Array(_) => Err("an array"),
        DeValue::Table(_) => Err("a table"),
    }
}

fn json_limits(text: &str) -> Result<Vec<FileEntry<Option<LimitFields>>>, SyntaxFault> {
    match serde_json::from_str(text) {
        Ok(members) => Ok(json_object(text, members, |limit| {
            limit.get().starts_with('{').then(|| json_object(text, reread(limit), json_field))
        })),
        Err(error) => {
            // The message ends with line and column, which a `FileFault` already reports.
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message).to_owned();
            Err((message, offset(text, error.line(), error.column())))
        }
    }
}

/// Raw keys and values are slices of `text`, so the distance between the addresses is their place.
fn json_object<V>(text: &str, members: JsonMembers<'_>, value: impl Fn(&RawValue) -> V) -> Vec<FileEntry<V>> {
    let place = |raw: &RawValue| raw.get().as_ptr().addr() - text.as_ptr().addr();
    let entry = |(key, of_key): (&RawValue, &RawValue)| FileEntry {
        key: reread(key),
        key_at: place(key),
        value: value(of_key),
        value_at: place(of_key),
    };
    members.0.into_iter().map(entry).collect()
}

/// Does not read nested values, because no field takes them.
fn json_field(raw: &RawValue) -> FieldValue {
    match raw.get().as_bytes().first() {
        Some(b'{') => Err("an object"),
        Some(b'[') => Err("an array"),
        _ => serde_json::from_str(raw.get()).map_err(|_| NOT_FINITE),
    }
}

/// Parses a slice that the parser has accepted before, as the type that its first byte shows.
fn reread<'t, T: Deserialize<'t>>(raw: &'t RawValue) -> T {
    serde_json::from_str(raw.get()).expect("a raw value is valid JSON")
}

/// The byte at a line and column, both counted from 1 and in bytes; at most the length of the text.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// The members of a JSON object in the order of the text. A repeated key is there as often as it is written.
struct JsonMembers<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'t> Deserialize<'t> for JsonMembers<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'t> Visitor<'t> for MembersVisitor {
            type Value = JsonMembers<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of limits by name")
            }

            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<JsonMembers<'t>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(JsonMembers(members))
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

const NOT_FINITE: &str = "a number that is not finite";
