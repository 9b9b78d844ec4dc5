//! Lines of access logs in the format `combined` of nginx and Apache.

use std::net::IpAddr;
use std::sync::LazyLock;

use chrono::DateTime;
use regex::Regex;
use tollgate::{Key, Slash64};
use tollgate_simulation::Arrival;

use crate::error::CommandError;

/// The field that holds the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field(&'static str);

impl Field {
    /// The client's address, unless another is named.
    pub(super) fn of(name: Option<&str>) -> Result<Self, CommandError> {
        let name = name.unwrap_or(ADDRESS);
        let field = FIELDS.iter().find(|field| **field == name);
        field.map(|field| Self(field)).ok_or_else(|| {
            CommandError::new(format!("an access log has no {name:?} for a key"), format!("use {}", FIELDS.join(", ")))
        })
    }
}

pub(super) fn is_line(line: &str) -> bool {
    COMBINED.is_match(line)
}

/// The call of a line. Its instant is that of the response, in whole seconds.
pub(super) fn call(line: &str, Field(field): Field) -> Result<Arrival, String> {
    let parts = COMBINED.captures(line).ok_or("it is no line of an access log in the format `combined`")?;
    let time = DateTime::parse_from_str(&parts["time_local"], "%d/%b/%Y:%H:%M:%S %z");
    let time = time.map_err(|_| format!("{:?} is no time (as in 01/Jan/2025:00:00:00 +0000)", &parts["time_local"]))?;
    let key = parts.name(field).ok_or_else(|| format!("it has no {field}"))?.as_str();
    let key = if field == ADDRESS { client(key) } else { key.to_owned() };
    Arrival::read(&time.to_rfc3339(), Some(&key), None)
}

/// The key of a client by its address, as the HTTP layer has it: IPv6 counts by its /64.
pub(super) fn client(address: &str) -> String {
    let key = address.parse::<IpAddr>().ok().and_then(|address| Key::new(Slash64(address)).ok());
    key.map_or_else(|| address.to_owned(), |key| key.as_str().to_owned())
}

const ADDRESS: &str = "remote_addr";
const FIELDS: [&str; 4] = [ADDRESS, "remote_user", "http_referer", "http_user_agent"];

/// The fields have nginx's names. The last two are not in Apache's format `common`. More fields may follow.
static COMBINED: LazyLock<Regex> = LazyLock::new(|| {
    let quoted = r#"(?:[^"\\]|\\.)*"#;
    let line = format!(
        r#"^(?<remote_addr>\S+) \S+ (?<remote_user>\S.*?) \[(?<time_local>[^\]]+)\] "{quoted}" \d{{3}} (?:\d+|-)(?: "(?<http_referer>{quoted})" "(?<http_user_agent>{quoted})")?(?: |$)"#
    );
    Regex::new(&line).expect("it is tried")
});
