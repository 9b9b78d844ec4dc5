//! Every order in which the messages of several sessions can reach the server comes to what some serial order comes to.
//!
//! The sessions are the real library on real connections. A scheduler holds each message that acts, and lets one go at
//! a time. The judge asks the plan, at the instants at which the database decided: the answers and the rows are those
//! of the sessions one after another, in one of their orders. So nothing deadlocks, no error comes that the plan does
//! not know, nothing that was inserted in vain stays behind, and an id counts once. A session that began when another
//! had ended comes behind it.
//!
//! Each schedule switches once at most from a session that could go on to another. `TOLLGATE_TEST_SWITCHES` sets
//! another number, or `all` for every order. `TOLLGATE_TEST_SCENES=3` plays every third scene of two sessions, as
//! `.ci/run` does. `TOLLGATE_TEST_ORDERS` sets how many orders of each three sessions are drawn. A failure prints its
//! schedule, which `TOLLGATE_ORDER` plays alone: `TOLLGATE_ORDER='once | reset | Scarce | 0110'`.

mod cast;
mod line;
mod outcome;
mod rows;
mod scene;
mod schedule;
mod theatre;
mod verb;

use cast::{Cast, Role};
use fastrand::Rng;
pub(crate) use theatre::Hand;
use theatre::{Orders, Theatre};
pub(crate) use verb::Ending;

/// Every order of each pair of a cast, of two limiters.
async fn play_pairs(what: &str, cast: &Cast) {
    let mut theatre = Theatre::open([Hand::Limiter, Hand::Limiter]).await;
    theatre.play_pairs(cast).await;
    theatre.close(what);
}

#[tokio::test]
async fn pairs_on_one_row() {
    play_pairs("pairs on one row", &cast::OF_ONE_ROW).await;
}

#[tokio::test]
async fn pairs_on_two_rows() {
    play_pairs("pairs on two rows", &cast::OF_TWO_ROWS).await;
}

#[tokio::test]
async fn pairs_on_leases() {
    play_pairs("pairs on leases", &cast::OF_LEASES).await;
}

#[tokio::test]
async fn pairs_on_sliding_windows() {
    play_pairs("pairs on sliding windows", &cast::OF_SLIDING_WINDOWS).await;
}

#[tokio::test]
async fn pairs_on_shards() {
    play_pairs("pairs on shards", &cast::OF_SHARDS).await;
}

#[tokio::test]
async fn pairs_on_full_rows_that_are_swept() {
    play_pairs("pairs on full rows that are swept", &cast::OF_FULL_ROWS).await;
}

/// A gate's batch, beside whoever holds its rows for as long as a transaction takes.
#[tokio::test]
async fn gates_beside_limiters() {
    let mut theatre = Theatre::open([Hand::Gate, Hand::Limiter]).await;
    for cast in cast::ALL {
        for first in cast.roles {
            theatre.play_beside(cast, first, cast.roles).await;
        }
    }
    theatre.close("gates beside limiters");
}

#[tokio::test]
async fn gates_beside_gates() {
    let mut theatre = Theatre::open([Hand::Gate, Hand::Gate]).await;
    for cast in cast::ALL {
        theatre.play_pairs(cast).await;
    }
    theatre.close("gates beside gates");
}

#[tokio::test]
async fn functions_beside_limiters() {
    let mut theatre = Theatre::open([Hand::Sql, Hand::Limiter]).await;
    for first in cast::IN_SQL_ROLES {
        theatre.play_beside(&cast::OF_ONE_ROW, first, cast::OF_ONE_ROW.roles).await;
        theatre.play_beside(&cast::OF_TWO_ROWS, first, cast::OF_TWO_ROWS.roles).await;
    }
    theatre.close("functions beside limiters");
}

/// Functions go by an override from the moment on that it is committed.
#[tokio::test]
async fn functions_beside_functions_and_operators() {
    let mut theatre = Theatre::open([Hand::Sql, Hand::Sql]).await;
    for (place, first) in cast::IN_SQL_ROLES.iter().enumerate() {
        theatre.play_beside(&cast::OF_TWO_ROWS, first, &cast::IN_SQL_ROLES[place..]).await;
        theatre.play_beside(&cast::OF_TWO_ROWS, first, cast::OF_OPERATORS).await;
    }
    theatre.close("functions beside functions and operators");
}

#[tokio::test]
async fn functions_beside_gates() {
    let mut theatre = Theatre::open([Hand::Sql, Hand::Gate]).await;
    for first in cast::IN_SQL_ROLES {
        theatre.play_beside(&cast::OF_TWO_ROWS, first, cast::OF_TWO_ROWS.roles).await;
    }
    theatre.close("functions beside gates");
}

/// Some orders of each three that take from two rows: all would be thousands of each.
#[tokio::test]
async fn threes_on_two_rows() {
    let mut theatre = Theatre::open([Hand::Limiter, Hand::Limiter, Hand::Limiter]).await;
    let orders = std::env::var("TOLLGATE_TEST_ORDERS").map_or(10, |orders| orders.parse().unwrap());
    let mut dice = Rng::new();
    let roles: Vec<Role> = cast::OF_TWO_ROWS.roles.iter().take(7).copied().collect();
    for first in 0..roles.len() {
        for second in first..roles.len() {
            for third in second..roles.len() {
                let three = [roles[first], roles[second], roles[third]];
                theatre.play(&cast::OF_TWO_ROWS, &three, cast::Start::Scarce, Orders::Drawn(orders, &mut dice)).await;
            }
        }
    }
    theatre.close("threes on two rows");
}

/// Plays drawn orders of two drawn roles while `goes_on` says so, and counts them.
pub(crate) async fn play_any(hands: [Hand; 2], mut dice: Rng, goes_on: impl Fn() -> bool) -> u64 {
    let mut runs = 0;
    while goes_on() {
        // A new one now and then: its sweepers go through the rows of all scenes.
        let mut theatre = Theatre::open(hands).await;
        for _ in 0..500 {
            if !goes_on() {
                break;
            }
            theatre.play_any(&mut dice).await;
            runs += 1;
        }
    }
    runs
}

/// Each verb is whole or nothing, whatever strikes between two of its messages; repeated by its id it happens once.
async fn cut(hand: Hand) {
    let mut theatre = Theatre::open([hand]).await;
    for cast in cast::ALL {
        theatre.cut_each(cast).await;
    }
    theatre.close(&format!("cuts of a {hand:?}"));
}

/// Each verb is whole or nothing where its future is dropped, before any of its messages, and the connection lives.
pub(crate) async fn drop_each(hand: Hand, endings: &[Ending]) {
    let mut theatre = Theatre::open([hand]).await;
    for ending in endings {
        for cast in cast::ALL.into_iter().chain([&cast::TO_DROP]) {
            theatre.drop_each(cast, *ending).await;
        }
    }
    theatre.close(&format!("dropped calls of a {hand:?}, {endings:?}"));
}

#[tokio::test]
async fn cuts_of_limiters() {
    cut(Hand::Limiter).await;
}

#[tokio::test]
async fn cuts_of_gates() {
    cut(Hand::Gate).await;
}

/// A server crashes at any message of a verb. In the logged tables the verb is then whole or nothing.
#[tokio::test]
async fn crashes_under_limiters() {
    theatre::crash_at_each(Hand::Limiter).await;
}

#[tokio::test]
async fn crashes_under_gates() {
    theatre::crash_at_each(Hand::Gate).await;
}
