//! `tollgate reset`: one key, or all keys of a limit.

use std::io::{IsTerminal, Write, stderr, stdin};

use futures_util::future::try_join_all;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tollgate::{Gate, Key, Limit, Storage};

use super::target::TargetArgs;
use super::{LIMITER, answer, in_transaction};
use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::{self, OutputArgs, answered, counted};

/// Arguments of `tollgate reset`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// All keys of the limit, one after the other, while callers go on deciding. Asks first.
    #[arg(long, group = "who")]
    all: bool,

    /// Do not ask.
    #[arg(long, requires = "all")]
    yes: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn reset(args: ResetArgs) -> Result<Exit, CommandError> {
    if args.all {
        return reset_all(&args).await;
    }
    let request = args.target.request()?;
    let balance = in_transaction(&args.database, async |conn| LIMITER.reset(conn, request).await).await?;
    answer::balance(args.output, "reset", &balance)
}

async fn reset_all(args: &ResetArgs) -> Result<Exit, CommandError> {
    let limit = args.target.limits.limit(&args.target.name)?;
    let pool = args.database.pool(CONNECTIONS).await?;
    let keys = count(&mut *pool.acquire().await?, &limit).await?;
    if !args.yes && !confirmed(&limit, keys)? {
        return say(args.output, &limit, 0);
    }
    let reset = fill_up(&pool, &limit, keys).await?;
    say(args.output, &limit, reset)
}

/// Through a gate, which writes many rows by one statement, unless the tables are distributed, and holds no lock across a round
/// trip.
async fn fill_up(pool: &PgPool, limit: &Limit, keys: i64) -> Result<u64, CommandError> {
    let bar = ProgressBar::with_draw_target(u64::try_from(keys).ok(), ProgressDrawTarget::stderr());
    let gate = Gate::builder(pool.clone()).unnamed_statements();
    let gate = if is_distributed(&mut *pool.acquire().await?).await? { gate.distributed() } else { gate }.build();
    let (mut before, mut reset): (Option<Key>, u64) = (None, 0);
    loop {
        let page = page(&mut *pool.acquire().await?, limit, before.as_ref()).await?;
        let Some(last) = page.last() else { break };
        before = Some(last.clone());
        let one = |key: &Key| gate.reset(if key.is_global() { limit.global() } else { limit.key(key) });
        reset += try_join_all(page.iter().map(one)).await?.len() as u64;
        bar.set_position(reset);
    }
    bar.finish_and_clear();
    Ok(reset)
}

async fn page(conn: &mut PgConnection, limit: &Limit, before: Option<&Key>) -> Result<Vec<Key>, CommandError> {
    let sql = match limit.spec().storage {
        Storage::Ephemeral => include_str!("sql/keys_of_buckets.sql"),
        Storage::Durable => include_str!("sql/keys_of_rate_limits.sql"),
    };
    let keys: Vec<String> = sqlx::query_scalar(sql)
        .bind(limit.name())
        .bind(before.map(Key::as_str))
        .bind(PAGE)
        .persistent(false)
        .fetch_all(conn)
        .await?;
    // What is stored as a key is one: the table's checks are those of `Key`.
    Ok(keys.into_iter().filter_map(|key| Key::try_from(key).ok()).collect())
}

async fn count(conn: &mut PgConnection, limit: &Limit) -> Result<i64, CommandError> {
    let count = sqlx::query_scalar(include_str!("sql/count.sql"));
    Ok(count.bind(limit.name()).bind(storage(limit)).persistent(false).fetch_one(conn).await?)
}

/// Whether Citus is in the database. For one that has not distributed the tables it takes longer, but works.
async fn is_distributed(conn: &mut PgConnection) -> Result<bool, CommandError> {
    let is = sqlx::query_scalar("select to_regclass('pg_dist_partition') is not null");
    Ok(is.persistent(false).fetch_one(conn).await?)
}

fn confirmed(limit: &Limit, keys: i64) -> Result<bool, CommandError> {
    if !stdin().is_terminal() {
        return Err(CommandError::Unasked);
    }
    write!(stderr(), "Fill up {} of limit {:?}, and forgive their debts? [y/N] ", counted(keys, "key"), limit.name())?;
    stderr().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn say(output: OutputArgs, limit: &Limit, keys: u64) -> Result<Exit, CommandError> {
    let printed = if output.json {
        output::json(&json!({ "limit": limit.name(), "reset": keys }))
    } else if keys == 0 {
        writeln!(output::out(), "nothing was reset").map_err(CommandError::from)
    } else {
        writeln!(output::out(), "reset {} of {:?}", counted(keys, "key"), limit.name()).map_err(CommandError::from)
    };
    answered(printed, Exit::Done)
}

fn storage(limit: &Limit) -> &'static str {
    match limit.spec().storage {
        Storage::Ephemeral => "ephemeral",
        Storage::Durable => "durable",
    }
}

/// As many keys as a lane of the gate takes in a few batches.
const PAGE: i64 = 1_000;
const CONNECTIONS: u32 = 4;
