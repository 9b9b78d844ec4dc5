//! `tollgate inspect`: what a limit holds for one key, or for the keys that are most exhausted.

use std::cmp::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, PgConnection};
use tollgate::algebra::{Hold, Pool, Terms, Timestamp};
use tollgate::{Key, Limit, LimitKind, Tokens};

use crate::database::{DatabaseArgs, clock, read_only};
use crate::error::CommandError;
use crate::limits_file::{LimitsArgs, describe};
use crate::output::{
    BAD, CAUTION, FAINT, GOOD, HEADING, OutputArgs, about, columns, counted, instant, printable, shown, span, styled,
    tell,
};
use crate::parts::Away;
use crate::row::{Row, until};
use crate::storage;
use crate::target::key;

/// Show what a limit holds for a key; without KEY, its keys, most exhausted first.
///
/// With a limits file: the balance now, and when it grants again. Without one: what is on disk, which does not say what
/// has come back since.
///
/// The list reads all rows of the limit, because no index is kept on a balance: it would slow every decision. Count on
/// two or three seconds for each million. One key is looked up by the primary key.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// Whom it applies to, as the list shows it.
    #[arg(value_name = "KEY", value_parser = key, conflicts_with = "global")]
    key: Option<Key>,

    /// The one row for all callers together, instead of a key.
    #[arg(long)]
    global: bool,

    /// Say when a call of so many tokens would be granted.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    /// How many keys to list at most, or holds of one key.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,

    /// How long the server may take.
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
    let (mut now, mut rows) = (None, Vec::new());
    for part in away.parts() {
        let mut tx = read_only(&mut conn, args.timeout).await?;
        let found = read(&mut tx, &args, limit, key.as_ref(), part).await;
        if let Some(found) = away.answer(part, found)? {
            rows.extend(found);
            now = Some(clock(&mut tx).await?);
        }
    }
    let rows = most_exhausted(rows);
    // Nothing is known of a key that no part has shown.
    let (Some(now), false) = (now, key.is_some() && rows.is_empty() && !away.is_empty()) else { return away.check() };
    // The name may be a slip, or that of a limit of the past, whose rows are still there.
    if let Some(Err(unknown)) = &defined {
        if rows.is_empty() {
            return Err(unknown.clone().into());
        }
        tell(format_args!("{unknown}: this is what is on disk"));
    }
    match key {
        Some(key) if rows.is_empty() && limit.is_none() => return Err(no_row(&args.name, &key)),
        Some(key) => {
            let holding = Holding::of(&args, limit, key, &rows, now);
            args.output.print(&holding, || holding.text(limit, args.limit as usize))?;
        }
        None => {
            let by_key = rows.chunk_by(|one, other| one.key == other.key).take(args.limit as usize);
            let holdings = by_key.map(|rows| {
                let key = Key::try_from(rows[0].key.clone())?;
                Ok(Holding::of(&args, limit, key, rows, now))
            });
            list(&args, limit.is_some(), &holdings.collect::<Result<Vec<_>, CommandError>>()?)?;
        }
    }
    away.check()
}

/// A row, and what its key is missing about.
#[derive(FromRow)]
struct Listed {
    #[sqlx(flatten)]
    row: Row,
    missing: Option<f64>,
}

/// The rows in the order of their keys' exhaustion, as each part has them.
fn most_exhausted(mut rows: Vec<Listed>) -> Vec<Row> {
    let missing = |one: &Listed, other: &Listed| other.missing.partial_cmp(&one.missing).unwrap_or(Ordering::Equal);
    rows.sort_by(|one, other| missing(one, other).then_with(|| one.row.key.cmp(&other.row.key)));
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
    sqlx::query_as(include_str!("inspect.sql"))
        .bind(&args.name)
        .bind(key.map(Key::as_str))
        .bind(spec.map(|spec| storage::name(spec.storage)))
        .bind(spec.and_then(|spec| Some(share(spec.capacity?, spec.shards))))
        .bind(spec.map(|spec| share(spec.rate, spec.shards)))
        .bind(spec.map(|spec| spec.period.as_secs_f64()))
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

/// What a limit holds for one key.
#[derive(Serialize)]
struct Holding<'a> {
    limit: &'a str,
    key: Key,
    observed_at: DateTime<Utc>,
    /// Only with a definition, and where all rows can be read.
    #[serde(flatten)]
    standing: Option<Standing>,
    /// What is on disk. A missing row means a full bucket.
    rows: &'a [Row],
}

/// What the rows of a key mean by the definition.
#[derive(Serialize)]
struct Standing {
    balance: Tokens,
    capacity: Tokens,
    debt: Tokens,
    full_at: DateTime<Utc>,
    full_in_ms: u64,
    next: Next,
}

/// When a call of some cost would be granted, if nobody spends before.
#[derive(Serialize)]
struct Next {
    cost: Tokens,
    /// Null for never: the cost is beyond the capacity.
    at: Option<DateTime<Utc>>,
    wait_ms: Option<u64>,
}

impl Standing {
    fn of(limit: &Limit, key: &Key, rows: &[Row], now: Timestamp, cost: Tokens) -> Self {
        let spec = limit.spec();
        let mut states = vec![None; spec.shards.into()];
        for row in rows {
            if let Some(index) = row.index(limit) {
                states[index] = Some(row.state());
            }
        }
        let pool = Pool::new(&Terms::of(limit, key), &states, now);
        let (balance, capacity) = (pool.balance(), spec.capacity.unwrap_or(spec.rate));
        let full_at = pool.full_at().max(now);
        let debt = Tokens::ZERO.checked_sub(balance).unwrap_or(Tokens::MAX).max(Tokens::ZERO);
        let granted_at = (cost <= capacity).then(|| pool.first_instant(cost).max(now));
        let wait_ms = granted_at.map(|at| millis(until(at, now)));
        let next = Next { cost, at: granted_at.map(Into::into), wait_ms };
        Self { balance, capacity, debt, full_at: full_at.into(), full_in_ms: millis(until(full_at, now)), next }
    }
}

impl<'a> Holding<'a> {
    fn of(args: &'a InspectArgs, limit: Option<&Limit>, key: Key, rows: &'a [Row], now: Timestamp) -> Self {
        let is_corrupt = rows.iter().any(|row| row.fault().is_some());
        let standing = limit.filter(|_| !is_corrupt).map(|limit| Standing::of(limit, &key, rows, now, args.cost));
        Self { limit: &args.name, key, observed_at: now.into(), standing, rows }
    }

    /// All that is known of one key.
    fn text(&self, limit: Option<&Limit>, most: usize) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("{} {text}", styled(FAINT, format!("{name:<9}"))));
        line("limit", limit.map_or_else(|| printable(self.limit), describe));
        line("key", shown(&self.key));
        if let Some(standing) = &self.standing {
            let Standing { balance, capacity, debt, next, .. } = standing;
            let is_full = balance >= capacity;
            let owed = if balance.is_negative() { format!(" (owes {debt})") } else { String::new() };
            let style = [CAUTION, GOOD, BAD][usize::from(is_full) + 2 * usize::from(balance.is_negative())];
            line("balance", format!("{} of {capacity}{owed}", styled(style, balance)));
            line("full", if is_full { "now".to_owned() } else { self.later(standing.full_at) });
            let granted = match next.at {
                None => styled(BAD, "never: more than the capacity"),
                Some(at) if at <= self.observed_at => styled(GOOD, "would be granted now"),
                Some(at) => format!("{} {}", styled(CAUTION, "granted"), self.later(at)),
            };
            line(&format!("cost {}", next.cost), granted);
        }
        if self.rows.is_empty() {
            line("row", "none, which means full".to_owned());
        }
        for row in self.rows {
            line("row", self.row(row, limit));
        }
        for state in self.rows.iter().map(Row::state) {
            let is_live = |hold: &&Hold| hold.id.is_some() && hold.lapses_at > self.observed_at.into();
            for hold in state.holds.iter().filter(is_live).take(most) {
                line("hold", self.hold(hold));
            }
        }
        lines.join("\n")
    }

    fn row(&self, row: &Row, limit: Option<&Limit>) -> String {
        let (state, now) = (row.state(), Timestamp::from(self.observed_at));
        let mut parts = vec![format!("{} at {}, {}", state.value, instant(state.ts), row.storage)];
        if row.shard > 0 || limit.is_some_and(|limit| limit.spec().shards > 1) {
            parts.push(format!("shard {}", row.shard));
        }
        if let Some(fault) = row.fault() {
            parts.push(styled(BAD, format!("corrupt: {fault}, so each call of it is an error")));
        }
        match (limit, row.full_at()) {
            (None, Some(full_at)) if full_at <= now => parts.push("full by now".to_owned()),
            (None, Some(full_at)) => parts.push(format!("full {}", self.later(full_at.into()))),
            _ => {}
        }
        if let Some(first) = state.holds.iter().min_by_key(|hold| hold.lapses_at) {
            let held = counted(state.holds.len().try_into().unwrap_or(i64::MAX), "hold");
            parts.push(format!("{held}, the first until {}", instant(first.lapses_at)));
        }
        if state.ts > now {
            parts.push(styled(BAD, format!("{} in the future (reset mends it)", span(until(state.ts, now)))));
        }
        if limit.is_some_and(|limit| limit.spec().storage != row.storage()) {
            parts.push(styled(CAUTION, "which the limit does not use any more"));
        } else if limit.is_some_and(|limit| row.index(limit).is_none()) {
            parts.push(styled(CAUTION, "a stale shard: the limit has another number of shards now"));
        }
        parts.join(", ")
    }

    /// What somebody has a receipt or a lease for.
    fn hold(&self, hold: &Hold) -> String {
        let end = match hold {
            Hold { used: true, .. } => "used, and known until",
            Hold { keeps: true, .. } => "good until",
            _ => "back",
        };
        let id = hold.id.map_or_else(String::new, |id| format!(", id {id}"));
        format!("{}, {end} {}{id}", hold.amount, self.later(hold.lapses_at.into()))
    }

    fn later(&self, at: DateTime<Utc>) -> String {
        format!("in {}, at {}", span(until(at.into(), self.observed_at.into())), instant(at))
    }

    /// The same in one line of a list.
    fn cells(&self) -> Vec<String> {
        if self.rows.iter().any(|row| row.fault().is_some()) {
            return vec![shown(&self.key), "corrupt".to_owned(), String::new(), String::new()];
        }
        let (balance, of, full_at) = if let Some(Standing { balance, capacity, full_at, .. }) = &self.standing {
            (*balance, capacity.to_string(), Some(*full_at))
        } else {
            let sum = self.rows.iter().fold(0_i64, |sum, row| sum.saturating_add(row.value));
            let as_of = self.rows.iter().map(|row| row.state().ts).max().unwrap_or(Timestamp::MIN);
            let full_at = self.rows.iter().map(Row::full_at).max_by_key(|at| at.unwrap_or(Timestamp::MAX)).flatten();
            (Tokens::from_micros(sum), format!("at {}", instant(as_of)), full_at.map(Into::into))
        };
        let full_in = match full_at {
            None => "never".to_owned(),
            Some(at) if at <= self.observed_at => "now".to_owned(),
            Some(at) => span(until(at.into(), self.observed_at.into())),
        };
        vec![shown(&self.key), balance.to_string(), of, full_in]
    }
}

fn list(args: &InspectArgs, is_defined: bool, holdings: &[Holding<'_>]) -> Result<(), CommandError> {
    args.output.print(&json!({ "limit": args.name, "keys": holdings }), || {
        if holdings.is_empty() {
            return format!("no rows of {}: a key without a row is full", printable(&args.name));
        }
        let heads = ["KEY", "BALANCE", if is_defined { "OF" } else { "ON DISK" }, "FULL IN"];
        let heads = heads.map(str::to_owned).to_vec();
        let mut lines = columns(&std::iter::once(heads).chain(holdings.iter().map(Holding::cells)).collect::<Vec<_>>());
        lines[0] = styled(HEADING, &lines[0]);
        if holdings.len() == args.limit as usize {
            lines.push("there may be more keys (--limit)".to_owned());
        }
        lines.join("\n")
    })
}

/// Rounded up: whoever waits so long has waited long enough.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
