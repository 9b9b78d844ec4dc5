//! Random calls of one client, the header fields that it is told, and when the server would grant more, as JSON: what
//! the tests of the mirror compare with what the mirror says.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use serde_json::{Value, json};
use tollgate::algebra::{State, Timestamp};
use tollgate::http::{Facts, Fields, Format};
use tollgate::plan::{Answer, Call, Change, Plan};
use tollgate::{Decision, Limit, LimitKind, LimitSpec, Request, Tokens};

fn main() {
    let mut random = Rng::with_seed(11);
    let stories: Vec<_> = (0..STORIES).map(|place| story(&mut random, KINDS[place % KINDS.len()])).collect();
    println!("{}", json!(stories));
}

/// What one client does under one limit, in one format of the fields.
fn story(random: &mut Rng, kind: LimitKind) -> Vec<Value> {
    let limit = limit(random, kind);
    let formats = [Format::Draft11, Format::Draft11, Format::Draft7, Format::Draft6, Format::XRateLimit];
    let fields = Fields::new(formats[random.usize(0..formats.len())]);
    let fields = if random.bool() { fields.all() } else { fields };
    let mut server = Server { limit, row: None };
    let mut now = Timestamp::from_micros(1_735_689_600_000_000 + random.i64(0..1_000_000));
    let mut steps = Vec::new();
    for number in 0..CALLS {
        let cost = random.u32(1..5);
        if kind != LimitKind::Concurrency && random.u8(0..4) == 0 {
            // What a call has used beyond its charge: a debt.
            let used = Call::debit(server.request(random.u32(1..10)));
            server.decide(used, now).expect("it takes whatever is there");
        }
        let Ok((is_granted, told)) = server.call(cost, number, now, fields) else { continue };
        let mut asks = Vec::new();
        let mut at = now;
        for _ in 0..ASKS {
            at = at.plus(Duration::from_micros(random.u64(0..1_500_000)));
            let cost = random.u32(1..8);
            asks.push(json!({ "at": at.micros(), "cost": cost, "passes": server.would_grant(cost, at) }));
        }
        let status = if is_granted { 200 } else { 429 };
        steps.push(json!({ "at": now.micros(), "cost": cost, "status": status, "fields": told, "asks": asks }));
        now = now.plus(Duration::from_micros(random.u64(0..3_000_000)));
    }
    steps
}

fn limit(random: &mut Rng, kind: LimitKind) -> Limit {
    let rate = Tokens::new(random.u32(1..12));
    let period = Duration::from_micros(random.u64(200_000..8_000_000));
    let spec = if kind == LimitKind::Wallet {
        LimitSpec::new("any", kind, Tokens::ZERO, Duration::ZERO)
    } else {
        LimitSpec::new("any", kind, rate, period)
    };
    let spec = spec.with(|spec| {
        if !matches!(kind, LimitKind::Wallet | LimitKind::SlidingWindow | LimitKind::Concurrency) {
            spec.capacity = Some(Tokens::new(random.u32(1..20)));
        }
    });
    Limit::try_from(spec).expect("these numbers are right")
}

struct Server {
    limit: Limit,
    row: Option<State>,
}

impl Server {
    /// Whether a call is granted, and the fields of its answer.
    fn call(
        &mut self,
        cost: u32,
        number: u32,
        now: Timestamp,
        fields: Fields,
    ) -> Result<(bool, Vec<[String; 2]>), tollgate::Error> {
        let call = Call::consume([self.request(cost)]).with_id(u128::from(number) + 1);
        let decision: Decision = match self.decide(call, now)? {
            Answer::Granted { remaining, receipt, standings, .. } => {
                let observed_at = DateTime::<Utc>::from(now);
                serde_json::from_value(json!({ "granted": {
                    "remaining": remaining, "observed_at": observed_at, "decided_at": observed_at,
                    "source": "database", "receipt": receipt, "standings": standings,
                } }))
                .expect("these are the fields of a grant")
            }
            Answer::Denied(denied) => Decision::Denied(denied),
            Answer::Done(_) | Answer::Settled(_) => unreachable!("a call that takes is granted or denied"),
        };
        let headers = fields.of(Facts::from(&decision));
        let text = |value: &http::HeaderValue| value.to_str().expect("fields are ASCII").to_owned();
        let told = headers.iter().map(|(name, value)| [name.to_string(), text(value)]).collect();
        Ok((decision.is_granted(), told))
    }

    fn decide(&mut self, call: Call, now: Timestamp) -> Result<Answer, tollgate::Error> {
        let mut outcome = Plan::new([call])?.decide(std::slice::from_ref(&self.row), &[], now);
        if let Some(Change { state, .. }) = outcome.changes.pop() {
            self.row = Some(state);
        }
        outcome.answers.pop().expect("one call has one answer")
    }

    fn would_grant(&self, cost: u32, at: Timestamp) -> bool {
        let Ok(plan) = Plan::new([Call::check([self.request(cost)])]) else { return false };
        let mut outcome = plan.decide(std::slice::from_ref(&self.row), &[], at);
        matches!(outcome.answers.pop(), Some(Ok(Answer::Granted { .. })))
    }

    fn request(&self, cost: u32) -> Request {
        self.limit.global().cost(cost)
    }
}

const KINDS: [LimitKind; 6] = [
    LimitKind::TokenBucket,
    LimitKind::FixedWindow,
    LimitKind::SteppedBucket,
    LimitKind::SlidingWindow,
    LimitKind::Concurrency,
    LimitKind::Wallet,
];
const STORIES: usize = 300;
const CALLS: u32 = 20;
const ASKS: usize = 10;
