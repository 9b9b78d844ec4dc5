//! Calls against budgets, by a gate and in transactions of their callers.

use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgPool};
use tollgate::{Call, DAY, Error, Gate, Limit, LimitSpec, Limiter, Receipt, Settlement, Source, Tokens};

use crate::cancellation::Cut;
use crate::world::parts;

const EVER: Duration = Limit::MAX_PERIOD;
const MOST: u64 = 1_000_000_000_000;
/// Nothing comes back within the test.
const ORG: Limit = Limit::token_bucket("org", 1, EVER).capacity(MOST).shards(SHARDS);
const TEAM: Limit = Limit::fixed_window("team", MOST, EVER);
const USER: Limit = Limit::wallet("user").overdraft(MOST);
/// The limit of each user. Its steps, and the few calls of a user, keep the list of a row so short that no instant is
/// rounded: rounding may keep more than the calls cost.
const DAILY: Limit = Limit::sliding_window("daily", MOST, DAY).resolution(8);

pub(super) const SHARDS: u16 = 4;
/// So many that few outcomes of a user are unknown, however long it lasts.
const USERS: u32 = 100_000;
pub(super) const TEAMS: u32 = 10;
pub(super) const LAPSE: Duration = Duration::from_secs(2);

/// A caller that draws what it asks.
pub(super) struct Caller {
    pub(super) gate: Gate,
    pub(super) pool: PgPool,
    pub(super) dice: Rng,
}

impl Caller {
    /// Through a gate: an estimate that is reported or not, and settled or left.
    pub(super) async fn call(&mut self) {
        let Self { gate, dice, .. } = self;
        let id = format!("gate{:x}", dice.u64(..));
        let (user, cost, call) = asked(&id, dice);
        let (stream, _) = until_known(|| gate.stream(call.clone())).await;
        let stream = stream.unwrap().granted().unwrap();
        if stream.grant().source == Source::Degraded {
            // Nothing was charged, or nobody heard of it: then it lapses.
            return;
        }
        println!("@granted {id} {user}:{}", shard(&stream.grant().receipt));
        if dice.u8(..4) == 0 {
            stream.add(used(cost, dice));
            let count = stream.used().micros();
            println!("@reporting {id} {count}");
            match until_known(|| stream.report()).await.0 {
                Ok(()) => println!("@reported {id} {count}"),
                // It has lapsed, before or after it was reported.
                Err(Error::ReceiptUsed { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let receipt = stream.into_receipt();
        if dice.u8(..10) > 0 {
            let actual = used(cost, dice);
            println!("@settling {id} {}", actual.micros());
            settled(&id, until_known(|| gate.settle(receipt.clone(), actual)).await);
        }
    }

    /// Beside work of the caller's: a job is inserted with its charge, and another row with its settlement.
    pub(super) async fn call_joined(&mut self) {
        let Self { pool, dice, .. } = self;
        let id = format!("joined{:x}", dice.u64(..));
        let (user, cost, call) = asked(&id, dice);
        let receipt: Receipt = loop {
            if let Ok(receipt) = charge(pool, &id, call.clone(), dice).await {
                break receipt;
            }
        };
        println!("@granted {id} {user}:{}", shard(&receipt));
        let actual = used(cost, dice);
        println!("@settling {id} {}", actual.micros());
        // A used receipt, or one that has lapsed, ends it: a transaction whose commit got lost may have used the
        // receipt.
        while let Err(fault) = settle(pool, &id, receipt.clone(), actual, dice).await {
            if let Some(Error::ReceiptUsed { .. } | Error::Lapsed { .. }) = fault.downcast_ref() {
                return;
            }
        }
        println!("@settled {id} 0");
    }
}

/// A user, and one of his calls: by the definitions, or by larger ones, which change nothing of the
/// tokens used.
fn asked(id: &str, dice: &mut Rng) -> (u32, Tokens, Call) {
    let (user, cost) = (dice.u32(..USERS), Tokens::from_micros(dice.i64(1_000_000..10_000_000_000)));
    let larger = dice.bool();
    let of = |limit: Limit| if larger { limit.spec().with(twice).try_into().unwrap() } else { limit };
    let levels = [of(ORG).key("acme"), of(TEAM).key(user % TEAMS), of(USER).key(user), of(DAILY).key(user)];
    (user, cost, Call::from(levels.map(|request| request.cost(cost))).once(id).lapses_after(LAPSE))
}

fn twice(spec: &mut LimitSpec) {
    let twice = |amount: Tokens| Tokens::from_micros(2 * amount.micros());
    spec.capacity = spec.capacity.map(twice);
    (spec.rate, spec.max_reserved) = (twice(spec.rate), twice(spec.max_reserved));
}

/// Which row of the organisation was charged. Each has so much that one is enough.
fn shard(receipt: &Receipt) -> u16 {
    let mut of_org = receipt.charges.iter().filter(|charge| charge.limit() == "org");
    let (Some(charge), None) = (of_org.next(), of_org.next()) else { panic!("{receipt:?}") };
    charge.shard
}

/// The tokens used: at most the estimate, and for one call in ten up to twice as much.
fn used(cost: Tokens, dice: &mut Rng) -> Tokens {
    let most = if dice.u8(..10) == 0 { 2 * cost.micros() } else { cost.micros() };
    Tokens::from_micros(dice.i64(0..=most))
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A limiter that waits for a lock for ever, or for a moment.
fn limiter(dice: &mut Rng) -> Limiter {
    let limiter = Limiter::new().parts(parts());
    if dice.bool() { limiter } else { limiter.lock_timeout(Duration::from_millis(dice.u64(1..50))) }
}

/// The call, which is dropped on its way now and then. Its transaction is then rolled back.
async fn perhaps<T>(call: impl Future<Output = Result<T, Error>>, dice: &mut Rng) -> Result<T, Fault> {
    let waits = if dice.u8(..5) == 0 { dice.usize(..6) } else { usize::MAX };
    Ok(Cut::after(waits, call).await.ok_or("dropped")??)
}

async fn charge(pool: &PgPool, id: &str, call: Call, dice: &mut Rng) -> Result<Receipt, Fault> {
    let (limiter, mut tx) = (limiter(dice), pool.begin().await?);
    if dice.u8(..4) == 0 {
        let mut theirs = tx.begin().await?;
        let in_vain = call.requests().next().expect("it asks four").clone();
        limiter.consume(&mut theirs, in_vain).await?.granted()?;
        theirs.rollback().await?;
    }
    let grant = perhaps(limiter.consume(&mut tx, call), dice).await?.granted()?;
    let job = sqlx::query("insert into jobs values ($1) on conflict do nothing").bind(id);
    job.execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(grant.into())
}

async fn settle(pool: &PgPool, id: &str, receipt: Receipt, actual: Tokens, dice: &mut Rng) -> Result<(), Fault> {
    let (limiter, mut tx) = (limiter(dice), pool.begin().await?);
    perhaps(limiter.settle(&mut tx, receipt, actual), dice).await?;
    sqlx::query("insert into settled values ($1)").bind(id).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

fn settled(id: &str, (answer, may_be_done): (Result<Settlement, Error>, bool)) {
    match answer {
        Ok(_) => println!("@settled {id} 0"),
        Err(Error::Lapsed { .. }) if !may_be_done => println!("@lapsed {id} 0"),
        // By a try whose answer was lost, or by the reaper that gave it back when it had lapsed.
        Err(Error::Lapsed { .. } | Error::ReceiptUsed { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Asks until there is an answer; also whether an earlier try, whose answer was lost, may have done it.
async fn until_known<T, A: Future<Output = Result<T, Error>>>(ask: impl Fn() -> A) -> (Result<T, Error>, bool) {
    let mut may_be_done = false;
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => {}
            // No answer came, or nobody listens where the server was.
            Err(Error::OutcomeUnknown { .. } | Error::Database { .. }) => may_be_done = true,
            answer => return (answer, may_be_done),
        }
    }
}
