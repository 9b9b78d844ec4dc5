//! `tollgate inspect`: shows the state of a limit for one key, or for the most exhausted keys.

mod calls;
mod holding;
mod standing;

use std::cmp::Ordering;
use std::time::Duration;

use serde_json::json;
use sqlx::{FromRow, PgConnection};
use tollgate::{Key, Limit, LimitKind, Overrides, Tokens};

use crate::database::{DatabaseArgs, clock, read_only};
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::{HEADING, OutputArgs, about, columns, printable, shown, styled, tell};
use crate::parts::Away;
use crate::row::Row;
use crate::storage;
use crate::target::key;
use calls::stored_calls;
use holding::Holding;

/// Show what remains for a key. Without KEY, list the keys of a limit, the most exhausted first.
///
/// With a limits file, the command shows the balance now, and when it grants again. Without one, it shows what is on
/// disk. There, tokens that have come back since the last write still count as used.
///
/// The list reads all rows of the limit, which takes two or three seconds for each million. An index on balances would
/// slow every decision, so there is none. A single key is found at once.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// The key, written as the list prints it.
    #[arg(value_name = "KEY", value_parser = key, conflicts_with = "global")]
    key: Option<Key>,

    /// Show the one row that all callers share, instead of a key.
    #[arg(long)]
    global: bool,

    /// Say when a call that costs this many tokens would be granted.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    /// List at most this many keys. For a single key, list at most this many of its leases, and of its calls that have
    /// an id.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,

    /// How long the server may take for one statement.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: InspectArgs) -> Result<(), CommandError> {
    let defined = args.limits.load()?.map(|limits| limits.get(&args.name).cloned());
    let limit = defined.as_ref().and_then(|defined| defined.as_ref().ok());
    let key = if args.global { Some(Key::GLOBAL) } else { args.key.clone() };
    let mut conn = args.database.connect().await?;
    let mut away = Away::of_tables(&mut conn, args.timeout).await?;
    let (mut now, mut rows, mut calls) = (None, Vec::new(), Vec::new());
    for part in away.parts() {
        let mut tx = read_only(&mut conn, args.timeout).await?;
        let found = read(&mut tx, &args, limit, key.as_ref(), part).await;
        if let Some(found) = away.answer(part, found)? {
            rows.extend(found);
            if let Some(key) = &key {
                calls.extend(stored_calls(&mut tx, &args.name, key, part, args.limit).await?);
            }
            now = Some(clock(&mut tx).await?);
        }
    }
    let rows = most_used(rows);
    let said = Overrides::read(&mut *read_only(&mut conn, args.timeout).await?).await?;
    // Nothing is known of a key that no part has shown.
    let (Some(now), false) = (now, key.is_some() && rows.is_empty() && !away.is_empty()) else { return away.check() };
    // The name may be a slip, or that of a limit of the past, whose rows are still there.
    if let Some(Err(unknown)) = &defined {
        if rows.is_empty() {
            return Err(unknown.clone().into());
        }
        tell(format_args!("{unknown}: this is what is on disk"));
    }
    let holding = |key, rows| Holding::of(&args.name, limit, key, rows, now, &said, args.cost);
    match key {
        Some(key) if rows.is_empty() && limit.is_none() => return Err(no_row(&args.name, &key)),
        Some(key) => {
            let holding = holding(key, &rows).with(calls);
            args.output.print(&holding, || holding.text(limit, args.limit as usize))?;
        }
        None => {
            let by_key = rows.chunk_by(|one, other| one.key == other.key).take(args.limit as usize);
            let holdings = by_key.map(|rows| Ok(holding(Key::try_from(rows[0].key.clone())?, rows)));
            list(&args, limit.is_some(), &holdings.collect::<Result<Vec<_>, CommandError>>()?)?;
        }
    }
    away.check()
}

/// A row, and an estimate of the used tokens of its key.
#[derive(FromRow)]
struct Listed {
    #[sqlx(flatten)]
    row: Row,
    used: Option<f64>,
}

/// The rows, those of the most used keys first, as each part orders them.
fn most_used(mut rows: Vec<Listed>) -> Vec<Row> {
    let used = |one: &Listed, other: &Listed| other.used.partial_cmp(&one.used).unwrap_or(Ordering::Equal);
    rows.sort_by(|one, other| used(one, other).then_with(|| one.row.key.cmp(&other.row.key)));
    rows.into_iter().map(|listed| listed.row).collect()
}

/// The rows of one key, or of so many keys as are listed, in one part.
async fn read(
    conn: &mut PgConnection,
    args: &InspectArgs,
    limit: Option<&Limit>,
    key: Option<&Key>,
    part: i16,
) -> Result<Vec<Listed>, sqlx::Error> {
    let spec = limit.map(Limit::spec);
    let spec = spec.as_ref();
    let share = |tokens: Tokens, shards: u16| about(tokens) / f64::from(shards);
    sqlx::query_as(include_str!("rows.sql"))
        .bind(&args.name)
        .bind(key.map(Key::as_str))
        .bind(spec.map(|spec| storage::name(spec.storage)))
        .bind(spec.map(|spec| share(spec.rate, spec.shards)))
        // A wallet has none.
        .bind(spec.map(|spec| spec.period.max(Duration::from_micros(1)).as_secs_f64()))
        .bind(spec.map(|spec| spec.kind != LimitKind::TokenBucket))
        .bind(if key.is_some() { 1 } else { i64::from(args.limit) })
        .bind(part)
        .persistent(false)
        .fetch_all(conn)
        .await
}

fn no_row(name: &str, key: &Key) -> CommandError {
    CommandError::new(
        format!("there is no row of limit {name:?} for {:?}, and no limits file to say what that means", shown(key)),
        format!("check both names with `tollgate inspect {}`, or pass --limits FILE", printable(name)),
    )
}

fn list(args: &InspectArgs, is_defined: bool, holdings: &[Holding<'_>]) -> Result<(), CommandError> {
    args.output.print(&json!({ "limit": args.name, "keys": holdings }), || {
        if holdings.is_empty() {
            return format!("no rows of {}: a key without a row is full", printable(&args.name));
        }
        let [amount, of] = if is_defined { ["REMAINING", "OF"] } else { ["USED", "ON DISK"] };
        let heads = ["KEY", amount, of, "FULL IN"];
        let heads = heads.map(str::to_owned).to_vec();
        let mut lines = columns(&std::iter::once(heads).chain(holdings.iter().map(Holding::cells)).collect::<Vec<_>>());
        lines[0] = styled(HEADING, &lines[0]);
        if holdings.len() == args.limit as usize {
            lines.push("there may be more keys (--limit)".to_owned());
        }
        lines.join("\n")
    })
}
