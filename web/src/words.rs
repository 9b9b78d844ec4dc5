use std::error::Error;
use std::fmt;

use serde::Deserialize;
use serde::de::value::{MapDeserializer, StrDeserializer};
use serde::de::{self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use tollgate::{Limit, LimitError, LimitSpec};

use crate::fault::Fault;

/// The words of a limit in their order, by the fields of a limits file: `[["kind", "wallet"], ["overdraft", "50"]]`.
pub(crate) type Words = [(String, String)];

/// Reads a limit as the reader of limits files does: field by field, so that each fault is reported at its field.
pub(crate) fn limit(place: &str, name: &str, words: &Words) -> Result<Limit, Vec<Fault>> {
    let money = words.iter().find(|(field, word)| field == "kind" && ["meter", "wallet"].contains(&word.as_str()));
    let mut read: Vec<(&str, &str)> = match money {
        Some((_, kind)) => vec![("name", "valid"), ("kind", kind)],
        None => vec![("name", "valid"), ("kind", "fixed_window"), ("rate", "1"), ("per", "1s")],
    };
    let mut faults = Vec::new();
    for (field, word) in words {
        let canonical = match field.as_str() {
            "lease" => "per",
            "overdraft" => "max_reserved",
            other => other,
        };
        let mut with = read.clone();
        with.retain(|(other, _)| *other != canonical);
        with.push((canonical, word));
        match limit_of(&with) {
            Ok(_) => read = with,
            Err(message) => faults.push(Fault::of(format!("{place}.{field}"), message)),
        }
    }
    for (field, example) in [("rate", "10"), ("per", "1m")].iter().filter(|_| money.is_none()) {
        if !words.iter().any(|(given, _)| given == field || (given == "lease" && *field == "per")) {
            faults.push(Fault::of(format!("{place}.{field}"), format!("it is missing (write {example})")));
        }
    }
    read[0].1 = name;
    let limit = limit_of(&read).map_err(|message| Fault::of(format!("{place}.name"), message));
    match limit {
        Ok(limit) if faults.is_empty() => Ok(limit),
        limit => Err(limit.err().into_iter().chain(faults).collect()),
    }
}

fn limit_of(words: &[(&str, &str)]) -> Result<Limit, String> {
    let words = words.iter().map(|(field, word)| (*field, Word(word)));
    let spec = LimitSpec::deserialize(MapDeserializer::new(words)).map_err(|error: Wrong| error.to_string())?;
    Limit::try_from(spec).map_err(|LimitError { fault, .. }| fault.to_string())
}

/// A value of a field: a whole number where it is one, else a text.
#[derive(Clone, Copy)]
struct Word<'w>(&'w str);

impl<'de> IntoDeserializer<'de, Wrong> for Word<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Word<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        // `+5` and `05` are no numbers of a limits file.
        match self.0.parse() {
            Ok(number) if self.0 == "0" || self.0.starts_with(|first| ('1'..='9').contains(&first)) => {
                visitor.visit_u64(number)
            }
            _ => visitor.visit_borrowed_str(self.0),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        StrDeserializer::new(self.0).deserialize_enum(name, variants, visitor)
    }

    // A name is a text, also where it is a number, and a span of time says what it misses.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The fault of a word. Serde's own one can quote every value: what writes a float is large, and no word is read as one.
#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self(format!("invalid type: {}, expected {expected}", quoted(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self(format!("invalid value: {}, expected {expected}", quoted(found)))
    }
}

/// A word as serde quotes it.
fn quoted(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("string {text:?}"),
        Unexpected::Unsigned(number) => format!("integer `{number}`"),
        _ => "another value".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{MINUTE, SECOND};

    use super::*;

    #[test]
    fn words_are_read_as_in_a_limits_file() {
        let same = |text: &str, expected: Limit| assert_eq!(read(text).unwrap(), expected);
        same("kind=token_bucket rate=10 per=1s capacity=20", Limit::token_bucket("7", 10, SECOND).capacity(20));
        same("kind=fixed_window rate=0.5 per=1s capacity=1 start=0s", {
            let [half, one] = [500_000, 1_000_000].map(tollgate::Tokens::from_micros);
            Limit::fixed_window("7", 1, SECOND).rate_and_capacity(half, one).start(std::time::Duration::ZERO)
        });
        same("kind=concurrency rate=4 lease=1m", Limit::concurrency("7", 4, MINUTE));
        same("kind=wallet overdraft=50", Limit::wallet("7").overdraft(50));
        same(
            "kind=token_bucket rate=10 per=1s max_reserved=unbounded shards=4",
            Limit::token_bucket("7", 10, SECOND).unbounded_reservations().shards(4),
        );
    }

    #[test]
    fn each_fault_is_told_at_its_field() {
        let places = |text: &str| {
            let faults = read(text).unwrap_err();
            faults.into_iter().map(|fault| format!("{}: {}", fault.place, fault.message)).collect::<Vec<_>>()
        };
        assert_eq!(
            places("kind=sliding_window rate=0 per=1x capacity=2 shards=two"),
            [
                "a.rate: the rate must be positive",
                "a.per: \"1x\" is not a span of time: there is no unit \"x\" (write \"1h 30m\")",
                "a.capacity: the capacity of a sliding window or a concurrency limit is its rate (drop it)",
                "a.shards: invalid type: string \"two\", expected u16",
            ]
        );
        assert_eq!(
            places("kind=token_bucket rate=+5 per=1s shards=04"),
            [
                "a.rate: \"+5\": not a plain decimal number such as 12 or 0.5",
                "a.shards: invalid type: string \"04\", expected u16",
            ]
        );
        assert_eq!(
            places("kind=fixed_window"),
            ["a.rate: it is missing (write 10)", "a.per: it is missing (write 1m)"]
        );
    }

    fn read(text: &str) -> Result<Limit, Vec<Fault>> {
        let words: Vec<_> = text.split(' ').filter_map(|word| word.split_once('=')).collect();
        let words: Vec<_> = words.into_iter().map(|(field, word)| (field.to_owned(), word.to_owned())).collect();
        limit("a", "7", &words)
    }
}
