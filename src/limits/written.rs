//! Limits as a file: what `of_toml` reads.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::limit::{Limit, LimitSpec};
use crate::tokens::Tokens;

/// The limits in TOML, without fields that have their default.
pub(super) fn to_toml<'l>(limits: impl Iterator<Item = &'l Limit>) -> String {
    let mut text = String::new();
    for limit in limits {
        let spec = limit.spec();
        let usual = fields(&LimitSpec::new("", spec.kind, Tokens::ZERO, Duration::ZERO));
        let break_before = if text.is_empty() { "" } else { "\n" };
        let kind = usual.get("kind").unwrap_or(&Value::Null);
        let _ = write!(text, "{break_before}[{}]\nkind = {kind}\n", name(limit.name()));
        let spec = spec.with(|spec| spec.capacity = spec.capacity.filter(|capacity| *capacity != spec.rate));
        for (field, value) in fields(&spec).iter().filter(|(field, value)| usual.get(*field) != Some(value)) {
            let _ = writeln!(text, "{field} = {value}");
        }
    }
    text
}

/// The fields of a definition, but for its name.
fn fields(spec: &LimitSpec) -> Map<String, Value> {
    match serde_json::to_value(spec) {
        Ok(Value::Object(mut fields)) => {
            fields.remove("name");
            fields
        }
        _ => unreachable!("a definition has texts, numbers and nothing else"),
    }
}

/// A name as a key of TOML. JSON escapes the same characters but one.
fn name(name: &str) -> String {
    let is_bare = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_bare { name.to_owned() } else { Value::from(name).to_string().replace('\x7f', "\\u007f") }
}
