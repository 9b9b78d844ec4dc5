//! A table of jobs, and workers that take them in batches: ten calls a second for each tenant, twenty-five in total. A
//! worker claims due jobs and reserves for each in one transaction. It does the jobs that may start now in that
//! transaction. A job that has to wait gets its reserved instant as its `run_at`, and makes no other call.
//!
//! `cargo run --example job_worker`
//!
//! The same works on top of a queue that is a table, such as graphile-worker's. Claim its rows in the same transaction.
//! Or reserve where a job is added, and give the queue the instant as the job's `run_at`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tollgate::{Decision, Limit, Limiter, SECOND, migrate};
use tollgate_embedded::Server;

/// A reservation is a debt: jobs that wait queue up in it.
const PER_TENANT: Limit = Limit::token_bucket("jobs_per_tenant", 10, SECOND).unbounded_reservations();
const TOTAL: Limit = Limit::token_bucket("jobs", 25, SECOND).unbounded_reservations();

const JOBS: i64 = 120;
const WORKERS: usize = 4;

type Fault = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let server = Server::start()?;
    let pool = PgPool::connect(server.url()).await?;
    migrate::run(&mut *pool.acquire().await?).await?;
    // One tenant has half of the jobs.
    let schema =
        "create table jobs (id bigint primary key, tenant bigint not null, run_at timestamptz not null default now(),
                                     booked bool not null default false, done_at timestamptz);
                  insert into jobs (id, tenant) select id, case when id % 2 = 0 then 0 else id % 8 end
                    from generate_series(1, 120) id";
    sqlx::raw_sql(schema).execute(&pool).await?;

    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(pool.clone()));
    }
    let (mut done, mut booked) = (0, 0);
    while let Some(worker) = workers.join_next().await {
        let (by_one, later) = worker??;
        (done, booked) = (done + by_one, booked + later);
    }
    println!("{done} jobs done, of which {booked} had to wait");

    // The books: each job was charged once, and nowhere did more start in a second than the limits allow.
    let (most, charged): (i64, i64) = sqlx::query_as(
        "select (select max(count) from (select count(*) over (order by run_at range between '1 second' preceding
                                                               and current row) from jobs) started),
                (select count(*) from jobs where done_at is not null)",
    )
    .fetch_one(&pool)
    .await?;
    println!("at most {most} became due within a second");
    assert_eq!((done, charged), (JOBS, JOBS));
    assert!(most <= 50, "a full bucket, and what comes back in a second");
    Ok(())
}

/// Works until no job remains. Returns how many jobs were done, and how many of them had been put off.
async fn work(pool: PgPool) -> Result<(i64, i64), Fault> {
    let (mut done, mut booked) = (0, 0);
    loop {
        let (by_now, later) = take_batch(&pool).await?;
        (done, booked) = (done + by_now, booked + later);
        if by_now + later > 0 {
            continue;
        }
        // Until the next one is due: the database says how long.
        let sql = "select extract(epoch from min(run_at) - clock_timestamp())::float8 from jobs where done_at is null";
        let Some(seconds): Option<f64> = sqlx::query_scalar(sql).fetch_one(&pool).await? else {
            return Ok((done, booked));
        };
        tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.001, 1.0))).await;
    }
}

/// Claims due jobs, and does those that may start; the others are booked for later.
async fn take_batch(pool: &PgPool) -> Result<(i64, i64), Fault> {
    let mut tx = pool.begin().await?;
    let claim = "select id, tenant, booked from jobs where done_at is null and run_at <= clock_timestamp()
                  order by run_at, id limit 20 for update skip locked";
    let jobs: Vec<(i64, i64, bool)> = sqlx::query_as(claim).fetch_all(&mut *tx).await?;
    // A booked job has paid.
    let (due, new): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|(.., booked)| *booked);
    let calls: Vec<_> = new.iter().map(|(_, tenant, _)| [PER_TENANT.key(*tenant), TOTAL.global()]).collect();
    let decisions = Limiter::new().reserve_each(&mut tx, calls).await?;

    let mut now: Vec<i64> = due.into_iter().map(|(id, ..)| id).collect();
    let mut later: Vec<(i64, DateTime<Utc>)> = Vec::new();
    for ((id, ..), decision) in new.into_iter().zip(decisions) {
        match decision? {
            Decision::Granted(reservation) if reservation.is_ready() => now.push(id),
            Decision::Granted(reservation) => later.push((id, reservation.ready_at)),
            // The reservations have no bound.
            Decision::Denied(denied) => return Err(denied.into()),
        }
    }
    // The work itself would stand here: it commits with what it was charged.
    sqlx::query("update jobs set done_at = clock_timestamp() where id = any($1)").bind(&now).execute(&mut *tx).await?;
    let (ids, instants): (Vec<_>, Vec<_>) = later.into_iter().unzip();
    let book = "update jobs set run_at = w.run_at, booked = true
                  from unnest($1::int8[], $2::timestamptz[]) w (id, run_at) where jobs.id = w.id";
    sqlx::query(book).bind(&ids).bind(&instants).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok((i64::try_from(now.len())?, i64::try_from(ids.len())?))
}
