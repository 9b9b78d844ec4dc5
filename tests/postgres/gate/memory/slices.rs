//! Tokens taken ahead: when a slice is charged, how long it is spent, and when its rest is given back.

use std::time::Duration;

use sqlx::Connection;
use tollgate::{HOUR, SECOND, Source, Tokens};

use super::prefetch::{HOT, Stage};
use crate::gate::stage::soon;
use crate::traced::traced;
use crate::world::limiter;

#[tokio::test]
async fn the_call_that_spends_the_last_of_a_slice_does_not_wait_for_the_next() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let (request, granted) = stage.filled(&HOT, "k").await;
    stage.proxy.hold_after(0);
    let spent = stage.spent(&request).await;
    soon(stage.proxy.until_held()).await;
    assert_eq!(stage.held(&request), 0);
    stage.proxy.release();
    // No other call asks.
    stage.until_held(&request).await;
    stage.adds_up(&HOT, granted + spent).await;
}

#[tokio::test]
async fn a_slice_is_spent_for_an_hour_at_most() {
    let stage = Stage::new(|gate| gate.prefetch(Duration::MAX)).await;
    let (request, _) = stage.filled(&HOT, "k").await;
    assert!(stage.held(&request) > 0);
}

#[tokio::test]
async fn what_lies_idle_is_given_back() {
    let stage = Stage::new(|gate| gate.prefetch(4 * SECOND)).await;
    let (_, granted) = stage.filled(&HOT, "k").await;
    soon(async { while stage.charged(&HOT, "k").await != granted {} }).await;
    let (request, more) = stage.filled(&HOT, "k").await;
    assert!(stage.held(&request) > 0);
    assert!(stage.charged(&HOT, "k").await > granted + more);
}

/// Somebody's transaction locks the row for longer than the gate waits for it at a time, so the gate tries again.
#[tokio::test]
async fn a_row_that_is_locked_gets_its_tokens_back_when_it_is_free() {
    let stage = Stage::new(|gate| gate.prefetch(HOUR)).await;
    let (_, granted) = stage.filled(&HOT, "k").await;
    let mut joined = stage.world.connect().await;
    let mut tx = joined.begin().await.unwrap();
    limiter().consume(&mut tx, HOT.key("k")).await.unwrap().granted().unwrap();
    let closing = tokio::spawn({
        let gate = stage.gate.clone();
        async move { gate.close().await }
    });
    // The gate waits for milliseconds at a time, and each look at the locks takes as long.
    for _ in 0..20 {
        stage.world.until_anyone_is_blocked().await;
    }
    assert!(!closing.is_finished());
    tx.rollback().await.unwrap();
    soon(closing).await.unwrap();
    assert_eq!(stage.charged(&HOT, "k").await, granted);
}

/// The charge was sent `max_age` ago when its answer comes.
#[tokio::test]
async fn a_slice_is_as_old_as_the_statement_that_brought_it() {
    let max_age = 2 * SECOND;
    let log = move || async move {
        let stage = Stage::new(|gate| gate.prefetch(max_age)).await;
        let request = HOT.key("k");
        stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
        // It is read, and then its write is held.
        stage.proxy.hold_after(1);
        let asking = tokio::spawn({
            let (gate, request) = (stage.gate.clone(), request.clone());
            async move { gate.consume(request).await }
        });
        soon(stage.proxy.until_held()).await;
        tokio::time::sleep(max_age).await;
        stage.proxy.release();
        soon(asking).await.unwrap().unwrap().granted().unwrap();
        assert_eq!(stage.gate.prefetched(&request), Tokens::ZERO);
        for _ in 0..2 {
            let grant = stage.gate.consume(request.clone()).await.unwrap().granted().unwrap();
            assert_eq!(grant.source, Source::Database);
        }
    };
    let log = tokio::task::spawn_blocking(move || traced(log())).await.unwrap();
    assert_eq!(log.matches("batches take too long to take tokens ahead").count(), 1, "{log}");
}
