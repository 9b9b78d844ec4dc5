//! Tables with parts, as Citus distributes them: each statement names one part, and so one node. Here there is one
//! node. The tests show that the library sends no other statements, that its answers by these statements are right,
//! too, and that no process works on parts that the tables do not have.

mod batches;
mod lost_nodes;
mod rows;
mod settings;
mod several_parts;
mod statements;
mod suite;

use std::collections::BTreeSet;

use tollgate::{Limit, Limiter, Storage};

use crate::gate::stage::EVER;
use crate::world::{NUMBERS, PARTS, World, part_of};
pub(crate) use statements::statement_files;

const LIMITER: Limiter = Limiter::new().parts(PARTS);

fn sharded() -> Limit {
    sharded_as("sharded")
}

fn sharded_as(name: &'static str) -> Limit {
    Limit::token_bucket(name, 10, EVER).shards(3)
}

/// A key for each part, in the order of the parts.
fn apart() -> Vec<String> {
    let in_part = |part| (0..10_000).map(|n: u32| n.to_string()).find(|key| part_of(key) == part).unwrap();
    BTreeSet::from(NUMBERS).into_iter().map(in_part).collect()
}

/// Inserts the rows of a limit and key as full ones.
async fn fill(world: &World, limit: &Limit, key: &str) {
    let table = if limit.spec().storage == Storage::Durable { "durable" } else { "ephemeral" };
    let (part, name, shards) = (part_of(key), limit.name(), limit.spec().shards);
    let values =
        format!("select {part}, '{name}', '{key}', n, 10000000, now(), now() from generate_series(0, {shards} - 1) n");
    world.sql(&format!("insert into tollgate.{table} {values}")).await;
}
