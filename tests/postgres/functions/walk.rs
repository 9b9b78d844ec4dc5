//! Random calls over the tables: the limiter makes each, is rolled back, and a function makes the same one. Answers and
//! rows are equal. Now and then an operator overrides a limit. More of them: `TOLLGATE_TEST_STEPS=10000`.

mod said;
mod told;

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use fastrand::Rng;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use tollgate::{
    BegunByHand, DAY, Decision, Error, Limit, LimitKind, Limiter, MINUTE, Overrides, Receipt, Request, SECOND,
    Settlement, Tokens,
};

use super::{define, owner};
use crate::teller::{Stored, both, rows, run};
use crate::world::{World, second};
use said::{Said, Whom};
use told::{Told, decision, refused, written};

const STEPS: usize = 1_000;
const DECISION: &str = "select d.granted, d.remaining::text, d.ready_at, d.retry_at, d.refused_by, d.decided_at";

#[tokio::test]
async fn the_functions_leave_the_rows_that_the_limiter_leaves() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    let seed = super::seed();
    let mut walk = Walk {
        dice: Rng::with_seed(seed),
        limits: limits(),
        now: second(0.0),
        retry_at: None,
        charged: Vec::new(),
        said: BTreeMap::new(),
        long_ago: second(-2e9),
    };
    run(&mut conn, "begin").await;
    let steps = std::env::var("TOLLGATE_TEST_STEPS").map_or(STEPS, |steps| steps.parse().unwrap());
    for step in 0..steps {
        if step % 100 == 99 {
            // So that dead rows go. Where nothing was ever overridden, the functions take a shorter way.
            run(&mut conn, "delete from tollgate.overrides; commit; begin").await;
            walk.said.clear();
        }
        let call = walk.call();
        for request in call.requests() {
            define(&mut conn, request.limit()).await;
        }
        if step / 100 % 2 == 1 && walk.dice.u32(..2) == 0 {
            walk.override_something(&mut conn).await;
        }
        if let Call::Cancel(charged) | Call::Settle(charged, _) = &call {
            walk.say_as_it_was(&mut conn, charged).await;
        }
        run(&mut conn, "savepoint step").await;
        let (by_limiter, receipt) = walk.ask_limiter(&mut conn, &call).await;
        let wanted = without_places(&mut conn, &by_limiter).await;
        run(&mut conn, "rollback to step").await;
        let by_function = walk.ask_function(&mut conn, &call).await;
        // Where several things are wrong, the two name different ones. And the functions look whether the row is a
        // wallet before they ask whether they know the id.
        let has_id = matches!(call, Call::Credit(_, Some(_)) | Call::Debit(_, Some(_)));
        let is_other_error = by_function.failed() && by_limiter.failed() && (has_id || call.requests().len() > 1);
        if is_other_error || has_id && by_function == Told::Failed("TG006".to_owned()) {
            run(&mut conn, "rollback to step").await;
            continue;
        }
        assert!(
            by_function == by_limiter,
            "{by_function:?}, not {by_limiter:?}: seed {seed}, step {step} at {}: {call:?}",
            walk.now
        );
        let found = without_places(&mut conn, &by_function).await;
        assert_eq!(found, wanted, "seed {seed}, step {step} at {}: {call:?}", walk.now);
        if by_function.failed() || walk.dice.u32(..8) == 0 {
            run(&mut conn, "rollback to step").await;
        } else {
            // A charge of nothing does not say what comes back in a period.
            walk.charged.extend(receipt.filter(|charged| charged.receipt.charges[0].cost > Tokens::ZERO));
        }
        walk.retry_at = by_function.retry_at();
    }
}

/// The rows and the ids; none where the transaction has failed.
async fn without_places(conn: &mut PgConnection, told: &Told) -> (Vec<Stored>, Vec<String>) {
    if told.failed() {
        return (Vec::new(), Vec::new());
    }
    let rows = rows(conn).await.into_iter().map(|row| Stored { place: String::new(), ..row }).collect();
    let ids = "select concat_ws(' ', name, key, id, asked, charged_at, kept_until) from tollgate.calls order by 1";
    (rows, sqlx::query_scalar(ids).persistent(false).fetch_all(conn).await.unwrap())
}

fn limits() -> Vec<Limit> {
    let mut limits = vec![
        Limit::token_bucket("bounded", 10, MINUTE).max_reserved(5),
        Limit::token_bucket("owing", 10, MINUTE).capacity(20).unbounded_reservations(),
        Limit::fixed_window("owing_windows", 10, MINUTE).unbounded_reservations(),
        Limit::stepped_bucket("owing_steps", 5, 10 * SECOND).capacity(20).unbounded_reservations(),
        Limit::wallet("money"),
        Limit::wallet("credit").overdraft(5),
        Limit::wallet("redefined"),
        Limit::meter("bill"),
        Limit::meter("credit"),
        Limit::monthly("owing_months", 10).start(14 * DAY).unbounded_reservations(),
    ];
    for limit in [
        Limit::token_bucket("drips", 10, MINUTE),
        Limit::token_bucket("thirds", 1, SECOND)
            .rate_and_capacity(Tokens::from_micros(333_333), Tokens::from_micros(5_000_001)),
        Limit::stepped_bucket("uploads", 5, 10 * SECOND).capacity(20),
        Limit::fixed_window("spread", 10, MINUTE),
        Limit::fixed_window("aligned", 10, 10 * SECOND).start(3 * SECOND),
        Limit::token_bucket("redefined", 10, MINUTE).capacity(20),
        Limit::fixed_window("redefined", 5, 10 * SECOND).capacity(10),
        Limit::monthly("redefined", 10),
        Limit::billing("redefined", 10),
        Limit::monthly("months", 10),
        Limit::billing("billed", 10).capacity(20),
    ] {
        limits.extend(both(&limit));
    }
    limits
}

/// The id of a credit or debit, if it has one. There are few, so that some come again.
type Id = Option<u32>;

#[derive(Clone, Debug)]
enum Call {
    Balance(Request),
    Cancel(Charged),
    Check(Vec<Request>),
    Consume(Vec<Request>),
    Credit(Request, Id),
    Debit(Request, Id),
    Reserve(Vec<Request>),
    Reset(Request),
    Settle(Charged, Tokens),
}

/// A charge: the limiter's receipt, and the values that the function's caller knows.
#[derive(Clone, Debug)]
struct Charged {
    receipt: Receipt,
    request: Request,
    decided_at: DateTime<Utc>,
    ready_at: DateTime<Utc>,
    /// The overrides of the limit at that time: functions settle by the overrides of now.
    said: Vec<(Whom, Said)>,
}

impl Call {
    fn requests(&self) -> Vec<Request> {
        match self {
            Self::Balance(one) | Self::Credit(one, _) | Self::Debit(one, _) | Self::Reset(one) => vec![one.clone()],
            Self::Check(requests) | Self::Consume(requests) | Self::Reserve(requests) => requests.clone(),
            Self::Cancel(charged) | Self::Settle(charged, _) => vec![charged.request.clone()],
        }
    }
}

struct Walk {
    dice: Rng,
    limits: Vec<Limit>,
    now: DateTime<Utc>,
    retry_at: Option<DateTime<Utc>>,
    charged: Vec<Charged>,
    said: BTreeMap<Whom, Said>,
    /// The instant at which the last of the repeated overrides was set.
    long_ago: DateTime<Utc>,
}

impl Walk {
    fn call(&mut self) -> Call {
        let micros = match self.dice.u32(..8) {
            0 | 1 => 0,
            2 => self.dice.i64(0..2_000_000),
            3 => self.dice.i64(0..600_000_000),
            4 => self.dice.i64(1..7) * 10_000_000 + self.dice.i64(-1..=1),
            5 => self.dice.i64(-90_000_000..0),
            _ => {
                let near = self.retry_at.filter(|at| *at < second(1e12)).unwrap_or(self.now);
                (near - self.now).num_microseconds().unwrap() + self.dice.i64(-1..=1)
            }
        };
        self.now += TimeDelta::microseconds(micros);
        let plain = self.request();
        let one = self.named(plain.clone());
        match self.dice.u32(..22) {
            0 => Call::Balance(plain),
            1 => Call::Check(self.several(one)),
            2 | 3 => Call::Credit(plain, self.id()),
            4 => Call::Debit(one, self.id()),
            5 => Call::Reset(plain),
            6..=8 if !self.charged.is_empty() => {
                let actual = Tokens::new(self.dice.u32(..8));
                let charged = self.charged.swap_remove(self.dice.usize(..self.charged.len()));
                // Of use beyond a charge the receipt knows the period that was named.
                let is_billing = charged.request.limit().kind == LimitKind::Billing;
                let actual = if is_billing { actual.min(charged.receipt.charges[0].cost) } else { actual };
                Call::Settle(charged, actual)
            }
            9 if !self.charged.is_empty() => {
                Call::Cancel(self.charged.swap_remove(self.dice.usize(..self.charged.len())))
            }
            10..=12 => Call::Reserve(self.several(one)),
            _ => Call::Consume(self.several(one)),
        }
    }

    fn id(&mut self) -> Id {
        self.dice.bool().then(|| self.dice.u32(..3))
    }

    fn request(&mut self) -> Request {
        let limit = self.dice.choice(&self.limits).unwrap();
        let cost = match self.dice.u32(..10) {
            0 => Tokens::from_micros(self.dice.i64(0..=30_000_000)),
            1 => Tokens::MAX,
            _ => Tokens::new(self.dice.u32(0..=9)),
        };
        match self.dice.choice(["", "a", "b", "ü|\\"]).unwrap() {
            "" => limit.global(),
            key => limit.key(key),
        }
        .cost(cost)
    }

    /// A request of a billing limit by a period that runs, is over, or has not begun; now and then without one.
    fn named(&mut self, request: Request) -> Request {
        if request.limit().kind != LimitKind::Billing || self.dice.u32(..10) == 0 {
            return request;
        }
        let minute = self.now.timestamp().div_euclid(60) - self.dice.choice([0, 0, 0, 0, 1, 2, -1]).unwrap();
        let start = second(0.0) + TimeDelta::seconds(60 * minute + 20 - second(0.0).timestamp());
        request.period(start, start + TimeDelta::seconds(self.dice.choice([60, 60, 60, 58, 61]).unwrap()))
    }

    /// One, two or three, of one definition for each name.
    fn several(&mut self, one: Request) -> Vec<Request> {
        let mut requests = vec![one];
        for _ in 0..self.dice.choice([0, 0, 0, 1, 2]).unwrap() {
            let other = self.request();
            let other = self.named(other);
            let differs = |one: &Request| one.limit().name() == other.limit().name() && one.limit() != other.limit();
            if !requests.iter().any(differs) {
                requests.push(other);
            }
        }
        requests
    }

    async fn ask_limiter(&mut self, conn: &mut PgConnection, call: &Call) -> (Told, Option<Charged>) {
        let overrides = Overrides::read(conn).await.unwrap();
        let (limiter, tx) = (Limiter::new().at(self.now).overrides(&overrides), &mut BegunByHand(conn));
        let settled = |answer: Result<Settlement, Error>| match answer {
            Ok(settlement) => Told::Done(written(settlement.charges[0].cost)),
            Err(error) => Told::error(&error),
        };
        let changed = match call.clone() {
            Call::Consume(requests) => {
                let (told, charged) = taken(&requests, limiter.consume(tx, requests.clone()).await);
                return (told, charged.map(|charged| Charged { said: self.said_of(&charged.request), ..charged }));
            }
            Call::Check(requests) => {
                return (taken(&requests, limiter.check(tx.0, requests.clone()).await).0, None);
            }
            Call::Reserve(requests) => {
                let (booked, alone) = (limiter.reserve(tx, requests.clone()).await, requests.len() == 1);
                return match booked {
                    Ok(Decision::Granted(booked)) => {
                        let last = booked.ready_at.to_rfc3339();
                        let decided_at = booked.decided_at;
                        // A window takes back by the function only tokens that are no debt.
                        let is_window = matches!(requests[0].limit().kind, LimitKind::FixedWindow | LimitKind::Monthly);
                        let kept = alone && (!is_window || booked.ready_at <= booked.decided_at);
                        let charged = Charged {
                            decided_at: booked.decided_at,
                            ready_at: booked.ready_at,
                            request: requests[0].clone(),
                            receipt: booked.receipt,
                            said: self.said_of(&requests[0]),
                        };
                        (Told::Granted { last, decided_at }, kept.then_some(charged))
                    }
                    Ok(Decision::Denied(denied)) => (refused(&denied), None),
                    Err(error) => (Told::error(&error), None),
                };
            }
            Call::Settle(charged, actual) => return (settled(limiter.settle(tx, charged.receipt, actual).await), None),
            Call::Cancel(charged) => return (settled(limiter.cancel(tx, charged.receipt).await), None),
            Call::Balance(request) => limiter.balance(tx.0, request).await,
            Call::Credit(request, id) => limiter.credit(tx, once(request, id)).await,
            Call::Debit(request, id) => limiter.debit(tx, once(request, id)).await,
            Call::Reset(request) => limiter.reset(tx, request).await,
        };
        let told = changed.map_or_else(|error| Told::error(&error), |balance| Told::Done(written(balance.remaining)));
        (told, None)
    }

    async fn ask_function(&mut self, conn: &mut PgConnection, call: &Call) -> Told {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let at = |instant: DateTime<Utc>| {
            let micros = instant.timestamp_micros();
            format!("tollgate._instant({micros})")
        };
        let now = at(self.now);
        let one = |request: &Request| {
            let (key, cost) = asked(request);
            format!("{}, {}, {cost}", quoted(request.limit().name()), quoted(&key))
        };
        let all = |requests: &[Request]| {
            let rows = requests.iter().map(|request| {
                let is_global = asked(request).0.is_empty();
                format!("row({}, {is_global}, {})::tollgate.request", one(request), period(request))
            });
            format!("array[{}]", rows.collect::<Vec<_>>().join(", "))
        };
        let change = |verb: &str, request: &Request, rest: &str| {
            let named = if verb == "debit" { period(request) } else { "null".to_owned() };
            format!("select tollgate._change('{verb}', {}, {rest}, {now}, {named})::text", one(request))
        };
        let plain = |id: Id| {
            let id = id.map_or("null".to_owned(), |id| quoted(&id.to_string()));
            format!("0, null, null, {id}, '31 days'")
        };
        let (sql, reserves) = match call {
            Call::Check(requests) | Call::Consume(requests) | Call::Reserve(requests) => {
                let (reserves, looks) = (matches!(call, Call::Reserve(_)), matches!(call, Call::Check(_)));
                let from = match &requests[..] {
                    // Both ways to ask one.
                    [only] if self.dice.bool() => {
                        format!("_ask({}, {reserves}, {looks}, {now}, named => {})", one(only), period(only))
                    }
                    several => format!("_ask_all({}, {reserves}, {looks}, {now})", all(several)),
                };
                (format!("{DECISION} from tollgate.{from} d"), Some(reserves))
            }
            Call::Balance(request) => {
                let of = request.clone().cost(Tokens::ZERO);
                (format!("select (tollgate._ask({}, true, true, {now})).remaining::text", one(&of)), None)
            }
            Call::Credit(request, id) => (change("credit", request, &plain(*id)), None),
            Call::Debit(request, id) => (change("debit", request, &plain(*id)), None),
            Call::Reset(request) => (change("reset", request, &plain(None)), None),
            Call::Settle(charged, actual) => {
                let rest = format!("{actual}, {}, {}, null, null", at(charged.decided_at), at(charged.ready_at));
                (change("settle", &charged.request, &rest), None)
            }
            Call::Cancel(charged) => {
                let rest = format!("0, {}, {}, null, null", at(charged.decided_at), at(charged.ready_at));
                (change("cancel", &charged.request, &rest), None)
            }
        };
        let told = sqlx::query(AssertSqlSafe(sql.clone())).persistent(false).fetch_one(conn).await;
        match told {
            Ok(row) => match reserves {
                Some(reserves) => decision(&row, reserves),
                None => Told::Done(row.get(0)),
            },
            Err(error) => {
                let error = error.as_database_error().unwrap_or_else(|| panic!("{error}: {sql}"));
                let code = error.code().unwrap().into_owned();
                assert!(code.starts_with("TG"), "{error}: {sql}");
                Told::Failed(code)
            }
        }
    }
}

fn once(request: Request, id: Id) -> tollgate::Call {
    if let Some(id) = id { request.once(id) } else { request.into() }
}

fn taken(requests: &[Request], decision: Result<Decision, Error>) -> (Told, Option<Charged>) {
    match decision {
        Ok(Decision::Granted(grant)) => {
            let alone = requests.len() == 1;
            let decided_at = grant.decided_at;
            let charged = Charged {
                decided_at: grant.decided_at,
                ready_at: grant.decided_at,
                request: requests[0].clone(),
                receipt: grant.receipt,
                said: Vec::new(),
            };
            (Told::Granted { last: written(grant.remaining), decided_at }, alone.then_some(charged))
        }
        Ok(Decision::Denied(denied)) => (refused(&denied), None),
        Err(error) => (Told::error(&error), None),
    }
}

/// The period that it names, as SQL.
fn period(request: &Request) -> String {
    let value = serde_json::to_value(request).unwrap();
    match value["period"].as_array() {
        Some(ends) => format!("tstzrange(tollgate._instant({}), tollgate._instant({}))", ends[0], ends[1]),
        None => "null".to_owned(),
    }
}

/// The key and the cost.
fn asked(request: &Request) -> (String, Tokens) {
    let value = serde_json::to_value(request).unwrap();
    (value["key"].as_str().unwrap().to_owned(), serde_json::from_value(value["cost"].clone()).unwrap())
}
