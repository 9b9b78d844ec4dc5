use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{DictSerializer, Integer, KeyRef, ListSerializer, StringRef, key_ref};

use super::facts::{Facts, Told};
use super::policy::{self, Policy};
use super::seconds;

/// Writes what decisions say into header fields; see the [module](super) for what each of them means.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fields {
    format: Format,
    all: bool,
    partition_keys: bool,
}

/// Which header fields to write.
///
/// In all of them "reset" is when there is **more**, rather than when all is back: of a refusal the instant of `Retry-After`,
/// and of a full limit now.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Draft11,
    /// `RateLimit: limit=10, remaining=5, reset=30`, and `RateLimit-Policy: 10;w=60`, as in draft 7.
    Draft7,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` in seconds from now, and `RateLimit-Policy`, as in draft 6.
    Draft6,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` in **seconds since the Unix epoch**, rounded up, by
    /// the database's clock: the usual fields before there was a draft.
    XRateLimit,
    /// None but `Retry-After`.
    None,
}

impl Fields {
    /// Fields of this format, for the limit that is nearest to exhaustion.
    #[must_use]
    pub const fn new(format: Format) -> Self {
        Self { format, all: false, partition_keys: false }
    }

    /// Tells of all limits in `RateLimit`. The older formats can tell of one only.
    #[must_use]
    pub const fn all(mut self) -> Self {
        self.all = true;
        self
    }

    /// Adds the key to each member of `RateLimit`, as the byte sequence `pk`. Off unless asked for, since keys may be personal;
    /// the older formats do not know it.
    #[must_use]
    pub const fn partition_keys(mut self) -> Self {
        self.partition_keys = true;
        self
    }

    /// Writes the fields.
    ///
    /// Fields that are lists are added to those that are there, so that several layers can tell of their limits; of the
    /// others, and of `Retry-After`, what is there stays.
    pub fn write<'d>(self, facts: impl Into<Facts<'d>>, headers: &mut HeaderMap) {
        let facts = facts.into();
        if let Some(denied) = facts.denied() {
            put(headers, RETRY_AFTER, seconds::retry_after(denied.retry_after()).to_string());
        }
        match self.format {
            Format::Draft11 => self.draft_11(&facts, headers),
            Format::Draft7 => draft_7(&facts, headers),
            Format::Draft6 => draft_6(&facts, headers),
            Format::XRateLimit => x_rate_limit(&facts, headers),
            Format::None => {}
        }
    }

    /// The fields by themselves.
    #[must_use]
    pub fn of<'d>(self, facts: impl Into<Facts<'d>>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.write(facts, &mut headers);
        headers
    }

    fn draft_11(self, facts: &Facts<'_>, headers: &mut HeaderMap) {
        let mut policies = ListSerializer::new();
        for Policy { name, quota, window } in facts.policies() {
            let Ok(name) = StringRef::from_str(&name) else { continue };
            let item = policies.bare_item(name).parameter(Q, integer(quota));
            if let Some(window) = window {
                let _ = item.parameter(W, integer(window));
            }
        }
        add(headers, RATE_LIMIT_POLICY, policies.finish());

        // A client follows `Retry-After`, which must not come before the end of any window that it is told of.
        let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut limits = ListSerializer::new();
        for told in self.chosen(facts) {
            let name = policy::name(told.standing.limit.name());
            let Ok(name) = StringRef::from_str(&name) else { continue };
            let mut item = limits.bare_item(name).parameter(R, integer(told.standing.whole()));
            if let Some(more_in) = told.more_in().filter(|more_in| retry_after.is_none_or(|most| *more_in <= most)) {
                item = item.parameter(T, integer(more_in));
            }
            if self.partition_keys && !told.standing.key.is_global() {
                let _ = item.parameter(PK, told.standing.key.as_str().as_bytes());
            }
        }
        add(headers, RATE_LIMIT, limits.finish());
    }

    fn chosen<'f, 'd>(self, facts: &'f Facts<'d>) -> impl Iterator<Item = &'f Told<'d>> {
        let (nearest, all) = if self.all { (None, facts.told()) } else { (facts.nearest(), [].as_slice()) };
        nearest.into_iter().chain(all)
    }
}

fn draft_7(facts: &Facts<'_>, headers: &mut HeaderMap) {
    if let Some(old) = Old::of(facts) {
        let mut limit = DictSerializer::new();
        let members = [("limit", old.limit), ("remaining", old.remaining), ("reset", old.reset_in)];
        for (name, number) in members {
            let _ = limit.bare_item(key_ref(name), integer(number));
        }
        if let Some(value) = limit.finish() {
            put(headers, RATE_LIMIT, value);
        }
    }
    add(headers, RATE_LIMIT_POLICY, nameless(facts.policies()));
}

fn draft_6(facts: &Facts<'_>, headers: &mut HeaderMap) {
    if let Some(old) = Old::of(facts) {
        put(headers, RATE_LIMIT_LIMIT, old.limit.to_string());
        put(headers, RATE_LIMIT_REMAINING, old.remaining.to_string());
        put(headers, RATE_LIMIT_RESET, old.reset_in.to_string());
    }
    add(headers, RATE_LIMIT_POLICY, nameless(facts.policies()));
}

fn x_rate_limit(facts: &Facts<'_>, headers: &mut HeaderMap) {
    if let Some(old) = Old::of(facts) {
        put(headers, X_RATE_LIMIT_LIMIT, old.limit.to_string());
        put(headers, X_RATE_LIMIT_REMAINING, old.remaining.to_string());
        put(headers, X_RATE_LIMIT_RESET, old.reset_at.to_string());
    }
}

/// What the older formats say, of one limit.
struct Old {
    limit: u64,
    remaining: u64,
    reset_in: u64,
    reset_at: i64,
}

impl Old {
    fn of(facts: &Facts<'_>) -> Option<Self> {
        let told = facts.nearest()?;
        let (reset_in, reset_at) = match facts.denied() {
            Some(denied) => (seconds::retry_after(denied.retry_after()), denied.retry_at),
            None => (told.more_in().unwrap_or_default(), told.standing.more_at.unwrap_or(told.decided_at)),
        };
        let limit = Policy::from(&told.standing.limit).quota;
        Some(Self { limit, remaining: told.standing.whole(), reset_in, reset_at: seconds::since_epoch(reset_at) })
    }
}

/// The policies as drafts 6 and 7 list them: by their quotas, of which each may occur once, and never without a window.
fn nameless(mut policies: Vec<Policy>) -> Option<String> {
    let mut quotas = Vec::new();
    policies.retain(|policy| {
        let is_new = policy.window.is_some() && !quotas.contains(&policy.quota);
        quotas.push(policy.quota);
        is_new
    });
    let mut list = ListSerializer::new();
    for Policy { quota, window, .. } in policies {
        let _ = list.bare_item(integer(quota)).parameter(W, integer(window.unwrap_or_default()));
    }
    list.finish()
}

/// A structured field's integers have fifteen digits at most; beyond that it is as good as for ever.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

/// Writes a field that has one value, unless it is there.
fn put(headers: &mut HeaderMap, name: HeaderName, value: String) {
    // Digits, names and dictionaries are all printable ASCII, so none is refused.
    if let (Ok(value), false) = (HeaderValue::try_from(value), headers.contains_key(&name)) {
        headers.insert(name, value);
    }
}

/// Adds to a field that is a list.
fn add(headers: &mut HeaderMap, name: HeaderName, value: Option<String>) {
    if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
        headers.append(name, value);
    }
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

const PK: &KeyRef = key_ref("pk");
const Q: &KeyRef = key_ref("q");
const R: &KeyRef = key_ref("r");
const T: &KeyRef = key_ref("t");
const W: &KeyRef = key_ref("w");
