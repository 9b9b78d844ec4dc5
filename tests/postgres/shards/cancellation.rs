//! Calls of limits with shards that are dropped on the way.

use crate::gate::stage::one_connection;
use sqlx::{PgConnection, PgTransaction};
use tollgate::{Limit, Limiter, Receipt, SECOND};

use super::stage::{EVER, clear, put, shards};
use crate::cancellation::{Cut, Cuts};
use crate::proxy::Proxy;
use crate::world::{World, limiter, second};

const ONE: i64 = 1_000_000;

/// One for each way that a call may go, from the rows that it finds to the end.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// A shard that nobody holds, swapped.
    Free,
    /// The last tokens of a shard, swapped, too.
    Last,
    /// More than any shard has.
    Pooled,
    /// No row at all: one is placed, in a savepoint.
    Absent,
    /// A debt of several shards.
    Reserved,
    Debit,
    Settled,
    /// Of a limit with stale shards, which are deleted.
    Reset,
}

const PATHS: [Path; 8] =
    [Path::Free, Path::Last, Path::Pooled, Path::Absent, Path::Reserved, Path::Debit, Path::Settled, Path::Reset];

const LIMIT: Limit = Limit::token_bucket("cut", 40, EVER).max_reserved(40).shards(4);

impl Path {
    /// Sets the rows that lead there, and returns the receipt of a charge before the call, if there is one.
    async fn set(self, conn: &mut PgConnection) -> Option<Receipt> {
        match self {
            Self::Free | Self::Debit => put(conn, &LIMIT, &[9 * ONE; 4], second(0.0)).await,
            Self::Last => put(conn, &LIMIT, &[0, 3 * ONE, 0, 0], second(0.0)).await,
            Self::Pooled | Self::Reserved => put(conn, &LIMIT, &[ONE; 4], second(0.0)).await,
            Self::Absent => clear(conn, &LIMIT).await,
            Self::Reset => put(conn, &LIMIT, &[9 * ONE, 9 * ONE, 9 * ONE, 9 * ONE, -ONE, 0], second(0.0)).await,
            Self::Settled => {
                clear(conn, &LIMIT).await;
                let mut tx = sqlx::Connection::begin(conn).await.unwrap();
                let spent = limiter().consume(&mut tx, LIMIT.global().cost(30)).await.unwrap().granted().unwrap();
                tx.commit().await.unwrap();
                return Some(spent.into());
            }
        }
        None
    }

    async fn call(self, limiter: &Limiter, tx: &mut PgTransaction<'_>, receipt: Option<Receipt>) {
        let ask = LIMIT.global();
        match self {
            Self::Free => drop(limiter.consume(tx, ask.cost(2)).await.unwrap().granted().unwrap()),
            Self::Last | Self::Pooled => drop(limiter.consume(tx, ask.cost(3)).await.unwrap().granted().unwrap()),
            Self::Absent => drop(limiter.consume(tx, ask.cost(1)).await.unwrap().granted().unwrap()),
            Self::Reserved => drop(limiter.reserve(tx, ask.cost(30)).await.unwrap().granted().unwrap()),
            Self::Debit => drop(limiter.debit(tx, ask.cost(50)).await.unwrap()),
            Self::Settled => drop(limiter.settle(tx, receipt.unwrap(), 1).await.unwrap()),
            Self::Reset => drop(limiter.reset(tx, ask).await.unwrap()),
        }
    }
}

/// After a rollback every row is as it was; after a commit the limit holds the tokens that it held, or those that the
/// whole call leaves.
#[tokio::test]
async fn a_call_dropped_anywhere_counts_whole_or_not_at_all() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let pool = one_connection(proxy.options()).await;
    let mut conn = world.connect().await;
    let at = limiter().at(second(0.0));
    for limiter in [at.clone(), at.clone().lock_timeout(10 * SECOND)] {
        for path in PATHS {
            let balance = async |conn: &mut PgConnection| at.balance(conn, LIMIT.global()).await.unwrap().remaining;
            path.set(&mut conn).await;
            let without = balance(&mut conn).await;
            let mut with = Vec::new();
            for is_kept in [false, true] {
                let mut cuts = Cuts::default();
                loop {
                    let receipt = path.set(&mut conn).await;
                    let rows = shards(&mut conn, &LIMIT).await;
                    let mut tx = pool.begin().await.unwrap();
                    let done = Cut::after(cuts.waits, path.call(&limiter, &mut tx, receipt)).await;
                    if is_kept {
                        tx.commit().await.unwrap();
                        with.push(balance(&mut conn).await);
                    } else {
                        drop(tx);
                        // It is rolled back when the connection is used next.
                        sqlx::raw_sql("select").execute(&mut *pool.acquire().await.unwrap()).await.unwrap();
                        assert_eq!(shards(&mut conn, &LIMIT).await, rows, "{path:?}, cut at {}", cuts.waits);
                    }
                    if !cuts.go_on(done.is_some()) {
                        break;
                    }
                }
            }
            let whole = with[with.len() - 1];
            assert_ne!(whole, without, "{path:?}");
            assert!(with.iter().all(|left| *left == without || *left == whole), "{path:?}: {with:?}");
        }
    }
}
