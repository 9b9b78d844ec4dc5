//! What do the SQL functions cost the server, beside a counter that is written by hand?
//!
//! `cargo bench -p tollgate-benches --bench functions`
//!
//! pgbench makes the calls over one connection, each in a transaction of its own. All of them take turns on one private
//! server, which does not wait for its disk. The bench measures the processor time of the server for each call. Its
//! ratio to the counter's is the median of the ratios of the rounds. Absolute figures are those of this machine.

mod support;
#[path = "gate/table.rs"]
mod table;

use std::time::Duration;

use tollgate_embedded::Server;

use support::{Fault, cpu, median, migrated, pgbench};
use table::{Table, number};

fn main() -> Result<(), Fault> {
    let server = Server::builder().setting("shared_buffers", "256MB").setting("autovacuum", "off").start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let pool = runtime.block_on(migrated(server.url(), 1))?;
    for sql in [SETUP, "vacuum analyze tollgate.limits, tollgate.ephemeral, tollgate.durable, counters"] {
        runtime.block_on(sqlx::raw_sql(sql).execute(&pool))?;
    }
    let postmaster = runtime.block_on(async { cpu::postmaster(&mut *pool.acquire().await?).await })?;
    let calls = calls()?;
    let mut costs = vec![Vec::new(); calls.len()];
    for _ in 0..ROUNDS {
        for ((_, script), costs) in calls.iter().zip(&mut costs) {
            runtime.block_on(sqlx::raw_sql("vacuum tollgate.ephemeral, tollgate.durable, counters").execute(&pool))?;
            costs.push(cost(&server, postmaster, script)?);
        }
    }
    let lines = calls.iter().zip(&costs).map(|((name, _), of)| {
        let ratios = of.iter().zip(&costs[0]).map(|(cost, by_hand)| cost / by_hand).collect();
        vec![(*name).to_owned(), number(Some(median(of.clone()))), number(Some(median(ratios)))]
    });
    print!("{}", Table::new(&["a call", "server µs", "× by hand"], 1, lines));
    Ok(())
}

/// Microseconds of the server's processor time for each run of a script.
fn cost(server: &Server, postmaster: i32, script: &str) -> Result<f64, Fault> {
    let before = cpu::read(postmaster)?;
    let calls = pgbench::per_second(server, script, 1, TURN)? * TURN.as_secs_f64();
    Ok((cpu::read(postmaster)? - before).server * 1e6 / calls)
}

/// The calls that are measured. The first one is what the others are compared with.
fn calls() -> Result<Vec<(&'static str, String)>, Fault> {
    let with = |sql: &str| format!("\\set key random(0, 9999)\n\\set tenant random(0, 99)\n{sql};\n");
    let consume = |from: &str| with(&format!("select granted, remaining, retry_at from tollgate.{from}"));
    Ok(vec![
        ("a counter by hand: an upsert in a function",
        with("select check_rate_limit((:key)::text, 1000000, '10 hours')")),
        ("`consume`, ephemeral", consume("consume('bench', (:key)::text)")),
        ("`consume`, durable", consume("consume('durable', (:key)::text)")),
        ("`consume`, a fixed window", consume("consume('window', (:key)::text)")),
        ("`consume`, refused", consume("consume('refused', (:key)::text)")),
        (
            "`consume_all` of three",
            consume(
                "consume_all(array[tollgate.request('bench', (:key)::text), tollgate.request('tenant', (:tenant)::text),
                                   tollgate.request_global('total')])"
            ),
        ),
        ("the four statements of a `Limiter`", pgbench::joined("ephemeral", 10_000)?),
    ])
}

/// Every row is there before the first call, and only those of `refused` are ever short.
const SETUP: &str = "
    create unlogged table counters (key text, since timestamptz, count int not null, primary key (key, since))
      with (fillfactor = 90);
    create function check_rate_limit(of_key text, most int, span interval) returns bool language plpgsql as $$
    declare
        used int;
    begin
        insert into counters as c (key, since, count) values (of_key, date_bin(span, now(), 'epoch'), 1)
            on conflict (key, since) do update set count = c.count + 1 where c.count < most returning c.count into used;
        return used is not null;
    end $$;
    select tollgate.define('bench', 'token_bucket', 1000000, '1 hour', storage => 'ephemeral'),
           tollgate.define('durable', 'token_bucket', 1000000, '1 hour'),
           tollgate.define('window', 'fixed_window', 1000000, '1 hour', start => '0', storage => 'ephemeral'),
           tollgate.define('refused', 'token_bucket', 1, '1000 days', storage => 'ephemeral'),
           tollgate.define('tenant', 'token_bucket', 100000000, '1 hour', storage => 'ephemeral'),
           tollgate.define('total', 'token_bucket', 1000000000, '1 hour', storage => 'ephemeral');
    select check_rate_limit(n::text, 1000000, '10 hours'), tollgate.consume('bench', n::text),
           tollgate.consume('durable', n::text), tollgate.consume('window', n::text),
           tollgate.consume('refused', n::text), tollgate.consume('tenant', (n % 100)::text)
      from generate_series(0, 9999) n;
    select tollgate.consume_global('total')";

const ROUNDS: usize = 5;
const TURN: Duration = Duration::from_secs(2);
