//! `tollgate inspect`: shows the state of a limit for one key, or for the most exhausted keys.

mod calls;
mod holding;
mod places;
mod standing;

use std::cmp::Ordering;
use std::time::Duration;

use serde_json::json;
use sqlx::{FromRow, PgConnection};
use tollgate::algebra::Timestamp;
use tollgate::{Key, Limit, LimitKind, Limits, Overrides, Tokens};

use crate::database::{DatabaseArgs, clock, read_only};
use crate::error::CommandError;
use crate::limits_file::{LimitsArgs, period};
use crate::output::{HEADING, OutputArgs, about, columns, printable, shown, styled, tell};
use crate::parts::Away;
use crate::row::Row;
use crate::storage;
use crate::target::{joined, key};
use calls::{StoredCall, stored_calls};
use holding::Holding;
pub(crate) use places::{Reach, places};

/// Show what remains for a key. Without KEY, list the keys of a limit, the most exhausted first. If there is no such
/// limit, find the key NAME over all limits, and longer keys that begin with it: all limits of a customer.
///
/// With a definition, the command shows the balance now, and when it grants again. Without one, it shows what is on
/// disk. There, tokens that have come back since the last write still count as used.
///
/// The list reads all rows of the limit, which takes two or three seconds for each million. An index on balances would
/// slow every decision, so there is none. A single key is found at once.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The limit's name, or else a key to look for over all limits.
    #[arg(value_name = "NAME")]
    name: String,

    /// The key, written as the list prints it. Of a key that has several parts, each may be a word.
    #[arg(value_name = "KEY", value_parser = key, conflicts_with = "global")]
    key: Vec<Key>,

    /// Take NAME as a key, and find it as any part of longer keys, too. This reads all rows.
    #[arg(long, conflicts_with_all = ["key", "global"])]
    anywhere: bool,

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
    let mut conn = args.database.connect().await?;
    let limits = args.limits.known(&mut conn).await?;
    let defined = limits.as_ref().map(|limits| limits.get(&args.name).cloned());
    let limit = defined.as_ref().and_then(|defined| defined.as_ref().ok());
    let key = if args.global { Some(Key::GLOBAL) } else { joined(&args.key)? };
    if args.anywhere {
        let is_known = customer(&args, &mut conn, limits.as_ref()).await?;
        return if is_known { Ok(()) } else { Err(nobody(&args.name)) };
    }
    let look = Look::take(&mut conn, &args, &args.name, limit, key.as_ref()).await?;
    // Nothing is known of a key that no part has shown.
    if look.at.is_none() || key.is_some() && look.rows.is_empty() && !look.away.is_empty() {
        return look.away.check();
    }
    if limit.is_none() && key.is_none() && look.rows.is_empty() && customer(&args, &mut conn, limits.as_ref()).await? {
        return Ok(());
    }
    // The name may be a slip, or that of a limit of the past, whose rows are still there.
    if let Some(Err(unknown)) = &defined {
        if look.rows.is_empty() {
            return Err(unknown.clone().into());
        }
        tell(format_args!("{unknown}: this is what is on disk"));
    }
    let said = Overrides::read(&mut *read_only(&mut conn, args.timeout).await?).await?;
    match key {
        Some(key) if look.rows.is_empty() && limit.is_none() => return Err(no_row(&args.name, &key)),
        Some(key) => {
            let holding = look.holding(&args, &args.name, limit, key, &said);
            args.output.print(&holding, || holding.text(limit, args.limit as usize))?;
        }
        None => {
            let now = look.at.unwrap_or(Timestamp::MIN);
            let by_key = look.rows.chunk_by(|one, other| one.key == other.key).take(args.limit as usize);
            let holdings = by_key.map(|rows| {
                let key = Key::try_from(rows[0].key.clone())?;
                Ok(Holding::of(&args.name, limit, key, rows, now, &said, args.cost))
            });
            list(&args, limit.map(|limit| limit.kind), &holdings.collect::<Result<Vec<_>, CommandError>>()?)?;
        }
    }
    look.away.check()
}

/// Shows all limits of a customer. Returns whether there is one.
async fn customer(args: &InspectArgs, conn: &mut PgConnection, limits: Option<&Limits>) -> Result<bool, CommandError> {
    let customer = key(&args.name).map_err(CommandError::bare)?;
    let reach = if args.anywhere { Reach::Anywhere } else { Reach::Begins };
    let mut looks = Vec::new();
    for (name, key) in places(conn, (&customer, reach), (args.limit, args.timeout)).await? {
        let limit = limits.and_then(|limits| limits.get(&name).ok());
        let look = Look::take(conn, args, &name, limit, Some(&key)).await?;
        looks.push((name, key, limit, look));
    }
    let said = Overrides::read(&mut *read_only(conn, args.timeout).await?).await?;
    let holdings = looks.iter().map(|(name, key, limit, look)| look.holding(args, name, *limit, key.clone(), &said));
    let holdings: Vec<_> = holdings.collect();
    if holdings.is_empty() {
        return Ok(false);
    }
    args.output.print(&json!({ "key": customer, "limits": holdings }), || {
        let more = (looks.len() == args.limit as usize).then(|| "there may be more keys (--limit)".to_owned());
        let texts = holdings.iter().zip(&looks).map(|(all, (_, _, limit, _))| all.text(*limit, args.limit as usize));
        texts.chain(more).collect::<Vec<_>>().join("\n\n")
    })?;
    Ok(true)
}

/// The rows of a limit in the tables.
struct Look {
    /// The instant of the last reading; none where no part has answered.
    at: Option<Timestamp>,
    rows: Vec<Row>,
    calls: Vec<StoredCall>,
    away: Away,
}

impl Look {
    async fn take(
        conn: &mut PgConnection,
        args: &InspectArgs,
        name: &str,
        limit: Option<&Limit>,
        key: Option<&Key>,
    ) -> Result<Self, CommandError> {
        let mut away = Away::of_tables(conn, args.timeout).await?;
        let (mut at, mut rows, mut calls) = (None, Vec::new(), Vec::new());
        for part in away.parts() {
            let mut tx = read_only(conn, args.timeout).await?;
            let found = read(&mut tx, (name, args.limit), limit, key, part).await;
            if let Some(found) = away.answer(part, found)? {
                rows.extend(found);
                if let Some(key) = key {
                    calls.extend(stored_calls(&mut tx, name, key, part, args.limit).await?);
                }
                at = Some(clock(&mut tx).await?);
            }
        }
        Ok(Self { at, rows: most_used(rows), calls, away })
    }

    fn holding<'a>(
        &'a self,
        args: &InspectArgs,
        name: &'a str,
        limit: Option<&Limit>,
        key: Key,
        said: &Overrides,
    ) -> Holding<'a> {
        let now = self.at.unwrap_or(Timestamp::MIN);
        Holding::of(name, limit, key, &self.rows, now, said, args.cost).with(&self.calls)
    }
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
    (name, most): (&str, u32),
    limit: Option<&Limit>,
    key: Option<&Key>,
    part: i16,
) -> Result<Vec<Listed>, sqlx::Error> {
    let spec = limit.map(Limit::spec);
    let spec = spec.as_ref();
    let share = |tokens: Tokens, shards: u16| about(tokens) / f64::from(shards);
    sqlx::query_as(include_str!("rows.sql"))
        .bind(name)
        .bind(key.map(Key::as_str))
        .bind(spec.map(|spec| storage::name(spec.storage)))
        .bind(spec.map(|spec| share(spec.rate, spec.shards)))
        // A wallet has none.
        .bind(spec.map(|spec| period(spec).as_secs_f64()))
        .bind(spec.map(|spec| spec.kind != LimitKind::TokenBucket))
        .bind(if key.is_some() { 1 } else { i64::from(most) })
        .bind(part)
        .persistent(false)
        .fetch_all(conn)
        .await
}

fn nobody(name: &str) -> CommandError {
    let remedy = "no row and no override has this key: a key without a row is full";
    CommandError::new(format!("nothing is known of key {:?}", printable(name)), remedy)
}

fn no_row(name: &str, key: &Key) -> CommandError {
    CommandError::new(
        format!("there is no row of limit {name:?} for {:?}, and no definition to say what that means", shown(key)),
        format!("check both names with `tollgate inspect {}`, or pass --limits FILE", printable(name)),
    )
}

fn list(args: &InspectArgs, kind: Option<LimitKind>, holdings: &[Holding<'_>]) -> Result<(), CommandError> {
    args.output.print(&json!({ "limit": args.name, "keys": holdings }), || {
        if holdings.is_empty() {
            return format!("no rows of {}: a key without a row is full", printable(&args.name));
        }
        let heads: &[_] = match kind {
            Some(LimitKind::Meter) => &["KEY", "USED"],
            Some(_) => &["KEY", "REMAINING", "OF", "FULL IN"],
            None => &["KEY", "USED", "ON DISK", "FULL IN"],
        };
        let heads = heads.iter().copied().map(str::to_owned).collect();
        let mut lines = columns(&std::iter::once(heads).chain(holdings.iter().map(Holding::cells)).collect::<Vec<_>>());
        lines[0] = styled(HEADING, &lines[0]);
        if holdings.len() == args.limit as usize {
            lines.push("there may be more keys (--limit)".to_owned());
        }
        lines.join("\n")
    })
}
