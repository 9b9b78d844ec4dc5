//! A file as entries with their places, whichever format it is written in.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Scalar;
use serde_json::value::RawValue;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// How a file is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Format {
    Json,
    Toml,
}

impl Format {
    /// By the end of the file's name.
    pub(super) fn of(path: &Path) -> Self {
        let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        if is_json { Self::Json } else { Self::Toml }
    }

    /// The entries of a text.
    pub(super) fn entries(self, text: &str) -> Result<Vec<Entry<'_>>, Vec<SyntaxFault>> {
        match self {
            Self::Json => json_entries(text).map_err(|fault| vec![fault]),
            Self::Toml => toml_entries(text),
        }
    }
}

/// A key with its value, and where they stand, in bytes from the start of the text.
#[derive(Debug)]
pub(super) struct Entry<'t> {
    pub(super) key: Cow<'t, str>,
    pub(super) key_at: usize,
    pub(super) value: Value<'t>,
    pub(super) value_at: usize,
}

#[derive(Debug)]
pub(super) enum Value<'t> {
    /// A null, a boolean, a number or a string.
    Scalar(Scalar),
    Table(Vec<Entry<'t>>),
    /// Something that no field holds, such as an array.
    Other(&'static str),
}

/// What a parser could not read, and where.
#[derive(Debug)]
pub(super) struct SyntaxFault {
    pub(super) message: String,
    pub(super) at: usize,
}

fn toml_entries(text: &str) -> Result<Vec<Entry<'_>>, Vec<SyntaxFault>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(toml_table(table.into_inner()));
    }
    let fault = |error: &toml::de::Error| SyntaxFault {
        message: error.message().to_owned(),
        at: error.span().map_or(0, |span| span.start),
    };
    Err(errors.iter().map(fault).collect())
}

fn toml_table(table: DeTable<'_>) -> Vec<Entry<'_>> {
    table.into_iter().map(|(key, value)| toml_entry(key, value)).collect()
}

fn toml_entry<'t>(key: Spanned<Cow<'t, str>>, value: Spanned<DeValue<'t>>) -> Entry<'t> {
    let (key_at, value_at) = (key.span().start, value.span().start);
    Entry { key: key.into_inner(), key_at, value: toml_value(value.into_inner()), value_at }
}

fn toml_value(value: DeValue<'_>) -> Value<'_> {
    match value {
        DeValue::String(text) => Value::Scalar(Scalar::String(text.into_owned())),
        // A whole number beyond 64 bits is kept as its digits, of which its field says that they are too many.
        DeValue::Integer(whole) => {
            let number = i64::from_str_radix(whole.as_str(), whole.radix()).map(Scalar::from);
            Value::Scalar(number.unwrap_or_else(|_| Scalar::String(whole.to_string())))
        }
        DeValue::Float(number) => {
            let float: f64 = number.as_str().parse().unwrap_or(f64::NAN);
            serde_json::Number::from_f64(float)
                .map_or(Value::Other("a number that is not finite"), |number| Value::Scalar(Scalar::Number(number)))
        }
        DeValue::Boolean(flag) => Value::Scalar(Scalar::Bool(flag)),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(_) => Value::Other("an array"),
        DeValue::Table(table) => Value::Table(toml_table(table)),
    }
}

fn json_entries(text: &str) -> Result<Vec<Entry<'_>>, SyntaxFault> {
    let object: Object<'_> = serde_json::from_str(text).map_err(|error| SyntaxFault {
        message: without_place(&error),
        at: offset(text, error.line(), error.column()),
    })?;
    Ok(json_object(text, object))
}

/// Each part is a slice of `text`, and its address there is its place. Only a key with escapes is a copy: then its value's
/// place stands for it.
fn json_object<'t>(text: &'t str, object: Object<'t>) -> Vec<Entry<'t>> {
    let place = |part: &str| part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let entry = |(key, raw): (Cow<'t, str>, &'t RawValue)| {
        let value_at = place(raw.get());
        let key_at = match key {
            // Behind its opening quote.
            Cow::Borrowed(slice) => place(slice) - 1,
            Cow::Owned(_) => value_at,
        };
        Entry { key, key_at, value: json_value(text, raw.get()), value_at }
    };
    object.0.into_iter().map(entry).collect()
}

fn json_value<'t>(text: &'t str, raw: &'t str) -> Value<'t> {
    // What is a raw value was read once: neither fails.
    match raw.as_bytes().first() {
        Some(b'{') => serde_json::from_str(raw)
            .map_or(Value::Other("an object"), |object| Value::Table(json_object(text, object))),
        Some(b'[') => Value::Other("an array"),
        _ => serde_json::from_str(raw).map_or(Value::Other("a number that is not finite"), Value::Scalar),
    }
}

/// The message without the line and column at its end, which are said in another way.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.clone(), |(message, _)| message.to_owned())
}

/// The byte at a line and column, both counted from 1, in bytes; the end of the text where it ends before.
fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// A JSON object in the order in which it is written, with repeated keys.
struct Object<'t>(Vec<(Cow<'t, str>, &'t RawValue)>);

impl<'t> Deserialize<'t> for Object<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'t> Visitor<'t> for ObjectVisitor {
    type Value = Object<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of limits by name")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Object<'t>, A::Error> {
        let mut entries = Vec::new();
        while let Some(Slice(key)) = map.next_key()? {
            entries.push((key, map.next_value()?));
        }
        Ok(Object(entries))
    }
}

/// A string that is a slice of the text wherever it can be: serde reads a `Cow` as a copy always.
struct Slice<'t>(Cow<'t, str>);

impl<'t> Deserialize<'t> for Slice<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SliceVisitor)
    }
}

struct SliceVisitor;

impl<'t> Visitor<'t> for SliceVisitor {
    type Value = Slice<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: de::Error>(self, slice: &'t str) -> Result<Slice<'t>, E> {
        Ok(Slice(Cow::Borrowed(slice)))
    }

    fn visit_str<E: de::Error>(self, copy: &str) -> Result<Slice<'t>, E> {
        Ok(Slice(Cow::Owned(copy.to_owned())))
    }
}
