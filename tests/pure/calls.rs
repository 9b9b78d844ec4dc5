//! Settlements, cancellations and lapses, against a world of the charges that were kept.

mod bounds;
mod definitions;
mod formats;
mod meters;
mod repeats;
mod settlements;
mod story;
mod wallets;

use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::Verb;
use tollgate::{Call, DAY, Limit, MINUTE, Receipt, Tokens};

use crate::world::World;

const ORG: Limit = Limit::fixed_window("org", 100, DAY).start(Duration::ZERO);
const USER: Limit = Limit::token_bucket("user", 10, MINUTE);
const WALLET: Limit = Limit::wallet("wallet").overdraft(5);

fn take(world: &mut World, call: impl Into<Call>, now: Timestamp) -> Receipt {
    world.taken(Verb::consume(call), now)
}

fn left(world: &World, limit: &Limit, now: Timestamp) -> Tokens {
    world.look(limit.global(), now).remaining
}
