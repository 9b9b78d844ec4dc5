//! All verbs at once on one limit, through limiters and a gate, with calls that are dropped, rolled back or impatient:
//! the answers to callers agree with the rows, to the micro-token.

use std::time::Duration;

use fastrand::Rng;
use sqlx::{Connection, PgConnection, PgTransaction};
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Gate, Limit, Limiter, Receipt, Tokens};

use super::stage::EVER;
use crate::cancellation::Cut;
use crate::gate::stage::{patient, soon};
use crate::teller::run;
use crate::world::{World, limiter};

const CALLERS: u64 = 16;
const ROUNDS: usize = 25;

#[derive(Clone, Copy)]
enum Verb {
    Consume,
    Reserve,
    Settle,
    Credit,
    Debit,
}

/// The amount that a call took, negative where it gave, and its receipt.
type Took = Option<(i64, Option<Receipt>)>;

struct Caller {
    conn: PgConnection,
    gate: Gate,
    limit: Limit,
    dice: Rng,
    /// With what each was charged.
    receipts: Vec<(i64, Receipt)>,
    /// The sum of the calls that count.
    taken: i64,
}

impl Caller {
    async fn go(mut self) -> i64 {
        for _ in 0..ROUNDS {
            let verb = self.dice.choice([Verb::Consume, Verb::Reserve, Verb::Settle, Verb::Credit, Verb::Debit]);
            // A few tokens, or the share of a shard and more.
            let amount =
                if self.dice.u8(..4) == 0 { self.dice.i64(1..600_000_000) } else { self.dice.i64(1..3_000_000) };
            let verb = verb.filter(|verb| !matches!(verb, Verb::Credit) || amount < 3_000_000).unwrap_or(Verb::Consume);
            let used = if let Verb::Settle = verb { self.receipts.pop() } else { None };
            if self.dice.u8(..4) == 0 {
                self.ask_gate(verb, amount, used).await;
            } else {
                self.join(verb, amount, used).await;
            }
        }
        self.taken
    }

    async fn ask_gate(&mut self, verb: Verb, amount: i64, used: Option<(i64, Receipt)>) {
        let (gate, request) = (&self.gate, self.limit.global().cost(Tokens::from_micros(amount)));
        let took = match (verb, used) {
            (Verb::Settle, Some((charged, receipt))) => {
                gate.settle(receipt, Tokens::from_micros(charged / 2)).await.unwrap();
                Some((charged / 2 - charged, None))
            }
            (Verb::Credit, _) => gate.credit(request).await.map(|_| Some((-amount, None))).unwrap(),
            (Verb::Debit, _) => gate.debit(request).await.map(|_| Some((amount, None))).unwrap(),
            (Verb::Reserve, _) => took(amount, gate.reserve(request).await.unwrap()),
            _ => took(amount, gate.consume(request).await.unwrap()),
        };
        self.count(took);
    }

    /// In a transaction, which may come to nothing.
    async fn join(&mut self, verb: Verb, amount: i64, used: Option<(i64, Receipt)>) {
        let waits = if self.dice.u8(..5) == 0 { self.dice.usize(..6) } else { usize::MAX };
        let asks = match self.dice.u8(..3) {
            0 => limiter().lock_timeout(Duration::from_millis(self.dice.u64(1..50))),
            _ => limiter(),
        };
        let mut tx = self.conn.begin().await.unwrap();
        if self.dice.u8(..4) == 0 {
            run(&mut tx, "savepoint theirs").await;
            let _ = limiter().consume(&mut tx, self.limit.global().cost(3)).await.unwrap();
            run(&mut tx, "rollback to savepoint theirs").await;
        }
        match Cut::after(waits, call(asks, &mut tx, &self.limit, verb, amount, used.clone())).await {
            Some(Ok(took)) if self.dice.u8(..5) > 0 => {
                tx.commit().await.unwrap();
                return self.count(took);
            }
            // Their transaction is usable, and nothing is in it.
            Some(Err(Error::Locked { .. })) => tx.commit().await.unwrap(),
            Some(Err(error)) => panic!("{error}"),
            Some(Ok(_)) => tx.rollback().await.unwrap(),
            None => {
                drop(tx);
                // The transaction is rolled back before this ping, and a statement under way may have failed meanwhile.
                soon(async { while self.conn.ping().await.is_err() {} }).await;
            }
        }
        self.receipts.extend(used);
    }

    fn count(&mut self, took: Took) {
        if let Some((amount, receipt)) = took {
            self.taken += amount;
            self.receipts.extend(receipt.map(|receipt| (amount, receipt)));
        }
    }
}

async fn call(
    limiter: Limiter,
    tx: &mut PgTransaction<'_>,
    limit: &Limit,
    verb: Verb,
    amount: i64,
    used: Option<(i64, Receipt)>,
) -> Result<Took, Error> {
    let request = limit.global().cost(Tokens::from_micros(amount));
    Ok(match (verb, used) {
        (Verb::Settle, Some((charged, receipt))) => {
            limiter.settle(tx, receipt, Tokens::from_micros(2 * charged)).await?;
            Some((charged, None))
        }
        (Verb::Credit, _) => limiter.credit(tx, request).await.map(|_| Some((-amount, None)))?,
        (Verb::Debit, _) => limiter.debit(tx, request).await.map(|_| Some((amount, None)))?,
        (Verb::Reserve, _) => took(amount, limiter.reserve(tx, request).await?),
        _ => took(amount, limiter.consume(tx, request).await?),
    })
}

fn took<T: Into<Receipt>>(amount: i64, decision: Decision<T>) -> Took {
    Some((amount, Some(decision.granted().ok()?.into())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_calls_come_to_the_rows_balance_to_the_micro_token() {
    // So large that no credit finds a row full, and half spent.
    let limit = Limit::token_bucket("storm", 1, EVER).rate_and_capacity(Tokens::from_micros(16), Tokens::new(8_000));
    for shards in [2, 16] {
        let (world, limit) = (World::new().await, limit.clone().max_reserved(4_000).shards(shards));
        let mut conn = world.connect().await;
        let gate = patient(&world.pool).build();
        let before = gate.debit(limit.global().cost(4_000)).await.unwrap().remaining;
        let mut callers = JoinSet::new();
        for seed in 0..CALLERS {
            let (gate, limit, dice) = (gate.clone(), limit.clone(), Rng::with_seed(seed));
            let conn = PgConnection::connect(&world.url()).await.unwrap();
            callers.spawn(Caller { conn, gate, limit, dice, receipts: Vec::new(), taken: 0 }.go());
        }
        let taken: i64 = callers.join_all().await.into_iter().sum();
        let left = limiter().balance(&mut conn, limit.global()).await.unwrap().remaining;
        assert_eq!(left.micros(), before.micros() - taken, "{shards}");
        let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
        assert_eq!(sqlx::query_scalar::<_, i64>(deadlocks).fetch_one(&mut conn).await.unwrap(), 0);
    }
}
