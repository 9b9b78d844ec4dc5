//! `tollgate inspect`: what a limit holds for one key, or for the keys that are most exhausted.

use std::cmp::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::json;
use sqlx::{FromRow, PgConnection};
use tollgate::algebra::{Ask, Entry, List, Pool, Terms, Timestamp, Verdict};
use tollgate::plan::Ruling;
use tollgate::{Charge, Key, Limit, LimitKind, Override, Overrides, Tokens};

use crate::database::{DatabaseArgs, clock, read_only};
use crate::error::CommandError;
use crate::limits_file::{LimitsArgs, describe};
use crate::output::{
    BAD, CAUTION, FAINT, GOOD, HEADING, OutputArgs, about, columns, counted, instant, printable, shown, span, styled,
    tell,
};
use crate::overrides::words;
use crate::parts::Away;
use crate::row::{Row, live_leases, until};
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

    /// How many keys to list at most, or leases of one key, or calls with a name.
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
    let (mut now, mut rows, mut calls) = (None, Vec::new(), Vec::new());
    for part in away.parts() {
        let mut tx = read_only(&mut conn, args.timeout).await?;
        let found = read(&mut tx, &args, limit, key.as_ref(), part).await;
        if let Some(found) = away.answer(part, found)? {
            rows.extend(found);
            if let Some(key) = &key {
                calls.extend(stored_calls(&mut tx, &args, key, part).await?);
            }
            now = Some(clock(&mut tx).await?);
        }
    }
    let rows = most_used(rows);
    let said = Overrides::read(&mut conn).await?;
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
            let holding = Holding { calls: Some(calls), ..Holding::of(&args, limit, key, &rows, now, &said) };
            args.output.print(&holding, || holding.text(limit, args.limit as usize))?;
        }
        None => {
            let by_key = rows.chunk_by(|one, other| one.key == other.key).take(args.limit as usize);
            let holdings = by_key.map(|rows| {
                let key = Key::try_from(rows[0].key.clone())?;
                Ok(Holding::of(&args, limit, key, rows, now, &said))
            });
            list(&args, limit.is_some(), &holdings.collect::<Result<Vec<_>, CommandError>>()?)?;
        }
    }
    away.check()
}

/// A row, and about what is used of its key.
#[derive(FromRow)]
struct Listed {
    #[sqlx(flatten)]
    row: Row,
    used: Option<f64>,
}

/// The rows by what is used of their keys, the most first, as each part has them.
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
    sqlx::query_as(include_str!("inspect.sql"))
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

/// The calls that a limit and a key name, those that can still be settled first.
async fn stored_calls(
    conn: &mut PgConnection,
    args: &InspectArgs,
    key: &Key,
    part: i16,
) -> Result<Vec<StoredCall>, sqlx::Error> {
    let sql = "select id, charges::text as charges, reported,
                      (extract(epoch from charged_at) * 1000000)::int8 as charged_at,
                      (extract(epoch from lapses_at) * 1000000)::int8 as lapses_at,
                      (extract(epoch from kept_until) * 1000000)::int8 as kept_until, used
                 from tollgate.calls
                where part = $1 and name = $2 and key = $3
                order by used, calls.lapses_at, calls.kept_until
                limit $4";
    let query = sqlx::query_as(sql).bind(part).bind(&args.name).bind(key.as_str()).bind(i64::from(args.limit));
    let calls: Vec<FoundCall> = query.persistent(false).fetch_all(conn).await?;
    Ok(calls.into_iter().map(|call| call.of(&args.name, key)).collect())
}

#[derive(FromRow)]
struct FoundCall {
    id: String,
    /// As text: a charge that somebody else wrote may be one that no type reads.
    charges: String,
    reported: i64,
    charged_at: i64,
    lapses_at: Option<i64>,
    kept_until: i64,
    used: bool,
}

impl FoundCall {
    fn of(self, limit: &str, key: &Key) -> StoredCall {
        let Self { id, charges, reported, charged_at, lapses_at, kept_until, used } = self;
        let charged = serde_json::from_str::<Vec<Charge>>(&charges).ok().map(|charges| {
            let of_limit = charges.iter().filter(|charge| charge.limit() == limit && charge.key == *key);
            Tokens::from_micros(of_limit.fold(0, |sum, charge| charge.cost.micros().saturating_add(sum)))
        });
        let reported = Tokens::from_micros(reported);
        let at = |micros| Timestamp::from_micros(micros).into();
        let [charged_at, kept_until] = [charged_at, kept_until].map(at);
        StoredCall { id, charged, reported, charged_at, lapses_at: lapses_at.map(at), kept_until, used }
    }
}

/// A call that is known by its name, and what it has charged of the limit.
#[derive(Serialize)]
struct StoredCall {
    id: String,
    /// Null where its charges cannot be read.
    charged: Option<Tokens>,
    reported: Tokens,
    charged_at: DateTime<Utc>,
    lapses_at: Option<DateTime<Utc>>,
    kept_until: DateTime<Utc>,
    used: bool,
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
    /// Those that count now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<Override>,
    /// Of one key that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<StoredCall>>,
}

/// What the rows of a key mean by the definition.
#[derive(Serialize)]
struct Standing {
    remaining: Tokens,
    used: Tokens,
    capacity: Tokens,
    debt: Tokens,
    /// Null for never, as of a wallet.
    full_at: Option<DateTime<Utc>>,
    full_in_ms: Option<u64>,
    next: Next,
}

/// When a call of some cost would be granted, if nobody spends before.
#[derive(Serialize)]
struct Next {
    cost: Tokens,
    /// Null for never: the cost is beyond the capacity, or only a credit helps.
    at: Option<DateTime<Utc>>,
    wait_ms: Option<u64>,
    /// Whether an operator refuses it until then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_denied: bool,
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
        let capacity = if spec.kind == LimitKind::Wallet { Tokens::MAX } else { spec.capacity.unwrap_or(spec.rate) };
        let ever = |at: Timestamp| Some(at.max(now)).filter(|at| *at < Timestamp::MAX);
        let (remaining, used, full_at) = (pool.balance(), pool.used(), ever(pool.full_at()));
        let debt = Tokens::ZERO.checked_sub(remaining).unwrap_or(Tokens::MAX).max(Tokens::ZERO);
        let granted_at = match pool.decide(Ask::consume(cost)) {
            _ if cost > capacity => None,
            Ok(Verdict::Granted { .. }) => Some(now),
            Ok(Verdict::Denied { retry_at, .. }) => ever(retry_at),
            Err(_) => None,
        };
        let wait_ms = granted_at.map(|at| millis(until(at, now)));
        let next = Next { cost, at: granted_at.map(Into::into), wait_ms, is_denied: false };
        let full_in_ms = full_at.map(|at| millis(until(at, now)));
        Self { remaining, used, capacity, debt, full_at: full_at.map(Into::into), full_in_ms, next }
    }
}

impl Standing {
    /// The same where an operator denies, or grants all.
    fn ruled(mut self, ruling: Option<Ruling>, now: Timestamp) -> Self {
        let at = match ruling {
            None => return self,
            Some(Ruling::Unlimited) => Some(now),
            Some(Ruling::Deny { until }) => Some(until).filter(|until| *until < Timestamp::MAX),
        };
        self.next.at = at.map(Into::into);
        self.next.wait_ms = at.map(|at| millis(until(at, now)));
        self.next.is_denied = matches!(ruling, Some(Ruling::Deny { .. }));
        self
    }
}

impl<'a> Holding<'a> {
    fn of(
        args: &'a InspectArgs,
        limit: Option<&Limit>,
        key: Key,
        rows: &'a [Row],
        now: Timestamp,
        said: &Overrides,
    ) -> Self {
        let is_corrupt = rows.iter().any(|row| row.fault().is_some());
        let standing = limit.filter(|_| !is_corrupt).map(|limit| {
            let exception = said.of(limit, &key).unwrap_or_default();
            let standing = Standing::of(exception.numbers.as_ref().unwrap_or(limit), &key, rows, now, args.cost);
            standing.ruled(exception.ruling, now)
        });
        let overrides = said.about(&args.name, &key, now.into());
        Self { limit: &args.name, key, observed_at: now.into(), standing, rows, overrides, calls: None }
    }

    /// All that is known of one key.
    fn text(&self, limit: Option<&Limit>, most: usize) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("{} {text}", styled(FAINT, format!("{name:<9}"))));
        line("limit", limit.map_or_else(|| printable(self.limit), describe));
        line("key", shown(&self.key));
        if let Some(standing) = &self.standing {
            let Standing { remaining, used, capacity, debt, next, .. } = standing;
            let is_full = remaining >= capacity;
            let owed = if remaining.is_negative() { format!(" (owes {debt})") } else { String::new() };
            let style = [CAUTION, GOOD, BAD][usize::from(is_full) + 2 * usize::from(remaining.is_negative())];
            let of = if *capacity == Tokens::MAX { String::new() } else { format!(" of {capacity}, {used} used") };
            line("remaining", format!("{}{of}{owed}", styled(style, remaining)));
            match standing.full_at {
                _ if is_full => line("full", "now".to_owned()),
                Some(full_at) if *capacity < Tokens::MAX => line("full", self.later(full_at)),
                _ => {}
            }
            let granted = match next.at {
                None if next.is_denied => styled(BAD, "denied until it is lifted"),
                Some(at) if next.is_denied => format!("{} {}", styled(BAD, "denied, ends"), self.later(at)),
                None if next.cost > *capacity => styled(BAD, "never: more than the capacity"),
                None => styled(BAD, "only after a credit"),
                Some(at) if at <= self.observed_at => styled(GOOD, "would be granted now"),
                Some(at) => format!("{} {}", styled(CAUTION, "granted"), self.later(at)),
            };
            line(&format!("cost {}", next.cost), granted);
        }
        for said in &self.overrides {
            line("override", words(said, self.observed_at));
        }
        if self.rows.is_empty() {
            let is_wallet = limit.is_some_and(|limit| limit.spec().kind == LimitKind::Wallet);
            line("row", format!("none, which means {}", if is_wallet { "empty" } else { "full" }));
        }
        for row in self.rows {
            line("row", self.row(row, limit));
        }
        for state in self.rows.iter().map(Row::state) {
            for Entry { ends_at, amount, .. } in live_leases(&state, self.observed_at.into()).take(most) {
                line("lease", format!("{amount}, ends {}", self.later((*ends_at).into())));
            }
        }
        for call in self.calls.iter().flatten() {
            line("call", self.call(call));
        }
        lines.join("\n")
    }

    fn row(&self, row: &Row, limit: Option<&Limit>) -> String {
        let (state, now) = (row.state(), Timestamp::from(self.observed_at));
        let holds = row.balance().map_or_else(|| format!("{} used", row.used()), |balance| balance.to_string());
        let mut parts = vec![format!("{holds} at {}, {}", instant(state.ts), row.storage)];
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
        if let (List::Grants(entries) | List::Leases(entries), Some(first)) =
            (&state.list, state.list.entries().first())
        {
            let thing = if matches!(state.list, List::Grants(_)) { "grant" } else { "lease" };
            parts.push(format!("{}, the first until {}", counted(entries.len(), thing), instant(first.ends_at)));
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

    /// A call that is known by its name.
    fn call(&self, call: &StoredCall) -> String {
        let StoredCall { id, charged, reported, lapses_at, kept_until, used, .. } = call;
        let reported = if *reported > Tokens::ZERO { format!(" ({reported} reported)") } else { String::new() };
        let end = match lapses_at {
            Some(at) if *at <= self.observed_at => format!("has lapsed at {}, not given back yet", instant(*at)),
            Some(at) => format!("lapses {}", self.later(*at)),
            None if *used => format!("used, known until {}", instant(*kept_until)),
            None => format!("known until {}", instant(*kept_until)),
        };
        let charged = charged.map_or_else(|| "charges that cannot be read".to_owned(), |sum| format!("{sum} charged"));
        format!("{charged}{reported}, {end}, id {}", printable(id))
    }

    fn later(&self, at: DateTime<Utc>) -> String {
        format!("in {}, at {}", span(until(at.into(), self.observed_at.into())), instant(at))
    }

    /// The same in one line of a list.
    fn cells(&self) -> Vec<String> {
        if self.rows.iter().any(|row| row.fault().is_some()) {
            return vec![shown(&self.key), "corrupt".to_owned(), String::new(), String::new()];
        }
        let (amount, of, full_at) = if let Some(Standing { remaining, capacity, full_at, .. }) = &self.standing {
            (*remaining, if *capacity == Tokens::MAX { String::new() } else { capacity.to_string() }, *full_at)
        } else {
            let used = |row: &Row| row.balance().unwrap_or(row.used()).micros();
            let sum = self.rows.iter().map(used).fold(0, i64::saturating_add);
            let as_of = self.rows.iter().map(|row| row.state().ts).max().unwrap_or(Timestamp::MIN);
            let full_at = self.rows.iter().map(Row::full_at).max_by_key(|at| at.unwrap_or(Timestamp::MAX)).flatten();
            (Tokens::from_micros(sum), format!("at {}", instant(as_of)), full_at.map(Into::into))
        };
        let full_in = match full_at {
            None => "never".to_owned(),
            Some(at) if at <= self.observed_at => "now".to_owned(),
            Some(at) => span(until(at.into(), self.observed_at.into())),
        };
        vec![shown(&self.key), amount.to_string(), of, full_in]
    }
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

/// Rounded up: whoever waits so long has waited long enough.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
