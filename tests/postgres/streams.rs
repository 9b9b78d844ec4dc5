//! Streams whose settlement finds no answer.

use tokio::task::yield_now;
use tollgate::{Error, HOUR, Limit};

use crate::calls::{left, stored};
use crate::gate::observed::traced;
use crate::gate::stage::{EVER, one_connection, patient, soon, until_asked};
use crate::proxy::Proxy;
use crate::world::World;

const LIMIT: Limit = Limit::token_bucket("streamed", 100, EVER);

/// Each answer is lost in turn. What was only read is read again; after a settlement nobody asks again.
#[test]
fn a_stream_that_is_not_stored_is_settled_once_at_most_and_an_event_says_so() {
    let mut unknown = 0;
    let log = traced(async {
        let world = World::new().await;
        let proxy = Proxy::new(&world.url());
        let gate = patient(&one_connection(proxy.options()).await).build();
        for statement in 1.. {
            let stream = gate.stream([LIMIT.global().cost(40)]).await.unwrap().granted().unwrap();
            stream.add(10_u32);
            let asked = proxy.statements();
            proxy.cut_after(statement);
            let settled = soon(stream.settle()).await;
            proxy.hear();
            let asked = proxy.statements() - asked;
            let over = left(&world.pool, LIMIT.global()).await;
            match settled {
                Err(Error::OutcomeUnknown { .. }) => {
                    assert_eq!(asked, statement, "nobody asks again");
                    assert!([60, 90].contains(&over), "after {statement}: {over}");
                    unknown += 1;
                }
                settled => {
                    settled.unwrap();
                    assert_eq!(over, 90, "after {statement}");
                }
            }
            if asked < statement {
                break;
            }
            gate.reset(LIMIT.global()).await.unwrap();
        }
    });
    assert!(unknown > 0);
    assert_eq!(log.matches("could not settle a stream").count(), unknown);
}

/// The wire breaks at each statement in turn, when the server has answered it or before it comes there.
#[tokio::test]
async fn a_stored_stream_is_settled_once_whatever_is_lost_also_where_it_was_dropped() {
    let world = World::new().await;
    let proxy = Proxy::new(&world.url());
    let gate = patient(&one_connection(proxy.options()).await).build();
    let mut conn = world.connect().await;
    for is_dropped in [false, true] {
        for (statement, is_answered) in [(0, true), (1, true), (1, false), (2, true), (2, false)] {
            let stream = gate.stream([LIMIT.global().cost(40).lapses_after(HOUR)]).await.unwrap().granted().unwrap();
            stream.add(10_u32);
            let (asked, lost) = (proxy.statements(), proxy.lost_answers());
            match (statement, is_answered) {
                (0, _) => {}
                (_, true) => proxy.cut_after(statement),
                (_, false) => proxy.hold_after(statement - 1),
            }
            let settling =
                tokio::spawn(async move { if is_dropped { drop(stream) } else { stream.settle().await.unwrap() } });
            match (statement, is_answered) {
                (0, _) => {}
                (_, true) => {
                    soon(async {
                        while proxy.lost_answers() == lost {
                            yield_now().await;
                        }
                    })
                    .await;
                    // Whoever has settled asks again, as it does not know.
                    until_asked(&proxy, asked + statement).await;
                }
                (_, false) => {
                    proxy.until_held().await;
                    proxy.cut().await;
                    proxy.release();
                }
            }
            soon(settling).await.unwrap();
            soon(async { while stored(&mut conn).await > 0 {} }).await;
            if statement == 0 {
                assert_eq!(proxy.statements() - asked, 2, "each is lost in turn");
            }
            // What is under way goes before.
            gate.consume(LIMIT.key("fence")).await.unwrap().granted().unwrap();
            assert_eq!(left(&world.pool, LIMIT.global()).await, 90, "{statement}");
            gate.reset(LIMIT.global()).await.unwrap();
        }
    }
}
