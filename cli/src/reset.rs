//! `tollgate reset`: one key, or all keys of a limit.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::json;
use sqlx::PgPool;
use tollgate::{Gate, Key, Limit, LimitKind, LimitSpec, Overrides, Tokens, migrate};

use crate::confirm::{confirmed, expect_terminal};
use crate::database::{DatabaseArgs, begin_from, clock};
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, counted, printable};
use crate::overrides::{ban, ban_words};
use crate::storage;
use crate::target::TargetArgs;
use crate::verbs::{changed, in_transaction};

#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Reset all keys of the limit, while callers go on. The command asks first.
    #[arg(long, group = "who")]
    all: bool,

    /// Reset a meter, too. This erases what its key is billed for.
    #[arg(long, conflicts_with = "all")]
    force: bool,

    /// Do not ask.
    #[arg(long, requires = "all")]
    yes: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: ResetArgs) -> Result<Exit, CommandError> {
    if args.all {
        return all(&args).await;
    }
    let limit = args.target.limits.limit(&args.target.name, &args.database).await?;
    if limit.kind == LimitKind::Meter && !args.force {
        return Err(of_meter(&limit, "is a meter: a reset erases a bill", "say --force"));
    }
    // A meter is not reset, but its row is a wallet's.
    let row = LimitSpec::new(limit.name(), LimitKind::Wallet, Tokens::ZERO, Duration::ZERO);
    let request = args.target.of(&if limit.kind == LimitKind::Meter { row.try_into()? } else { limit.clone() })?;
    let balance = in_transaction(&args.database, async |limiter, tx| limiter.reset(tx, request).await).await?;
    changed(args.output, "reset", limit.kind, balance)
}

async fn all(args: &ResetArgs) -> Result<Exit, CommandError> {
    let limit = args.target.limits.limit(&args.target.name, &args.database).await?;
    if limit.kind == LimitKind::Meter {
        let remedy = "delete rows of bills that are paid";
        return Err(of_meter(&limit, "is a meter, which --all leaves alone: nothing was reset", remedy));
    }
    let pool = args.database.pool(CONNECTIONS).await?;
    let reset = if args.yes || is_meant(&pool, &limit).await? { fill_up(&pool, &limit).await? } else { 0 };
    let mut tx = begin_from(&pool).await?;
    let (overrides, now) = (Overrides::read(&mut tx).await?, clock(&mut tx).await?.into());
    let ban = ban(&overrides, limit.name(), &Key::GLOBAL, now);
    args.output.print(&json!({ "limit": limit.name(), "reset": reset }), || {
        let done = match reset {
            0 => "nothing was reset".to_owned(),
            _ => format!("reset {} of {:?}", counted(reset, "key"), limit.name()),
        };
        let refused = ban.map(|said| format!("every key stays refused: {}", ban_words(&said)));
        [done].into_iter().chain(refused).collect::<Vec<_>>().join("\n")
    })?;
    Ok(Exit::Done)
}

/// The refusal to reset a meter.
fn of_meter(limit: &Limit, what: &str, or: &str) -> CommandError {
    let name = printable(limit.name());
    CommandError::new(
        format!("{name:?} {what}"),
        format!("correct the bill with `tollgate credit {name} KEY --cost N`, or {or}"),
    )
}

/// A gate writes many rows by one statement, and holds no lock across a round trip.
async fn fill_up(pool: &PgPool, limit: &Limit) -> Result<u64, CommandError> {
    let parts = migrate::parts(&mut *begin_from(pool).await?).await?;
    let gate = Gate::builder(pool.clone()).unnamed_statements().parts(parts).build();
    let mut reset: u64 = 0;
    for part in migrate::part_numbers(parts) {
        let mut page = page(pool, limit, part, None).await?;
        while let Some(last) = page.last().cloned() {
            let one = |key: &Key| gate.reset(if key.is_global() { limit.global() } else { limit.key(key) });
            reset += try_join_all(page.iter().map(one)).await?.len() as u64;
            page = self::page(pool, limit, part, Some(&last)).await?;
        }
    }
    Ok(reset)
}

/// The keys of a part after one, in their order; the first keys where there is none before. Without `distinct` the
/// primary key has this order, and a page costs nothing.
async fn page(pool: &PgPool, limit: &Limit, part: i16, last: Option<&Key>) -> Result<Vec<Key>, CommandError> {
    let sql = "select key
                 from tollgate.balances
                where part = $1 and name = $2 and storage = $3 and key >= coalesce($4, '') and key is distinct from $4
                order by key
                limit $5";
    let mut keys: Vec<String> = sqlx::query_scalar(sql)
        .bind(part)
        .bind(limit.name())
        .bind(storage::name(limit.spec().storage))
        .bind(last.map(Key::as_str))
        .bind(PAGE)
        .persistent(false)
        .fetch_all(&mut *begin_from(pool).await?)
        .await?;
    keys.dedup();
    Ok(keys.into_iter().map(Key::try_from).collect::<Result<_, _>>()?)
}

/// Whether somebody at a terminal confirms it; the question says how many keys the limit has rows for.
async fn is_meant(pool: &PgPool, limit: &Limit) -> Result<bool, CommandError> {
    expect_terminal("nothing was reset")?;
    let keys = sqlx::query_scalar::<_, i64>(
        "select pg_catalog.count(distinct key) from tollgate.balances where name = $1 and storage = $2",
    );
    let keys = keys.bind(limit.name()).bind(storage::name(limit.spec().storage)).persistent(false);
    let keys = counted(keys.fetch_one(&mut *begin_from(pool).await?).await?, "key");
    if limit.spec().kind == LimitKind::Wallet {
        confirmed(&format!("Empty {keys} of wallet {:?}?", limit.name()))
    } else {
        confirmed(&format!("Fill up {keys} of limit {:?}, and forgive their debts?", limit.name()))
    }
}

/// As many keys as a lane of the gate takes in a few batches.
const PAGE: i64 = 1_000;
const CONNECTIONS: u32 = 4;
