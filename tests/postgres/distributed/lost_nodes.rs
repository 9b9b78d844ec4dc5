//! A node that Citus loses, before a commit and while it commits.

use tollgate::{Error, Limit, Tokens};

use super::LIMITER;
use crate::gate::stage::{EVER, patient};
use crate::world::{PARTS, World};

/// So Citus reports a node that it lost while that committed.
#[tokio::test]
async fn an_internal_error_of_a_commit_leaves_the_outcome_open() {
    let world = World::of_parts(PARTS).await;
    world
        .sql(
            "create function lose() returns trigger language plpgsql as
             $$ begin raise exception 'server closed the connection unexpectedly' using errcode = 'XX000'; end $$;
             create constraint trigger lose after insert or update on tollgate.durable
             deferrable initially deferred for each row execute function lose();",
        )
        .await;
    let gate = patient(&world.pool).parts(PARTS).build();
    let limit = Limit::token_bucket("ten", 10, EVER);
    let lost = gate.consume(limit.key("k")).await;
    assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    world.sql("drop trigger lose on tollgate.durable").await;
    assert_eq!(gate.consume(limit.key("k")).await.unwrap().granted().unwrap().remaining, Tokens::new(9));
}

/// So Citus reports a node that it lost before.
#[tokio::test]
async fn a_node_that_is_lost_before_the_commit_is_worth_another_try() {
    let world = World::of_parts(PARTS).await;
    let limit = Limit::token_bucket("ten", 10, EVER);
    let internal = [
        "failure on connection marked as essential: 10.0.0.2:5432",
        "connection to the remote node postgres@10.0.0.2:5432 failed",
        "server closed the connection unexpectedly",
        "SSL SYSCALL error: EOF detected",
        "postmaster was shut down, exiting",
        "terminating connection due to unexpected postmaster exit",
    ];
    let internal = internal.map(|message| ("XX000", message, true));
    let others = [
        ("58030", "failed to COPY to shard 102008 on 10.0.0.2:5432", true),
        ("58030", "could not write to file", false),
        ("XX000", "no such thing", false),
    ];
    for (code, message, is_lost) in internal.into_iter().chain(others) {
        world
            .sql(&format!(
                "create or replace function lose() returns trigger language plpgsql as
                 $$ begin raise exception '{message}' using errcode = '{code}'; end $$;
                 create or replace trigger lose before insert on tollgate.durable
                 for each row execute function lose()"
            ))
            .await;
        let mut tx = world.pool.begin().await.unwrap();
        let error = LIMITER.consume(&mut tx, limit.key("k")).await.unwrap_err();
        assert_eq!(error.is_retryable(), is_lost, "{error}");
    }
}
