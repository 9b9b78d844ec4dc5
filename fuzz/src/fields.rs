use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use chrono::{DateTime, Utc};
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sfparse::{Parser, Value};
use tollgate::algebra::Timestamp;
use tollgate::{Decision, Key, Limit, LimitKind, LimitSpec, Standing, Tokens};
use tollgate_http::{Fields, Format, Problem};

use crate::input::{expect_round_trip, read};

/// A decision, and how to tell it to a client.
///
/// Any reader of such fields can read each of them. It says what the decision says, and names no wait that is too
/// short.
pub fn fields(bytes: &[u8]) {
    let Some(input) = read::<Input>(bytes) else { return };
    let Some(decision) = input.decision() else { return };
    expect_round_trip(&decision);
    let headers = input.fields().of(&decision);
    for (name, value) in &headers {
        assert!(value.to_str().is_ok(), "{name}: {value:?} is not printable");
    }
    input.expect_retry_after(&headers, &decision);
    match input.format % 5 {
        0 => input.expect_draft_11(&headers, &decision),
        1 => expect_draft_7(&headers),
        2 => expect_integers(&headers, ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]),
        3 => expect_integers(&headers, ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        _ => assert!(headers.keys().all(|name| name == "retry-after" || name == "cache-control"), "{headers:?}"),
    }
    if let Decision::Denied(denied) = &decision {
        let problem: serde_json::Value = serde_json::from_str(&Problem::from(denied).to_json()).expect("it is JSON");
        let retry_at: Option<DateTime<Utc>> = serde_json::from_value(problem["retry_at"].clone()).expect("an instant");
        assert_eq!(
            (retry_at, decoded(problem["violated-policies"][0].as_str())),
            (denied.retry_at, denied.limit.to_string())
        );
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct Input {
    format: u8,
    all: bool,
    partition_keys: bool,
    /// In microseconds.
    jitter: u32,
    denied: bool,
    retry_at: Option<i64>,
    observed_at: i64,
    standings: Vec<Stands>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Stands {
    kind: u8,
    name: String,
    rate: i64,
    period: u64,
    capacity: Option<i64>,
    key: String,
    cost: i64,
    remaining: i64,
    more_at: Option<i64>,
}

impl Stands {
    fn limit(&self) -> Option<Limit> {
        let kind = LimitKind::ALL[usize::from(self.kind) % LimitKind::ALL.len()];
        let period = Duration::from_micros(self.period);
        let spec = LimitSpec::new(&self.name, kind, Tokens::from_micros(self.rate), period);
        spec.with(|spec| spec.capacity = self.capacity.map(Tokens::from_micros)).try_into().ok()
    }

    fn standing(&self) -> Option<Standing> {
        let (limit, key) = (self.limit()?, Key::try_from(self.key.clone()).ok()?);
        let [cost, remaining] = [self.cost, self.remaining].map(Tokens::from_micros);
        let told = json!({
            "limit": limit, "key": key, "cost": cost, "remaining": remaining, "more_at": self.more_at.map(instant),
        });
        Some(serde_json::from_value(told).expect("it is a standing"))
    }
}

impl Input {
    fn decision(&self) -> Option<Decision> {
        let standings = self.standings.iter().map(Stands::standing).collect::<Option<Vec<_>>>()?;
        let (first, at) = (standings.first()?, instant(self.observed_at));
        let told = if self.denied {
            json!({ "denied": {
                "limit": first.limit.name(), "key": first.key, "reason": "short", "remaining": first.remaining,
                "retry_at": self.retry_at.map(instant), "observed_at": at, "decided_at": at, "source": "database",
                "others": [], "standings": standings,
            } })
        } else {
            json!({ "granted": {
                "remaining": first.remaining, "observed_at": at, "decided_at": at, "source": "database",
                "receipt": { "charges": [] }, "standings": standings,
            } })
        };
        Some(serde_json::from_value(told).expect("it is a decision"))
    }

    fn fields(&self) -> Fields {
        let formats = [Format::Draft11, Format::Draft7, Format::Draft6, Format::XRateLimit, Format::None];
        let fields = Fields::new(formats[usize::from(self.format) % formats.len()]).jitter(self.jitter());
        let fields = if self.all { fields.all() } else { fields };
        if self.partition_keys { fields.partition_keys() } else { fields }
    }

    fn jitter(&self) -> Duration {
        Duration::from_micros(self.jitter.into())
    }

    /// A client that waits for so long comes neither too early nor later than it must.
    fn expect_retry_after(&self, headers: &HeaderMap, decision: &Decision) {
        let told = headers.get("retry-after").map(|value| value.to_str().expect("it is printable"));
        let wait = if let Decision::Denied(denied) = decision { denied.retry_after() } else { None };
        let Some(wait) = wait else { return assert_eq!(told, None) };
        let told: u64 = told.expect("a wait is told").parse().expect("a number of seconds");
        let latest = wait.as_secs() + 1 + self.jitter().as_secs() + 1;
        assert!(told >= 1 && Duration::from_secs(told) >= wait && told <= latest, "{told} for {wait:?}");
    }

    fn expect_draft_11(&self, headers: &HeaderMap, decision: &Decision) {
        let standings = match decision {
            Decision::Granted(grant) => &grant.standings,
            Decision::Denied(denied) => &denied.standings,
        };
        let names: BTreeSet<_> = standings.iter().map(|standing| standing.limit.name().to_owned()).collect();
        let policies = list(headers, "ratelimit-policy");
        assert_eq!(policies.iter().map(|policy| policy.name.clone()).collect::<BTreeSet<_>>(), names);
        assert_eq!(policies.len(), names.len(), "each policy is listed once");
        for policy in &policies {
            let most = |standing: &&Standing| standing.limit.name() == policy.name;
            let limit = &standings.iter().find(most).expect("it is of a limit").limit;
            assert_eq!(policy.integers["q"], limit.most().whole().min(MOST_INTEGER), "{headers:?}");
            assert!(policy.integers.get("w").is_none_or(|window| *window >= 1), "{headers:?}");
        }
        let told = list(headers, "ratelimit");
        assert_eq!(told.len(), if self.all { standings.len() } else { 1 }, "{headers:?}");
        let retry_after = headers.get("retry-after").map(|value| value.to_str().expect("it is printable"));
        let wait: i64 = retry_after.map_or(i64::MAX, |seconds| seconds.parse().expect("a number of seconds"));
        for member in &told {
            let is_it = |standing: &&Standing| {
                let rest = i64::try_from(standing.whole()).expect("a balance fits").min(MOST_INTEGER);
                let is_named = standing.limit.name() == member.name && member.integers["r"] == rest;
                let shows = self.partition_keys && !standing.key.is_global();
                let key = standing.key.as_str().as_bytes().to_vec();
                is_named && member.bytes.get("pk") == shows.then_some(key).as_ref()
            };
            assert!(standings.iter().any(|standing| is_it(&standing)), "{member:?} of {standings:?}");
            assert!(member.integers.get("t").is_none_or(|more_in| (0..=wait).contains(more_in)), "{headers:?}");
        }
    }
}

fn expect_draft_7(headers: &HeaderMap) {
    let text = headers["ratelimit"].to_str().expect("it is printable");
    let mut parser = Parser::new(text.as_bytes());
    let mut members = BTreeMap::new();
    while let Some((key, value)) = parser.parse_dict().expect("a dictionary") {
        let Value::Integer(integer) = value else { panic!("no Integer: {text}") };
        assert!(integer >= 0, "{text}");
        members.insert(key.to_owned(), integer);
    }
    assert!(members.contains_key("remaining"), "{text}");
    for policy in headers.get_all("ratelimit-policy") {
        let mut parser = Parser::new(policy.as_bytes());
        while let Some(quota) = parser.parse_list().expect("a list") {
            assert!(matches!(quota, Value::Integer(0..)), "{policy:?}");
            let window = parser.parse_param().expect("a parameter");
            assert!(matches!(window, Some(("w", Value::Integer(1..)))), "{policy:?}");
            assert_eq!(parser.parse_param().expect("no other parameter"), None);
        }
    }
}

fn expect_integers(headers: &HeaderMap, names: [&str; 3]) {
    let number = |name: &&str| -> Option<u64> {
        headers.get(*name).map(|value| value.to_str().expect("it is printable").parse().expect("a number"))
    };
    let numbers: Vec<_> = names.iter().map(number).collect();
    assert!(numbers[1].is_some() && numbers[0].is_some() == numbers[2].is_some(), "{headers:?}");
}

/// A member of a list: a String, and its parameters.
#[derive(Debug)]
struct Member {
    name: String,
    integers: BTreeMap<String, i64>,
    bytes: BTreeMap<String, Vec<u8>>,
}

/// The members of a field that is a List of Strings.
fn list(headers: &HeaderMap, field: &str) -> Vec<Member> {
    let text = headers[field].to_str().expect("it is printable");
    let mut parser = Parser::new(text.as_bytes());
    let mut members = Vec::new();
    while let Some(item) = parser.parse_list().expect("a list") {
        let Value::String { range, .. } = item else { panic!("no String: {text}") };
        let written = text[range].replace("\\\"", "\"").replace("\\\\", "\\");
        let (mut integers, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        while let Some((key, value)) = parser.parse_param().expect("a parameter") {
            let key = key.to_owned();
            match value {
                Value::Integer(integer) => assert_eq!(integers.insert(key, integer), None, "{text}"),
                Value::ByteSeq(range) => assert_eq!(
                    bytes.insert(key, BASE64_STANDARD.decode(&text[range]).expect("it is base64")),
                    None,
                    "{text}"
                ),
                other => panic!("{other:?}: {text}"),
            }
        }
        members.push(Member { name: decoded(Some(&written)), integers, bytes });
    }
    members
}

fn decoded(name: Option<&str>) -> String {
    percent_decode_str(name.expect("a name")).decode_utf8().expect("it is UTF-8").into_owned()
}

/// An instant that JSON can hold.
fn instant(micros: i64) -> DateTime<Utc> {
    Timestamp::from_micros(micros).into()
}

/// The largest integer of a structured field.
const MOST_INTEGER: i64 = 999_999_999_999_999;
