//! Calls as JSON objects, one in each line.

use std::time::Duration;

use serde_json::Value;
use tollgate::algebra::Timestamp;
use tollgate_simulation::Arrival;

use super::access::client;

/// A call of JSON lines: the members are those columns that CSV has.
pub(super) fn call(line: &str, key: Option<&str>) -> Result<Arrival, String> {
    let call = object(line)?;
    let key_text = match key {
        Some(field) => Some(text(&call, field)?.ok_or_else(|| missing(field))?),
        None => text(&call, "key")?,
    };
    let cost = text(&call, "cost")?;
    Arrival::read(&instant(&call, "time")?, key_text.as_deref(), cost.as_deref())
}

/// A line of Caddy's access log. It is written when a response is done, and tells how long that took.
pub(super) fn caddy(line: &str, key: Option<&str>) -> Result<Arrival, String> {
    let entry = object(line)?;
    if !entry.get("request").is_some_and(Value::is_object) {
        return Err("it has no `request` (is it a line of an access log?)".to_owned());
    }
    let caller = match key {
        Some(field) => text(&entry, field)?.ok_or_else(|| missing(field))?,
        // Before Caddy 2.7 there is no other address than that of the connection.
        None => match (text(&entry, "/request/client_ip")?, text(&entry, "/request/remote_ip")?) {
            (Some(address), _) | (None, Some(address)) => client(&address),
            (None, None) => return Err(missing("/request/client_ip")),
        },
    };
    let mut call = Arrival::read(&instant(&entry, "ts")?, Some(&caller), None)?;
    let lasted = entry.get("duration").and_then(Value::as_f64);
    if let Some(Ok(lasted)) = lasted.map(Duration::try_from_secs_f64) {
        let lasted = i64::try_from(lasted.as_micros()).unwrap_or(i64::MAX);
        call.at = Timestamp::from_micros(call.at.micros().saturating_sub(lasted).max(0));
    }
    Ok(call)
}

fn object(line: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("it is no JSON: {error}"))?;
    if value.is_object() { Ok(value) } else { Err("it is no JSON object".to_owned()) }
}

/// A text, or a number as one; none where it is not there.
fn text(object: &Value, field: &str) -> Result<Option<String>, String> {
    match at(object, field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(format!("`{field}` is neither a text nor a number")),
    }
}

/// An instant as text. A number with more decimals than a clock has is the nearest microsecond.
fn instant(object: &Value, field: &str) -> Result<String, String> {
    match at(object, field) {
        Some(Value::Number(number)) if number.is_f64() => Ok(format!("{:.6}", number.as_f64().unwrap_or_default())),
        _ => text(object, field)?.ok_or_else(|| missing(field)),
    }
}

/// The member of an object, or that at the end of a path.
fn at<'v>(object: &'v Value, field: &str) -> Option<&'v Value> {
    if field.starts_with('/') { object.pointer(field) } else { object.get(field) }
}

fn missing(field: &str) -> String {
    format!("it has no `{field}`")
}
