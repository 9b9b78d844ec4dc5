//! Connections of every kind, and the statements that they keep.

use sqlx::{Connection, Executor, PgConnection, PgTransaction, Row};
use tollgate::{BegunByHand, Call, Decision, Error, InTransaction, Limit, Limiter, SECOND};

use super::{LIMITER, answers, ten};
use crate::teller::{left, run};
use crate::world::{World, limiter, second};

/// Compiles, above all: what callers hold is a transaction, a connection of the pool, or a connection of their own.
#[tokio::test]
async fn every_kind_of_connection_will_do_also_in_a_spawned_task_and_in_a_loop() {
    async fn repository(tx: &mut PgTransaction<'_>, limit: &Limit) -> Result<Decision, Error> {
        left(LIMITER.consume(tx, limit.key(1)).await?);
        LIMITER.consume(tx, limit.key(1)).await
    }
    async fn on_any(tx: &mut impl InTransaction, limit: &Limit) -> Result<Decision, Error> {
        LIMITER.consume(tx, limit.key(2)).await
    }
    let world = World::new().await;
    for limit in ten() {
        let mut tx = world.begin().await;
        left(LIMITER.consume(&mut tx, limit.key(1)).await.unwrap());
        left(LIMITER.consume(&mut &mut tx, limit.key(1)).await.unwrap());
        left(repository(&mut tx, &limit).await.unwrap());
        let mut savepoint = tx.begin().await.unwrap();
        left(on_any(&mut savepoint, &limit).await.unwrap());
        savepoint.commit().await.unwrap();
        for user in [1, 2, 3] {
            left(LIMITER.consume(&mut tx, limit.key(user)).await.unwrap());
        }
        tx.commit().await.unwrap();

        let mut conn = world.pool.acquire().await.unwrap();
        conn.execute("begin").await.unwrap();
        left(LIMITER.consume(&mut BegunByHand(&mut conn), limit.key(1)).await.unwrap());
        let mut tx = BegunByHand(&mut conn);
        left(on_any(&mut tx, &limit).await.unwrap());
        left(on_any(&mut tx, &limit).await.unwrap());
        conn.execute("commit").await.unwrap();

        let mut own = PgConnection::connect(&world.url()).await.unwrap();
        let mut tx = own.begin().await.unwrap();
        left(LIMITER.consume(&mut tx, limit.key(1)).await.unwrap());
        tx.rollback().await.unwrap();

        let (pool, spawned) = (world.pool.clone(), limit.clone());
        let task = tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            let users = ["ada".to_owned(), "bob".to_owned()];
            let asked = users.iter().map(|user| spawned.key(user));
            let grant = LIMITER.consume(&mut tx, asked.collect::<Call>()).await.unwrap().granted().unwrap();
            let again = users.iter().filter(|user| user.starts_with('a')).map(|user| spawned.key(user).cost(2));
            let booked = LIMITER.reserve(&mut tx, again.collect::<Call>()).await.unwrap().granted().unwrap();
            LIMITER.settle(&mut tx, grant, 0).await.unwrap();
            LIMITER.cancel(&mut tx, booked).await.unwrap_err();
            LIMITER.check(&mut tx, spawned.key("ada")).await.unwrap().granted().unwrap();
            tx.commit().await.unwrap();
        });
        task.await.unwrap();
    }
}

#[tokio::test]
async fn named_statements_are_prepared_once_and_unnamed_ones_never() {
    /// The numbers of prepared statements: all, those that lock, and those that read or write without a lock.
    async fn prepared(conn: &mut PgConnection) -> (i64, i64, i64) {
        let sql = "select count(*), count(*) filter (where statement ~ 'for update'),
                          count(*) filter (where statement !~ 'for update') from pg_prepared_statements";
        let row = sqlx::raw_sql(sql).fetch_one(conn).await.unwrap();
        (row.get(0), row.get(1), row.get(2))
    }
    async fn story(limiter: &Limiter, conn: &mut PgConnection, limit: &Limit) {
        run(conn, "begin").await;
        for answer in answers(limiter, conn, limit, "k").await {
            answer.unwrap();
        }
        let _ = limiter.check(conn, limit.key("k")).await.unwrap();
        limiter.balance(conn, limit.key("k")).await.unwrap();
        run(conn, "rollback").await;
    }
    let world = World::new().await;
    let mut conn = world.connect().await;
    for limit in ten() {
        for limiter in [limiter().unnamed_statements(), limiter().unnamed_statements().lock_timeout(SECOND)] {
            story(&limiter.at(second(0.0)), &mut conn, &limit).await;
            assert_eq!(prepared(&mut conn).await, (0, 0, 0));
        }
    }
    for limit in ten() {
        let mut conn = world.connect().await;
        let limiter = limiter().at(second(0.0));
        story(&limiter, &mut conn, &limit).await;
        let (all, locking, others) = prepared(&mut conn).await;
        // One row is locked, or several are inserted or locked.
        assert_eq!(locking, 2, "of {all}");
        // One row is saved, several are read and saved, and stale ones are removed.
        assert_eq!(others, 4, "of {all}");
        story(&limiter.lock_timeout(SECOND), &mut conn, &limit).await;
        assert_eq!(prepared(&mut conn).await, (all, locking, others), "a second round prepares nothing new");
    }
}
