//! Many requests at once.

use reqwest::Client;
use tokio::task::JoinSet;
use tollgate::Limit;
use tollgate_http::tower::{Rule, TollgateLayer};

use crate::served::{Served, http_1, http_2, left};
use crate::world::World;

/// Nothing comes back while the test runs.
const TOTAL: Limit = Limit::fixed_window("total", 3_000, Limit::MAX_PERIOD);
const PER_ADDRESS: Limit = Limit::fixed_window("per_address", 9_000, Limit::MAX_PERIOD).ephemeral();

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_requests_exactly_those_are_served_that_the_limit_allows() {
    let world = World::new().await;
    let gate = world.gate();
    let layer = TollgateLayer::new(gate.clone()).limit(PER_ADDRESS).limit(Rule::new(TOTAL).global());
    let served = Served::behind(layer).await;
    let mut tasks = JoinSet::new();
    for task in 0..CLIENTS {
        let (client, url) = (if task % 2 == 0 { http_1() } else { http_2() }, served.url("/"));
        tasks.spawn(async move { ask(&client, &url).await });
    }
    let (served, refused) =
        tasks.join_all().await.into_iter().fold((0, 0), |sum, (served, refused)| (sum.0 + served, sum.1 + refused));
    assert_eq!((served, refused), (3_000, 7_000));
    assert_eq!(gate.balance(TOTAL.global()).await.unwrap().remaining, tollgate::Tokens::ZERO);
    assert_eq!(
        left(&gate, &PER_ADDRESS, ("ip", "127.0.0.1")).await,
        6_000,
        "a refusal by the one takes nothing from the other"
    );
}

async fn ask(client: &Client, url: &str) -> (u32, u32) {
    let (mut served, mut refused) = (0, 0);
    for _ in 0..10_000 / CLIENTS {
        match client.get(url).send().await.unwrap().status().as_u16() {
            200 => served += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    (served, refused)
}

const CLIENTS: u32 = 40;
