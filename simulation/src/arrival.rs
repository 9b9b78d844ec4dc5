use chrono::DateTime;
use tollgate::algebra::Timestamp;
use tollgate::{Key, Tokens, TokensError};

/// One call of the traffic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// When it is made.
    pub at: Timestamp,
    /// The key of its caller.
    pub key: Key,
    /// How many tokens it asks for.
    pub cost: Tokens,
}

impl Arrival {
    /// Reads a recorded call: its time, which is RFC 3339 or seconds since 1970 with at most six decimals; its key,
    /// else it is of all callers; its cost, else one token.
    ///
    /// # Errors
    ///
    /// The fault, and which of the three has it.
    pub fn read(time: &str, key: Option<&str>, cost: Option<&str>) -> Result<Self, String> {
        let at = instant(time).ok_or_else(|| {
            let time: String = time.chars().take(40).collect();
            format!("{time:?} is no time (use RFC 3339, as in 2025-01-01T00:00:00Z, or seconds since 1970)")
        })?;
        let key = key.map_or(Ok(Key::GLOBAL), Key::new).map_err(|error| format!("the key: {error}"))?;
        let cost = cost.map_or(Ok(Tokens::ONE), cost_of).map_err(|error| format!("the cost: {error}"))?;
        Ok(Self { at, key, cost })
    }
}

pub(crate) fn cost_of(text: &str) -> Result<Tokens, String> {
    let cost: Tokens = text.parse().map_err(|error: TokensError| error.to_string())?;
    if cost.is_negative() { Err(TokensError::Negative.to_string()) } else { Ok(cost) }
}

fn instant(text: &str) -> Option<Timestamp> {
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Some(instant.to_utc().into());
    }
    // Seconds are as exact as tokens are.
    let since: Tokens = text.parse().ok()?;
    (0..LAST_SECOND * 1_000_000).contains(&since.micros()).then(|| Timestamp::from_micros(since.micros()))
}

/// The first second of the year 10000, where RFC 3339 ends as well.
const LAST_SECOND: i64 = 253_402_300_800;
