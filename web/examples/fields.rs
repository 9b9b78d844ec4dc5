//! Random calls of one client, the header fields that it is told, and what the server would grant at other instants, as
//! JSON: what the tests of the mirror compare with what the mirror says.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use serde_json::{Value, json};
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Plan, RowId, Under, Verb};
use tollgate::{Decision, Grant, Limit, LimitKind, LimitSpec, Request, Tokens};
use tollgate_http::{Facts, Fields, Format};

fn main() {
    let mut random = Rng::with_seed(11);
    let stories: Vec<_> = (0..STORIES).map(|place| story(&mut random, place)).collect();
    println!("{}", json!(stories));
}

/// What one client does under one limit or two, in one format of the fields.
fn story(random: &mut Rng, place: usize) -> Value {
    let mut limits = vec![limit(random, "one", KINDS[place % KINDS.len()])];
    if random.bool() {
        let kind = KINDS[random.usize(0..KINDS.len())];
        limits.push(limit(random, "two", kind));
    }
    // Of two limits the older fields, and by default the newer ones, tell of one alone.
    let formats = [Format::Draft11, Format::None, Format::Draft7, Format::Draft6, Format::XRateLimit];
    let format = formats[random.usize(0..if limits.len() == 1 { 5 } else { 2 })];
    let fields = Fields::new(format);
    let fields = if limits.len() > 1 || random.bool() { fields.all() } else { fields };
    // What a call has used beyond its charge is known from the answer to the next one: no answer may be lost.
    let has_debts = random.bool() && limits.iter().all(|limit| limit.kind != LimitKind::Concurrency);
    let mut server = Server { limits, rows: BTreeMap::new() };
    let mut now = Timestamp::from_micros(1_735_689_600_000_000 + random.i64(0..1_000_000));
    for wallet in server.limits.clone().iter().filter(|limit| limit.kind == LimitKind::Wallet) {
        let funds = Verb::credit(wallet.global().cost(random.u32(1..MOST)));
        server.decide(&Plan::new([funds]).expect("the call is right"), now).expect("a wallet takes what it is given");
    }
    let mut steps = Vec::new();
    for number in 0..CALLS {
        let cost = random.u32(1..5);
        if has_debts && random.u8(0..4) == 0 {
            let limit = server.limits[0].clone();
            let used = Verb::debit(limit.global().cost(random.u32(1..10)));
            server.decide(&Plan::new([used]).expect("the call is right"), now).expect("it takes whatever is there");
        }
        let Ok((is_granted, told)) = server.call(cost, number, now, fields) else { continue };
        let span = if random.u8(0..4) == 0 { 20_000_000 } else { 3_000_000 };
        let next = now.plus(Duration::from_micros(random.u64(1..span)));
        let mut instants: Vec<_> = (0..ASKS).map(|_| random.i64(now.micros()..next.micros())).collect();
        instants.sort_unstable();
        let ask = |at: i64| json!({ "at": at, "left": server.left(Timestamp::from_micros(at)) });
        let asks: Vec<_> = instants.into_iter().map(ask).collect();
        let status = if is_granted { 200 } else { 429 };
        steps.push(json!({ "at": now.micros(), "cost": cost, "status": status, "fields": told, "asks": asks }));
        now = next;
    }
    json!({ "tells_balances": format != Format::None, "has_debts": has_debts, "steps": steps })
}

fn limit(random: &mut Rng, name: &str, kind: LimitKind) -> Limit {
    let rate = Tokens::new(random.u32(1..12));
    let period = Duration::from_micros(random.u64(200_000..8_000_000));
    let spec = if kind == LimitKind::Wallet {
        LimitSpec::new(name, kind, Tokens::ZERO, Duration::ZERO)
    } else {
        LimitSpec::new(name, kind, rate, period)
    };
    let spec = spec.with(|spec| {
        if !matches!(kind, LimitKind::Wallet | LimitKind::SlidingWindow | LimitKind::Concurrency) {
            spec.capacity = Some(Tokens::new(random.u32(1..20)));
        }
    });
    Limit::try_from(spec).expect("these numbers are right")
}

struct Server {
    limits: Vec<Limit>,
    rows: BTreeMap<RowId, State>,
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
        let draw = || u128::from(number) + 1;
        let plan = Plan::under([Verb::consume(self.requests(cost))], &Under { draw: &draw, ..Under::NOTHING })?;
        let decision: Decision = match self.decide(&plan, now)? {
            Answer::Granted { grant: Grant { remaining, receipt, standings, .. }, .. } => {
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

    fn decide(&mut self, plan: &Plan, now: Timestamp) -> Result<Answer, tollgate::Error> {
        let mut outcome = plan.decide(&self.found(plan), &[], now);
        let changes = outcome.changes.into_iter().map(|change| (plan.rows()[change.row].clone(), change.state));
        self.rows.extend(changes);
        outcome.answers.pop().expect("one call has one answer")
    }

    /// The largest cost of a call that would be granted.
    fn left(&self, at: Timestamp) -> u32 {
        (1..=MOST).take_while(|cost| self.would_grant(*cost, at)).last().unwrap_or(0)
    }

    fn would_grant(&self, cost: u32, at: Timestamp) -> bool {
        let Ok(plan) = Plan::new([Verb::check(self.requests(cost))]) else { return false };
        let mut outcome = plan.decide(&self.found(&plan), &[], at);
        matches!(outcome.answers.pop(), Some(Ok(Answer::Granted { .. })))
    }

    fn found(&self, plan: &Plan) -> Vec<Option<State>> {
        plan.rows().iter().map(|row| self.rows.get(row).cloned()).collect()
    }

    fn requests(&self, cost: u32) -> Vec<Request> {
        self.limits.iter().map(|limit| limit.global().cost(cost)).collect()
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
/// More than any capacity.
const MOST: u32 = 20;
const STORIES: usize = 600;
const CALLS: u32 = 20;
const ASKS: usize = 10;
