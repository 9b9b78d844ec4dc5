//! The same calls, simulated and made on a real database, are answered the same, each of them.

use std::time::Duration;

use sqlx::Connection;
use tollgate::plan::Answer;
use tollgate::simulate::{Arrival, Rule, Run, Simulation, Traffic, arrivals};
use tollgate::{Decision, Limit, Limiter, Request, SECOND, Tokens};

use crate::world::World;

#[tokio::test]
async fn one_limit_of_each_kind_is_answered_as_by_the_database() {
    for limit in [
        Limit::token_bucket("drips", 3, SECOND).capacity(5),
        Limit::token_bucket("traffic", 7, 2 * SECOND).ephemeral(),
        Limit::fixed_window("spread", 3, SECOND),
        Limit::fixed_window("aligned", 4, 2 * SECOND).start(Duration::from_millis(300)).capacity(9),
        Limit::stepped_bucket("steps", 2, SECOND).capacity(6),
    ] {
        agree(Simulation::new([Rule::each(limit)]), false).await;
    }
}

#[tokio::test]
async fn several_limits_are_answered_as_by_the_database() {
    let each = Rule::each(Limit::token_bucket("each", 2, SECOND));
    let windows = Rule::each(Limit::fixed_window("windows", 5, 3 * SECOND));
    let total = Rule::global(Limit::token_bucket("total", 5, SECOND).capacity(8).ephemeral());
    agree(Simulation::new([total, each, windows]), false).await;
}

#[tokio::test]
async fn reservations_are_answered_as_by_the_database() {
    let queue = Rule::each(Limit::token_bucket("queue", 3, SECOND).capacity(2).max_reserved(6));
    let total = Rule::global(Limit::fixed_window("total", 6, SECOND).unbounded_reservations());
    agree(Simulation::new([queue, total]).reserving(), true).await;
}

/// Makes random calls of three clients, of whom one is greedy, on both.
async fn agree(simulation: Simulation, reserving: bool) {
    let world = World::new().await;
    let mut conn = world.connect().await;
    let mut run = simulation.start();
    let traffic = [
        Traffic::poisson(3, SECOND).lasting(12 * SECOND).clients(2).key("modest"),
        Traffic::poisson(4, SECOND).lasting(12 * SECOND).key("greedy").cost(Tokens::from_micros(1_300_000)),
        Traffic::burst(3, 4 * SECOND).lasting(12 * SECOND).key("modest-1"),
    ];
    let (mut granted, mut denied) = (0, 0);
    for call in arrivals(&traffic, 7).unwrap() {
        let mut tx = conn.begin().await.unwrap();
        let limiter = Limiter::new().at(call.at.into());
        let requests = simulation.rules().iter().map(|rule| request(rule, &call));
        let is_granted = if reserving {
            same_reservation(&mut run, &call, limiter.reserve_all(&mut tx, requests).await.unwrap())
        } else {
            same_grant(&mut run, &call, limiter.consume_all(&mut tx, requests).await.unwrap())
        };
        tx.commit().await.unwrap();
        *if is_granted { &mut granted } else { &mut denied } += 1;
    }
    assert!(granted > 10 && denied > 10, "{granted} granted, {denied} denied: both must be told apart");
    let outcome = run.finish().unwrap();
    assert_eq!((outcome.granted, outcome.refused), (granted, denied));
}

fn same_grant(run: &mut Run, call: &Arrival, decided: Decision) -> bool {
    match (run.call(call).unwrap(), decided) {
        (Answer::Granted { decided_at, remaining, charges, .. }, Decision::Granted(grant)) => {
            assert_eq!((grant.remaining, grant.decided_at), (remaining, decided_at.into()), "{call:?}");
            assert_eq!(grant.charges, charges.into_iter().map(|(charge, _)| charge).collect::<Vec<_>>(), "{call:?}");
            true
        }
        (Answer::Denied(simulated), Decision::Denied(denied)) => {
            assert_eq!(denied, simulated, "{call:?}");
            false
        }
        (simulated, decided) => panic!("{call:?}: {simulated:?} is not {decided:?}"),
    }
}

fn same_reservation(run: &mut Run, call: &Arrival, decided: Decision<tollgate::Reservation>) -> bool {
    match (run.call(call).unwrap(), decided) {
        (Answer::Granted { decided_at, ready_at, charges, .. }, Decision::Granted(booked)) => {
            assert_eq!((booked.ready_at, booked.decided_at), (ready_at.into(), decided_at.into()), "{call:?}");
            assert_eq!(booked.charges, charges.into_iter().map(|(charge, _)| charge).collect::<Vec<_>>(), "{call:?}");
            true
        }
        (Answer::Denied(simulated), Decision::Denied(denied)) => {
            assert_eq!(denied, simulated, "{call:?}");
            false
        }
        (simulated, decided) => panic!("{call:?}: {simulated:?} is not {decided:?}"),
    }
}

fn request(rule: &Rule, call: &Arrival) -> Request {
    let request = if rule.is_global() { rule.limit().global() } else { rule.limit().key(call.key.clone()) };
    request.cost(call.cost)
}
