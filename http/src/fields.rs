use std::slice;
use std::time::Duration;

use chrono::{DateTime, Utc};
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use sfv::{DictSerializer, Integer, ListSerializer, StringRef, key_ref};
use tollgate::LimitKind;

use crate::facts::{DatedStanding, Facts};
use crate::policy::{Policy, printable};
use crate::retry_after::{retry_after, span, up};

/// Writes decisions into header fields; the [crate](crate#header-fields) explains the fields.
///
/// # Example
///
/// ```
/// use tollgate::{Decision, Grant};
/// use tollgate_http::Fields;
///
/// fn tell(decision: &Decision<Grant>, response: &mut http::Response<String>) {
///     Fields::default().write(decision, response.headers_mut());
/// }
/// # let _ = tell;
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fields {
    format: Format,
    all: bool,
    partition_keys: bool,
    full_reset: bool,
    jitter: Duration,
}

/// Which header fields to write.
///
/// "Reset" means in all formats the instant at which there is **one more token**. For a refusal it is the instant of
/// `Retry-After`, and for a full limit it is now. With [`Fields::full_reset`] it is when all tokens are back. For a
/// [wallet](tollgate::Limit::wallet) the older formats give only the remaining tokens.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Draft11,
    /// `RateLimit: limit=10, remaining=5, reset=30`, and `RateLimit-Policy: 10;w=60`, as in draft 7.
    Draft7,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` in seconds from now, and `RateLimit-Policy`, as in
    /// draft 6.
    Draft6,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` in **seconds since the Unix epoch**,
    /// rounded up, by the database's clock: the usual fields before there was a draft.
    XRateLimit,
    /// Only `Retry-After`.
    None,
}

impl Fields {
    /// Fields of this format, about the limit that is nearest to exhaustion.
    #[must_use]
    pub const fn new(format: Format) -> Self {
        Self { format, all: false, partition_keys: false, full_reset: false, jitter: Duration::ZERO }
    }

    /// Lists all limits in `RateLimit`. The older formats list one only.
    #[must_use]
    pub const fn all(mut self) -> Self {
        self.all = true;
        self
    }

    /// Adds the key to each member of `RateLimit`, as the byte sequence `pk`. The default is off, because keys may be
    /// personal. The older formats have no such member.
    #[must_use]
    pub const fn partition_keys(mut self) -> Self {
        self.partition_keys = true;
        self
    }

    /// Makes the reset of the older formats the instant at which **all tokens are back** if nobody spends, also after a
    /// refusal. Some APIs mean that by `X-RateLimit-Reset`. A response that costs more than was charged has no reset,
    /// because that instant is not known. `t` and `Retry-After` stay as they are.
    #[must_use]
    pub const fn full_reset(mut self) -> Self {
        self.full_reset = true;
        self
    }

    /// Lengthens every wait that a response names by up to so much, at random: `Retry-After`, `t`, and the reset of the
    /// older formats. There is none by default. It is in whole seconds, rounded up.
    ///
    /// If many clients are refused together, as at the end of a window or while the database is away, they then do not
    /// come back together. One response adds the same to all its waits, so the waits still agree, and no client comes
    /// too early. The instant in a [`Problem`](crate::Problem) stays exact.
    #[must_use]
    pub const fn jitter(mut self, most: Duration) -> Self {
        self.jitter = most;
        self
    }

    /// Writes the fields.
    ///
    /// Appends to fields that are lists, so that several layers can report their limits. Keeps any other field that is
    /// already there, `Retry-After` included. A refusal is of one client, and gets `Cache-Control: no-store`.
    pub fn write<'d>(self, facts: impl Into<Facts<'d>>, headers: &mut HeaderMap) {
        let mut facts = facts.into();
        facts.full_reset = self.full_reset;
        facts.late = fastrand::u64(0..=up(self.jitter));
        if let Some(wait) = facts.wait.or(facts.denied.and_then(retry_after)) {
            put(headers, RETRY_AFTER, &wait.saturating_add(facts.late));
        }
        if facts.denied.is_some() {
            keep_from_caches(headers);
        }
        match self.format {
            Format::Draft11 => self.draft_11(&facts, headers),
            Format::Draft7 => draft_7(&facts, headers),
            Format::Draft6 => {
                three_fields(&facts, headers, RATE_LIMIT_FIELDS, None);
                append(headers, RATE_LIMIT_POLICY, nameless(facts.policies()));
            }
            Format::XRateLimit => three_fields(&facts, headers, X_RATE_LIMIT_FIELDS, Some(DateTime::UNIX_EPOCH)),
            Format::None => {}
        }
    }

    /// The fields in a map of their own.
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
            let item = policies.bare_item(name).parameter(key_ref("q"), integer(quota));
            if let Some(window) = window {
                let _ = item.parameter(key_ref("w"), integer(window));
            }
        }
        append(headers, RATE_LIMIT_POLICY, policies.finish());

        // Clients obey `Retry-After`, so no `t` may be later. If another layer wrote a date there, its wait is not
        // known, and counts as 0.
        let most = headers.get(RETRY_AFTER).map_or(u64::MAX, |value| seconds(value).unwrap_or(0));
        let mut limits = ListSerializer::new();
        let nearest = facts.nearest().map(slice::from_ref).unwrap_or_default();
        for dated in if self.all { &facts.standings } else { nearest } {
            let name = printable(dated.standing.limit.name());
            let Ok(name) = StringRef::from_str(&name) else { continue };
            let mut item = limits.bare_item(name).parameter(key_ref("r"), integer(dated.whole()));
            let more_in = dated.more_in().map(|more_in| more_in.saturating_add(facts.late));
            if let Some(more_in) = more_in.filter(|more_in| *more_in <= most) {
                item = item.parameter(key_ref("t"), integer(more_in));
            }
            if self.partition_keys && !dated.standing.key.is_global() {
                let _ = item.parameter(key_ref("pk"), dated.standing.key.as_str().as_bytes());
            }
        }
        append(headers, RATE_LIMIT, limits.finish());
    }
}

fn draft_7(facts: &Facts<'_>, headers: &mut HeaderMap) {
    if let Some(values) = nearest(facts, None) {
        let mut members = DictSerializer::new();
        for (name, number) in ["limit", "remaining", "reset"].into_iter().zip(values) {
            if let Some(number) = number {
                let _ = members.bare_item(key_ref(name), integer(number));
            }
        }
        if let Some(value) = members.finish() {
            put(headers, RATE_LIMIT, &value);
        }
    }
    append(headers, RATE_LIMIT_POLICY, nameless(facts.policies()));
}

/// Writes limit, remaining and reset in fields of their own, the reset in seconds since this instant.
fn three_fields(facts: &Facts<'_>, headers: &mut HeaderMap, names: [&'static str; 3], since: Option<DateTime<Utc>>) {
    for (name, value) in names.into_iter().zip(nearest(facts, since).into_iter().flatten()) {
        if let Some(value) = value {
            put(headers, HeaderName::from_static(name), &value);
        }
    }
}

/// Limit, remaining and reset of the limit nearest to exhaustion, for the older formats. The reset is in seconds since
/// this instant, or since the decision. A wallet has neither limit nor reset: other programs would read a limit of 0 as
/// no limit.
fn nearest(facts: &Facts<'_>, since: Option<DateTime<Utc>>) -> Option<[Option<u64>; 3]> {
    let dated @ DatedStanding { standing, observed_at } = *facts.nearest()?;
    let more_at = facts.denied.and_then(|denied| denied.retry_at).or(standing.more_at).unwrap_or(observed_at);
    let reset_at = if facts.full_reset { standing.full_at } else { Some(more_at) };
    let reset = reset_at.map(|at| up(span(since.unwrap_or(observed_at), at)).saturating_add(facts.late));
    let unless_wallet = |value| (standing.limit.kind != LimitKind::Wallet).then_some(value);
    let quota = Policy::from(&standing.limit).quota;
    Some([unless_wallet(quota), Some(dated.whole()), reset.and_then(unless_wallet)])
}

/// The policies of drafts 6 and 7. They have no names, so each quota occurs once, and each needs a window.
fn nameless(policies: Vec<Policy>) -> Option<String> {
    let mut quotas = Vec::new();
    let mut list = ListSerializer::new();
    for Policy { quota, window, .. } in policies {
        if let (Some(window), false) = (window, quotas.contains(&quota)) {
            let _ = list.bare_item(integer(quota)).parameter(key_ref("w"), integer(window));
            quotas.push(quota);
        }
    }
    list.finish()
}

/// A structured field's integer has at most fifteen digits. A larger number becomes the largest integer.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

fn seconds(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

/// Forbids caches to give a response to others.
pub(crate) fn keep_from_caches(headers: &mut HeaderMap) {
    put(headers, CACHE_CONTROL, &"no-store");
}

/// Writes a field that has one value, unless it is already there.
fn put(headers: &mut HeaderMap, name: HeaderName, value: &impl ToString) {
    // The values are printable ASCII, and so always valid.
    if let (Ok(value), false) = (HeaderValue::try_from(value.to_string()), headers.contains_key(&name)) {
        headers.insert(name, value);
    }
}

/// Appends to a field that is a list.
fn append(headers: &mut HeaderMap, name: HeaderName, value: Option<String>) {
    if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
        headers.append(name, value);
    }
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT_FIELDS: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const X_RATE_LIMIT_FIELDS: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
