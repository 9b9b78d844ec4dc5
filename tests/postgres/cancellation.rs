//! Calls that are dropped on the way: nothing is taken by halves, and the connection is as good as new.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};
use tollgate::{Error, HOUR, Limit, SECOND};

use crate::orders::{Ending, Hand, drop_each};
use crate::world::{World, limiter, one_connection, pid};

const LIMIT: Limit = Limit::token_bucket("durable", 10, Limit::MAX_PERIOD);

#[tokio::test]
async fn a_call_dropped_anywhere_and_rolled_back_leaves_no_trace() {
    drop_each(Hand::Limiter, &endings(false)).await;
}

#[tokio::test]
async fn a_call_dropped_anywhere_and_committed_counts_whole_or_not_at_all() {
    drop_each(Hand::Limiter, &endings(true)).await;
}

/// From its first statement on it counts, and the gate goes on.
#[tokio::test]
async fn a_call_of_a_gate_dropped_anywhere_counts_whole_or_not_at_all() {
    drop_each(Hand::Gate, &endings(true)).await;
}

fn endings(commits: bool) -> [Ending; 2] {
    [None, Some(10 * SECOND)].map(|timeout| Ending { timeout, commits })
}

#[tokio::test]
async fn a_call_dropped_while_it_waits_for_a_lock_takes_nothing() {
    let (world, pool) = one_row().await;
    let before = world.left(&LIMIT, "there").await;
    for limiter in [limiter(), limiter().lock_timeout(HOUR)] {
        let mut holder = world.connect().await;
        let mut held = holder.begin().await.unwrap();
        sqlx::query("select from tollgate.durable for update").execute(&mut *held).await.unwrap();
        let mut tx = pool.begin().await.unwrap();
        let waiter = pid(&mut tx).await;
        tokio::select! {
            decision = limiter.consume(&mut tx, LIMIT.key("there")) => panic!("{decision:?} through a lock"),
            () = world.until_blocked(waiter) => {}
        }
        drop(tx);
        held.rollback().await.unwrap();
        assert_eq!(lock_timeout(&mut pool.acquire().await.unwrap()).await, "0");
        assert_eq!(world.left(&LIMIT, "there").await, before);
    }
}

/// The limiter's lock timeout is for its own wait: neither a refusal nor a wait that is cut short leaves it behind.
#[tokio::test]
async fn a_lock_timeout_leaves_the_transaction_usable_and_its_own_timeout_in_place() {
    let (world, pool) = one_row().await;
    let mut holder = world.connect().await;
    let mut held = holder.begin().await.unwrap();
    sqlx::query("select from tollgate.durable for update").execute(&mut *held).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("set local lock_timeout = '7s'").execute(&mut *tx).await.unwrap();
    let busy = limiter().lock_timeout(Duration::from_millis(1)).consume(&mut tx, LIMIT.key("there")).await;
    assert!(matches!(busy, Err(Error::Locked { .. })), "{busy:?}");
    assert_eq!(lock_timeout(&mut tx).await, "7s");
    limiter().consume(&mut tx, LIMIT.key("elsewhere")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    held.rollback().await.unwrap();
    assert_eq!(world.rows().await, 2);
    assert_eq!(lock_timeout(&mut pool.acquire().await.unwrap()).await, "0");
}

/// A world with a row, and a pool of one connection.
async fn one_row() -> (World, PgPool) {
    let world = World::new().await;
    let mut tx = world.begin().await;
    limiter().consume(&mut tx, LIMIT.key("there")).await.unwrap().granted().unwrap();
    tx.commit().await.unwrap();
    let pool = one_connection(world.url().parse().unwrap()).await;
    (world, pool)
}

async fn lock_timeout(conn: &mut PgConnection) -> String {
    sqlx::query_scalar("show lock_timeout").fetch_one(conn).await.unwrap()
}

/// Where a call is dropped next: at its first wait, then at its second, until it is done before.
#[derive(Default)]
pub(crate) struct Cuts {
    pub(crate) waits: usize,
    quick: u32,
}

impl Cuts {
    /// Whether to call once more, after a call that was done or was dropped.
    pub(crate) fn go_on(&mut self, is_done: bool) -> bool {
        if !is_done {
            self.waits += 1;
            return true;
        }
        // Beside a busy server an answer may be there before the call looks for it.
        self.quick += 1;
        assert!(self.waits >= 2 || self.quick < 1_000, "it waited {} times", self.waits);
        self.waits < 2
    }
}

/// A future that is dropped where it waits for the n-th time, counted from 0.
pub(crate) struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    waits: usize,
}

impl<F: Future> Cut<F> {
    pub(crate) fn after(waits: usize, future: F) -> Self {
        Self { future: Some(Box::pin(future)), waits }
    }
}

impl<F: Future> Future for Cut<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if let Poll::Ready(done) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if self.waits == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.waits -= 1;
        Poll::Pending
    }
}
