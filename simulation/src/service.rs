use std::str::FromStr;
use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::{Limit, LimitError, LimitKind, LimitSpec, Tokens};

use crate::traffic::{START, count, span};

/// A service of somebody else, to which each granted call goes on. It takes so many tokens a period, and falters for a
/// while: then it takes fewer. A call that it does not take fails.
#[derive(Clone, Debug)]
pub struct Service {
    /// From when spans count.
    pub start: Timestamp,
    takes: Limit,
    while_it_falters: Limit,
    falters_from: Duration,
    falters_for: Duration,
}

impl Service {
    /// The limit that it goes by at an instant.
    pub(crate) fn takes(&self, at: Timestamp) -> &Limit {
        let from = self.start.plus(self.falters_from);
        let falters = (from..from.plus(self.falters_for)).contains(&at);
        if falters { &self.while_it_falters } else { &self.takes }
    }
}

/// Reads `rate=50 per=1s falters=15 from=10s for=40s`: 50 tokens a second, and 15 from the tenth second on for 40
/// seconds. If it never falters, the last three are not given.
impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut rate, mut falters) = (0_u32, None);
        let [mut per, mut from, mut lasting] = [0; 3];
        for word in text.split_whitespace() {
            let (field, value) = word.split_once('=').unwrap_or((word, ""));
            let read = match field {
                "rate" => count(value).map(|count| rate = count),
                "per" => span(value).map(|span| per = span),
                "falters" => count(value).map(|count| falters = Some(count)),
                "from" => span(value).map(|span| from = span),
                "for" => span(value).map(|span| lasting = span),
                _ => Err("there is no such field (rate, per, falters, from, for)".to_owned()),
            };
            read.map_err(|what| format!("{word:?}: {what}"))?;
        }
        let limit = |rate| {
            let spec = LimitSpec::new("service", LimitKind::TokenBucket, Tokens::new(rate), Duration::from_micros(per));
            Limit::try_from(spec).map_err(|LimitError { fault, .. }| fault.to_string())
        };
        Ok(Self {
            start: START,
            takes: limit(rate)?,
            while_it_falters: limit(falters.unwrap_or(rate))?,
            falters_from: Duration::from_micros(from),
            falters_for: Duration::from_micros(lasting),
        })
    }
}
