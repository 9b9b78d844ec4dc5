//! Clients get the numbers that counted.

use std::convert::Infallible;
use std::future::ready;

use chrono::{DateTime, Utc};
use http::{HeaderMap, Request, Response, request};
use tollgate::{DAY, Gate, GateBuilder, HOUR, Limit, NewOverride, OnFailure, Overrides, SECOND};
use tollgate_http::tower::{Rule, TollgateLayer};
use tollgate_http::{Fields, Format};
use tower::{Layer, ServiceExt, service_fn};

use crate::stage::{nowhere, patient};
use crate::world::{ON_CALL, OWNER, World};

const API: Limit = Limit::token_bucket("api", 10, SECOND);
const DAILY: Limit = Limit::token_bucket("daily", 1, DAY);
const FORMATS: [Format; 4] = [Format::Draft11, Format::Draft7, Format::Draft6, Format::XRateLimit];
/// The instant of all calls.
const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// The fields of a response to ada behind a layer.
async fn respond(gate: &Gate, format: Format, limits: &[Limit]) -> HeaderMap {
    let rule = |limit: &Limit| Rule::new(limit.clone()).key(|_: &request::Parts| Some("ada"));
    let layer = TollgateLayer::new(gate.clone()).fields(Fields::new(format));
    let layer = limits.iter().map(rule).fold(layer, TollgateLayer::limit);
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    layer.layer(inner).oneshot(Request::new(())).await.unwrap().headers().clone()
}

fn read<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

/// The policies of the three drafts, and the limit of the oldest fields.
async fn told(gate: GateBuilder, limits: &[Limit]) -> [String; 4] {
    let gate = gate.clock(|| NOW).build();
    let mut told = [const { String::new() }; 4];
    for (told, format) in told.iter_mut().zip(FORMATS) {
        let name = if format == Format::XRateLimit { "x-ratelimit-limit" } else { "ratelimit-policy" };
        read(&respond(&gate, format, limits).await, name).clone_into(told);
    }
    told
}

/// A slow-down to a twentieth, as it begins.
const SLOWED: &str = "insert into tollgate.overrides
                          (name, key, label, effect, rate, starts_at, ends_at, reason, set_by, set_at)
                      values ('api', 'ada', 'slowdown', 'slowed', 50000, 'epoch', 'tomorrow', 'x', 'x', 'epoch')";

/// An override of each effect, and the numbers that then count.
async fn worlds() -> Vec<(&'static str, World, Overrides, [&'static str; 4])> {
    let thousand = NewOverride::numbers(&Limit::token_bucket("api", 1_000, SECOND));
    let stories = [
        ("none", None, [r#""api";q=10;w=1"#, "10;w=1", "10;w=1", "10"]),
        ("numbers", Some(thousand), [r#""api";q=1000;w=1"#, "1000;w=1", "1000;w=1", "1000"]),
        ("slowed", None, [r#""api";q=10;w=20"#, "10;w=20", "10;w=20", "10"]),
        ("unlimited", Some(NewOverride::unlimited(&API)), [""; 4]),
    ];
    let mut worlds = Vec::new();
    for (name, set, expected) in stories {
        let world = World::new().await;
        if let Some(new) = set {
            new.key("ada").from(NOW).reason("x").set(&mut world.connect_as(ON_CALL).await).await.unwrap();
        }
        if name == "slowed" {
            sqlx::query(SLOWED).execute(&mut world.connect_as(OWNER).await).await.unwrap();
        }
        let overrides = Overrides::read(&mut world.connect().await).await.unwrap();
        worlds.push((name, world, overrides, expected));
    }
    worlds
}

#[tokio::test]
async fn a_policy_has_the_numbers_of_the_overrides_that_counted() {
    for (name, world, overrides, expected) in worlds().await {
        let gate = || patient(&world.pool).overrides(&overrides);
        assert_eq!(told(gate(), &[API]).await, expected, "{name}");
        assert_eq!(told(gate().prefetch(HOUR), &[API]).await, expected, "{name}");
    }
}

#[tokio::test]
async fn without_the_database_a_policy_has_the_numbers_that_would_count() {
    for (name, _, overrides, mut expected) in worlds().await {
        // Nobody knows what remains, and the oldest fields have nothing else.
        expected[3] = "";
        for policy in [OnFailure::Closed, OnFailure::Open] {
            let gate = patient(&nowhere()).overrides(&overrides).on_failure(policy);
            assert_eq!(told(gate, &[API]).await, expected, "{name} {policy:?}");
        }
    }
}

#[tokio::test]
async fn a_refusal_from_memory_has_the_numbers_of_limits_that_did_not_refuse() {
    for (name, world, overrides, expected) in worlds().await {
        let gate = patient(&world.pool).overrides(&overrides).remember_refusals(HOUR).clock(|| NOW).build();
        gate.consume(DAILY.key("ada")).await.unwrap().granted().unwrap();
        let policies = [expected[0], r#""daily";q=1;w=86400"#].into_iter().filter(|policy| !policy.is_empty());
        let policies = policies.collect::<Vec<_>>().join(", ");
        // The database refuses, and then memory.
        for _ in 0..2 {
            let refused = respond(&gate, Format::Draft11, &[API, DAILY]).await;
            assert_eq!(read(&refused, "ratelimit-policy"), policies, "{name}");
            assert_eq!(read(&refused, "ratelimit"), r#""daily";r=0;t=86400"#, "{name}");
        }
    }
}

#[tokio::test]
async fn a_denied_key_is_told_the_numbers_that_count_after_it() {
    let world = World::new().await;
    let mut conn = world.connect_as(ON_CALL).await;
    let contract = NewOverride::numbers(&Limit::token_bucket("api", 1_000, SECOND)).label("contract");
    for new in [contract, NewOverride::deny(&API)] {
        new.key("ada").from(NOW).reason("x").set(&mut conn).await.unwrap();
    }
    let overrides = Overrides::read(&mut conn).await.unwrap();
    let expected = [r#""api";q=1000;w=1"#, "1000;w=1", "1000;w=1", "1000"];
    assert_eq!(told(patient(&world.pool).overrides(&overrides), &[API]).await, expected);
}
