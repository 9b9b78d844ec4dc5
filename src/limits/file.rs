//! Reads limits by name, in TOML or JSON. The parsers tell the place of the first fault.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::fault::FileFault;
use crate::limit::{Limit, LimitSpec};
use crate::values::text::Text;

pub(super) fn of_toml(text: &str) -> Result<BTreeMap<String, Limit>, FileFault> {
    let text = without_mark(text);
    let fault = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        FileFault::at(text, at, error.message().to_owned())
    };
    toml::Deserializer::parse(text).and_then(|text| text.deserialize_map(ByName)).map_err(fault)
}

pub(super) fn of_json(text: &str) -> Result<BTreeMap<String, Limit>, FileFault> {
    let text = without_mark(text);
    let fault = |error: serde_json::Error| {
        let line: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        FileFault::at(text, line + error.column().saturating_sub(1), message.to_owned())
    };
    let mut read = serde_json::Deserializer::from_str(text);
    read.deserialize_map(ByName).and_then(|limits| read.end().map(|()| limits)).map_err(fault)
}

/// The text without the byte order mark that editors of Windows write.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Refuses a name that occurs twice. A map of serde's would keep the last of the two.
struct ByName;

impl<'de> Visitor<'de> for ByName {
    type Value = BTreeMap<String, Limit>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limits by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut limits = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if limits.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the limit {name:?} occurs twice (keep one of them)")));
            }
            let limit = map.next_value_seed(Named(&name))?;
            limits.insert(name, limit);
        }
        Ok(limits)
    }
}

/// The fields of the limit that has this name.
struct Named<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Named<'_> {
    type Value = Limit;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Limit, D::Error> {
        let spec = LimitSpec::deserialize(deserializer)?;
        if !spec.name().is_empty() {
            return Err(D::Error::custom("the table's name is the limit's name (remove the field `name`)"));
        }
        let name = Text::from(self.0.to_owned());
        Limit::try_from(LimitSpec { name, ..spec }).map_err(D::Error::custom)
    }
}
