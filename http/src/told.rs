use std::time::{Duration, SystemTime};

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parameters, Parser, StringRef, TokenRef};

use crate::span::{date, number, span_of, span_of_number};

/// The header fields of another service's answer, read. If a field can be read in several ways, the one with the
/// latest "go" counts.
///
/// The mirror reads the same (`web/ts/fields.ts`), and `web/tests/troubles.json` has cases for both.
pub(crate) struct Told<'h> {
    headers: &'h HeaderMap,
    now: SystemTime,
}

/// One limit: whether nothing is left, and in how long there is one more.
#[derive(Clone, Copy)]
struct Limit {
    is_spent: bool,
    more: Option<Duration>,
}

impl<'h> Told<'h> {
    /// An answer that came at an instant by the caller's clock. Its own `Date` counts more.
    pub(crate) fn new(headers: &'h HeaderMap, now: SystemTime) -> Self {
        let told = Self { headers, now };
        let now = told.field("date").and_then(|text| date(&text)).unwrap_or(now);
        Self { now, ..told }
    }

    /// Whether a cache gave the answer, so that the server has not answered this call. Caches write `Age: 0` also where
    /// they asked the server.
    pub(crate) fn is_stored(&self) -> bool {
        let caches = ["cache-status", "x-cache", "cf-cache-status"].into_iter().filter_map(|name| self.field(name));
        caches.into_iter().any(|told| is_hit(&told))
            || self.field("age").is_some_and(|age| age.contains(|c: char| !matches!(c, '0' | ',' | ' ' | '\t')))
    }

    pub(crate) fn has_retry_after(&self) -> bool {
        self.field("retry-after").is_some_and(|text| !text.is_empty())
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        span_of(&self.field("retry-after")?, self.now)
    }

    /// The time until there is one more of each limit that has nothing left. `None` if the answer does not say it.
    pub(crate) fn spent(&self) -> Vec<Option<Duration>> {
        let drafted = self.drafted();
        let limits = if drafted.is_empty() { self.older() } else { drafted };
        limits.into_iter().filter(|limit| limit.is_spent).map(|limit| limit.more).collect()
    }

    /// Structured fields (RFC 9651). A field that is not right as a whole is ignored as a whole.
    fn drafted(&self) -> Vec<Limit> {
        let policies = self.items("ratelimit-policy");
        let limit = |(name, told): (String, Parameters)| {
            let mut named = policies.iter().filter(|(policy, _)| *policy == name);
            // If two policies have the name, nothing says which of them the limit has.
            let policy = named.next().filter(|_| named.next().is_none()).map(|(_, policy)| policy);
            let of_policy = |key| policy.and_then(|policy| parameter(policy, key));
            let is_spent = is_spent(&[parameter(&told, "r")?])?;
            // A wallet has no quota, and no window either. Any other limit without a quota holds no whole token.
            let quota: Vec<_> = of_policy("q").into_iter().collect();
            let is_nothing = is_spent && is_no_quota(&quota) && of_policy("w").is_some();
            let more = parameter(&told, "t").and_then(|more| span_of_number(more, self.now));
            (!is_nothing).then_some(Limit { is_spent, more })
        };
        self.items("ratelimit").into_iter().filter_map(limit).collect()
    }

    /// The members of a list that are names with parameters.
    fn items(&self, name: &str) -> Vec<(String, Parameters)> {
        let list: List = self.field(name).and_then(|text| Parser::new(&text).parse().ok()).unwrap_or_default();
        let named = |entry| match entry {
            ListEntry::Item(item) => Some((name_of(&item.bare_item)?, item.params)),
            ListEntry::InnerList(_) => None,
        };
        list.into_iter().filter_map(named).collect()
    }

    /// The fields of older drafts, and those before them.
    fn older(&self) -> Vec<Limit> {
        let joined = self.field("ratelimit").filter(|text| !text.contains('"')).unwrap_or_default();
        let member = |name: &str| {
            let pairs = joined.split([',', ';']).filter_map(|member| member.split_once('='));
            let named = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value);
            named.collect::<Vec<_>>().join(",")
        };
        let field = |name: String| self.field(&name).unwrap_or_default();
        let limits = [
            self.older_limit(member),
            self.older_limit(|name| field(format!("ratelimit-{name}"))),
            self.older_limit(|name| field(format!("x-ratelimit-{name}"))),
        ];
        limits.into_iter().flatten().collect()
    }

    /// They are written in many ways: the least that is left counts, and the latest reset.
    fn older_limit(&self, field: impl Fn(&str) -> String) -> Option<Limit> {
        let is_spent = is_spent(&numbers(&field("remaining")))?;
        let is_nothing = is_spent && is_no_quota(&numbers(&field("limit")));
        (!is_nothing).then(|| Limit { is_spent, more: span_of(&field("reset"), self.now) })
    }

    /// All lines of a field, each byte a character of Latin-1, as `fetch` reads them.
    fn field(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(name).iter();
        let lines = lines.map(|line| line.as_bytes().iter().map(|byte| char::from(*byte)).collect::<String>());
        lines.reduce(|all, line| all + ", " + &line).map(|all| all.trim().to_owned())
    }
}

fn name_of(item: &BareItem) -> Option<String> {
    let text = item.as_string().map(StringRef::as_str);
    text.or_else(|| item.as_token().map(TokenRef::as_str)).map(str::to_owned)
}

/// The parameter of this key, if it is a number.
fn parameter(parameters: &Parameters, key: &str) -> Option<f64> {
    let value = parameters.get(key)?;
    let integer = value.as_integer().map(|number| number.to_string());
    integer.or_else(|| value.as_decimal().map(|number| number.to_string()))?.parse().ok()
}

/// All numbers of a field, which may be several that were joined; none if something else is among them.
fn numbers(field: &str) -> Vec<f64> {
    let members = field.split(',').map(|member| member.split(';').next().unwrap_or_default().trim());
    let signed = |member: &str| match member.strip_prefix('-') {
        Some(debt) => number(debt).map(|debt| -debt),
        None => number(member),
    };
    members.map(signed).collect::<Option<_>>().unwrap_or_default()
}

/// Whether the least that is left is no whole token. Where there is no limit servers write -1.
fn is_spent(told: &[f64]) -> Option<bool> {
    told.iter().filter(|left| left.total_cmp(&-1.0).is_ne()).map(|left| *left < 1.0).reduce(|one, other| one || other)
}

/// Whether a limit holds nothing: so servers write that there is no limit.
fn is_no_quota(told: &[f64]) -> bool {
    !told.is_empty() && told.iter().all(|quota| *quota < 1.0)
}

/// `HIT`, `TCP_HIT`, `Hit from cloudfront`, `ExampleCache; hit`; not `RefreshHit`, where the cache asked the server.
fn is_hit(told: &str) -> bool {
    let (told, is_letter) = (told.to_ascii_lowercase(), |c: char| c.is_ascii_lowercase());
    told.match_indices("hit").any(|(at, hit)| {
        let (before, after) = (&told[..at], &told[at + hit.len()..]);
        !before.ends_with(is_letter) && !before.ends_with("refresh_") && !after.starts_with(is_letter)
    })
}
