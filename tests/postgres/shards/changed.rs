//! Another number of shards while rows live: a changed definition. Every row stays readable, and the grants of all have
//! a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tollgate::{Balance, Decision, Gate, Limit, Limiter, MINUTE, Receipt, Request, SECOND, Sweeper};

use super::stage::{EVER, clear, put, shards, table, versions, whole};
use crate::cancellation::{Cut, Cuts};
use crate::gate::stage::{deadlocks, patient, until_alone};
use crate::teller::both;
use crate::world::{World, limiter, one_connection, second};

const ONE: i64 = 1_000_000;
const CHANGES: [(u16, u16); 2] = [(4, 1), (1, 4)];

fn with(limit: &Limit, shards: u16) -> Limit {
    limit.clone().shards(shards)
}

/// A caller at an instant that the test sets.
struct Asker {
    conn: PgConnection,
    gate: Option<Gate>,
    now: Arc<AtomicI64>,
}

impl Asker {
    /// One through a limiter, one through a gate.
    async fn all(world: &World) -> [Self; 2] {
        let now = Arc::new(AtomicI64::new(0));
        let clock = now.clone();
        let clock = move || DateTime::from_timestamp_micros(clock.load(Ordering::SeqCst)).unwrap();
        let gate = patient(&world.pool).clock(clock).build();
        let asker = async |gate| Self { conn: world.connect().await, gate, now: now.clone() };
        [asker(None).await, asker(Some(gate)).await]
    }

    fn at(&mut self, now: DateTime<Utc>) -> &mut Self {
        self.now.store(now.timestamp_micros(), Ordering::SeqCst);
        self
    }

    fn limiter(&self) -> Limiter {
        limiter().at(DateTime::from_timestamp_micros(self.now.load(Ordering::SeqCst)).unwrap())
    }

    async fn consume(&mut self, request: Request) -> Decision {
        if let Some(gate) = &self.gate {
            return gate.consume(request).await.unwrap();
        }
        let limiter = self.limiter();
        let mut tx = self.conn.begin().await.unwrap();
        let decision = limiter.consume(&mut tx, request).await.unwrap();
        tx.commit().await.unwrap();
        decision
    }

    async fn settle(&mut self, receipt: Receipt, actual: u32) {
        if let Some(gate) = &self.gate {
            gate.settle(receipt, actual).await.unwrap();
            return;
        }
        let limiter = self.limiter();
        let mut tx = self.conn.begin().await.unwrap();
        limiter.settle(&mut tx, receipt, actual).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn reset(&mut self, request: Request) -> Balance {
        if let Some(gate) = &self.gate {
            return gate.reset(request).await.unwrap();
        }
        let limiter = self.limiter();
        let mut tx = self.conn.begin().await.unwrap();
        let balance = limiter.reset(&mut tx, request).await.unwrap();
        tx.commit().await.unwrap();
        balance
    }

    /// In micro-tokens.
    async fn balance(&mut self, request: Request) -> i64 {
        let balance = match &self.gate {
            Some(gate) => gate.balance(request).await,
            None => self.limiter().balance(&mut self.conn, request).await,
        };
        balance.unwrap().remaining.micros()
    }
}

#[tokio::test]
async fn what_is_used_of_each_row_stays_used_of_its_new_part() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for mut asker in Asker::all(&world).await {
        asker.at(second(0.0));
        for limit in both(&Limit::token_bucket("cut", 40, EVER)) {
            let (one, four) = (with(&limit, 1), with(&limit, 4));

            put(&mut conn, &four, &[0; 4], second(0.0)).await;
            let before = versions(&mut conn, &four).await;
            assert_eq!(asker.balance(one.global()).await, 30 * ONE);
            assert!(asker.consume(one.global().cost(30)).await.is_granted());
            assert_eq!(asker.consume(one.global()).await.denied().unwrap().remaining, whole(0));
            let after = versions(&mut conn, &four).await;
            assert_eq!(after[1..], before[1..], "nobody asks stale shards");
            assert_eq!(asker.balance(four.global()).await, -30 * ONE, "and back again");

            put(&mut conn, &one, &[40 * ONE], second(0.0)).await;
            assert_eq!(asker.balance(four.global()).await, 40 * ONE);
            for cost in [1, 39] {
                assert!(asker.consume(four.global().cost(cost)).await.is_granted());
            }
            assert_eq!(shards(&mut conn, &four).await, [(0, 0), (1, 0), (2, 0), (3, 0)]);
            assert!(!asker.consume(four.global()).await.is_granted());

            put(&mut conn, &one, &[0], second(0.0)).await;
            assert_eq!(asker.balance(four.global()).await, 0, "new rows are full ones");
            clear(&mut conn, &limit).await;
        }
    }
}

#[tokio::test]
async fn a_debt_binds_where_its_row_is_asked() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for mut asker in Asker::all(&world).await {
        asker.at(second(0.0));
        let limit = Limit::token_bucket("debt", 40, EVER).max_reserved(40);
        let (one, four) = (with(&limit, 1), with(&limit, 4));
        put(&mut conn, &four, &[10 * ONE, -5 * ONE, -5 * ONE, -5 * ONE], second(0.0)).await;
        assert_eq!(asker.balance(four.global()).await, -5 * ONE);
        assert_eq!(asker.balance(one.global()).await, 40 * ONE, "a debt in a stale shard binds nobody");
        assert!(asker.consume(one.global().cost(40)).await.is_granted());

        put(&mut conn, &one, &[-20 * ONE], second(0.0)).await;
        assert_eq!(asker.balance(four.global()).await, -20 * ONE, "sixty are used among four as among one");

        // Repaid at a tenth of the rate.
        let limit = Limit::token_bucket("repaid", 10, SECOND).max_reserved(100);
        let (one, ten) = (with(&limit, 1), with(&limit, 10));
        put(&mut conn, &one, &[-10 * ONE], second(0.0)).await;
        for (at, left) in [(0.0, -10), (5.0, -5), (10.0, 0), (20.0, 10)] {
            assert_eq!(asker.at(second(at)).balance(ten.global()).await, left * ONE, "{at}");
        }
        for (at, left) in [(0.0, -10), (1.0, 0), (2.0, 10)] {
            assert_eq!(asker.at(second(at)).balance(one.global()).await, left * ONE, "{at}");
        }
    }
}

/// Between any two grants: while both numbers live the sum of both limits; across a change one capacity more than one
/// limit; else one limit.
#[tokio::test]
async fn what_is_granted_is_bounded_while_both_live_and_afterwards() {
    const CAPACITY: i64 = 40;
    let world = World::new().await;
    let mut conn = world.connect().await;
    let mut dice = Rng::with_seed(47);
    for mut asker in Asker::all(&world).await {
        // Four micro-tokens a microsecond.
        for limit in both(&Limit::token_bucket("bound", 4, SECOND).capacity(40)) {
            for (old, new) in CHANGES {
                for together in [0, 60] {
                    clear(&mut conn, &limit).await;
                    let (mut now, mut grants) = (0, Vec::new());
                    for call in 0..80 + together {
                        now += dice.i64(0..1_500_000);
                        let is_new = match call {
                            ..40 => false,
                            40.. if call < 40 + together => dice.bool(),
                            _ => true,
                        };
                        // Whether only one number of shards is in use, and which.
                        let alone = (!(40..40 + together).contains(&call)).then_some(is_new);
                        let asked = with(&limit, if is_new { new } else { old });
                        let cost = dice.i64(1..=16);
                        let at = second(0.0) + chrono::TimeDelta::microseconds(now);
                        if asker.at(at).consume(asked.global().cost(cost)).await.is_granted() {
                            grants.push((now, cost * ONE, alone));
                        }
                    }
                    assert!(grants.len() > 20, "{old} to {new}: {grants:?}");
                    for from in 0..grants.len() {
                        let mut sum = 0;
                        for to in from..grants.len() {
                            sum += grants[to].1;
                            let window = CAPACITY * ONE + 4 * (grants[to].0 - grants[from].0);
                            let most = match (grants[from].2, grants[to].2) {
                                (Some(first), Some(last)) if first == last => window,
                                (Some(_), Some(_)) if together == 0 => window + CAPACITY * ONE,
                                _ => 2 * window,
                            };
                            assert!(sum <= most, "{old} to {new}, {from} to {to}: {sum} of {most}: {grants:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Two releases ask at once, each by its own number, through limiters and gates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_deploys_at_once_grant_no_more_than_both_limits_and_never_deadlock() {
    const CAPACITY: i64 = 200;
    for (old, new) in CHANGES {
        for limit in both(&Limit::token_bucket("deploys", 200, EVER)) {
            let world = World::new().await;
            let granted = Arc::new(AtomicI64::new(0));
            let mut callers = JoinSet::new();
            for seed in 0..16_u64 {
                let limit = with(&limit, if seed % 2 == 0 { old } else { new });
                let (url, pool, granted) = (world.url(), world.pool.clone(), granted.clone());
                callers.spawn(async move {
                    let (mut conn, mut dice) = (PgConnection::connect(&url).await.unwrap(), Rng::with_seed(seed));
                    let gate = patient(&pool).build();
                    for _ in 0..40 {
                        let decision = if dice.u8(..4) == 0 {
                            gate.consume(limit.global()).await.unwrap()
                        } else {
                            let mut tx = conn.begin().await.unwrap();
                            let decision = limiter().consume(&mut tx, limit.global()).await.unwrap();
                            tx.commit().await.unwrap();
                            decision
                        };
                        granted.fetch_add(decision.is_granted().into(), Ordering::SeqCst);
                    }
                });
            }
            callers.join_all().await;
            let granted = granted.load(Ordering::SeqCst);
            assert!((CAPACITY..=2 * CAPACITY).contains(&granted), "{old} to {new}: {granted}");
            let mut conn = world.connect().await;
            for number in [old, new] {
                let left = limiter().balance(&mut conn, with(&limit, number).global()).await.unwrap().remaining;
                assert!(left < whole(1), "all of both is spent: {old} to {new}");
            }
            world.pool.close().await;
            until_alone(&mut conn).await;
            assert_eq!(deadlocks(&mut conn).await, 0);
        }
    }
}

/// A stale shard goes by its own instant, as every row does.
#[tokio::test]
async fn the_sweeper_deletes_stale_shards_a_margin_after_they_are_full() {
    let world = World::new().await;
    for mut asker in Asker::all(&world).await {
        for limit in both(&Limit::token_bucket("stale", 4, MINUTE)) {
            let four = with(&limit, 4);
            assert!(asker.at(second(0.0)).consume(four.global().cost(4)).await.is_granted());
            for (at, deleted) in [(119.9, 0), (120.0, 4)] {
                let swept = Sweeper::new().margin(MINUTE).at(second(at)).sweep(&world.pool).await.unwrap();
                assert_eq!(swept.rows(), deleted, "{at} of {}", table(&limit));
            }
        }
    }
    assert_eq!(world.rows().await, 0);
}

/// So the caller sees in the balance that the reset is to be repeated.
#[tokio::test]
async fn a_dropped_reset_that_filled_the_rows_has_deleted_the_stale_ones() {
    let world = World::new().await;
    let pool = one_connection(world.url().parse().unwrap()).await;
    let mut conn = world.connect().await;
    for limit in both(&Limit::token_bucket("dropped", 40, EVER).shards(4)) {
        let two = with(&limit, 2);
        let (limiter, mut cuts) = (limiter().at(second(0.0)), Cuts::default());
        loop {
            put(&mut conn, &limit, &[0; 4], second(0.0)).await;
            let mut tx = pool.begin().await.unwrap();
            let done = Cut::after(cuts.waits, limiter.reset(&mut tx, two.global())).await;
            tx.commit().await.unwrap();
            let is_full = limiter.balance(&mut conn, two.global()).await.unwrap().is_full();
            let stale = shards(&mut conn, &limit).await.len() - 2;
            assert!(!is_full || stale == 0, "{stale} stale ones stay, cut at {}", cuts.waits);
            if !cuts.go_on(done.is_some()) {
                break;
            }
        }
        clear(&mut conn, &limit).await;
    }
}

#[tokio::test]
async fn a_reset_deletes_the_stale_shards_of_its_key() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    for mut asker in Asker::all(&world).await {
        asker.at(second(0.0));
        let limits = both(&Limit::token_bucket("reset", 40, EVER).shards(4));
        for limit in &limits {
            for key in ["a", "b"] {
                assert!(asker.consume(limit.key(key).cost(40)).await.is_granted());
            }
        }
        for limit in &limits {
            let two = with(limit, 2);
            assert!(asker.reset(limit.key("a")).await.is_full());
            assert_eq!(shards(&mut conn, limit).await.len(), 8, "four of four are none too many");
            assert!(asker.reset(two.key("a")).await.is_full());
            let rows = shards(&mut conn, limit).await;
            let a = [(0, 10 * ONE), (1, 10 * ONE)];
            assert_eq!(rows, [&a[..], &[(0, 0), (1, 0), (2, 0), (3, 0)]].concat(), "{}", table(limit));
            assert_eq!(asker.balance(limit.key("a")).await, 40 * ONE);
        }

        // Rolled back, they are as they were.
        let [durable, _] = &limits;
        let before = shards(&mut conn, durable).await;
        let mut tx = conn.begin().await.unwrap();
        limiter().at(second(0.0)).reset(&mut tx, with(durable, 1).key("b")).await.unwrap();
        assert_eq!(shards(&mut tx, durable).await.len(), 3);
        tx.rollback().await.unwrap();
        assert_eq!(shards(&mut conn, durable).await, before);

        for limit in &limits {
            clear(&mut conn, limit).await;
        }
    }
}

/// It is settled by its own definition, on its own rows, none of which it cuts.
#[tokio::test]
async fn a_stored_receipt_is_settled_after_the_change() {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let stored =
        |receipt: Receipt| -> Receipt { serde_json::from_str(&serde_json::to_string(&receipt).unwrap()).unwrap() };
    for mut asker in Asker::all(&world).await {
        for limit in both(&Limit::token_bucket("receipt", 40, MINUTE)) {
            let (one, four) = (with(&limit, 1), with(&limit, 4));
            clear(&mut conn, &limit).await;
            asker.at(second(0.0));
            let spent = asker.consume(four.global().cost(40)).await.granted().unwrap();
            assert_eq!(spent.receipt.charges.len(), 4);
            let receipt = stored(spent.into());

            // Four shards get tokens back, and then one row is asked.
            asker.settle(receipt.clone(), 0).await;
            assert_eq!(shards(&mut conn, &four).await, [(0, 10 * ONE), (1, 10 * ONE), (2, 10 * ONE), (3, 10 * ONE)]);
            assert_eq!(asker.balance(one.global()).await, 40 * ONE);

            // Under its number a row holds more than the receipt's part, and keeps it.
            put(&mut conn, &four, &[0; 4], second(0.0)).await;
            assert!(asker.at(second(45.0)).consume(one.global()).await.is_granted());
            asker.settle(receipt.clone(), 10).await;
            assert_eq!(asker.balance(one.global()).await, 39 * ONE, "what comes back to others does not cut it");
            asker.settle(receipt.clone(), 50).await;
            assert_eq!(asker.balance(one.global()).await, 39 * ONE, "what lies above is the last row's");

            // Each charge goes to its own row, under any present number of shards.
            put(&mut conn, &four, &[0; 4], second(0.0)).await;
            let mut beyond = receipt.clone();
            beyond.charges.iter_mut().for_each(|charge| charge.shard += 4);
            asker.at(second(0.0)).settle(stored(beyond), 0).await;
            assert_eq!(shards(&mut conn, &four).await, [(0, 0), (1, 0), (2, 0), (3, 0)]);

            // A row that was swept was full: there is nothing to give back to.
            clear(&mut conn, &limit).await;
            asker.settle(receipt, 0).await;
            assert_eq!(shards(&mut conn, &limit).await, []);

            // From one to four.
            let spent = asker.consume(one.global().cost(40)).await.granted().unwrap();
            assert_eq!(asker.balance(four.global()).await, 0, "all that is used counts");
            asker.settle(stored(spent.into()), 0).await;
            assert_eq!(shards(&mut conn, &one).await[0], (0, 40 * ONE));
            assert_eq!(asker.balance(four.global()).await, 40 * ONE);
        }
    }
}
