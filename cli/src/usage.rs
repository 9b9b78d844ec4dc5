//! `tollgate usage`: the used tokens of the keys of a meter.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use sqlx::{FromRow, PgConnection};
use tollgate::{Key, Limit, LimitKind, LimitSpec, Limits, Tokens};

use crate::database::{DatabaseArgs, read_only};
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::{HEADING, OutputArgs, columns, counted, printable, shown, styled};
use crate::parts::Away;
use crate::target::{joined, key};

/// Show how much each key of a meter has used, the largest first, and the sum.
///
/// A meter counts the settled costs of calls. A call that is not settled yet counts with its estimate. Keys of other
/// limits get their tokens back with time, so they have no usage: use `tollgate inspect` for those.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// The meter's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// Show only this key, written as the list prints it. With --month or --prefix, leave out what these say.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Vec<Key>,

    /// Show only keys that begin with this month, such as 2026-11.
    #[arg(long, value_name = "MONTH", value_parser = month)]
    month: Option<Key>,

    /// Show only keys that begin with this part, such as 2026-11-14, for bills of other cycles than months.
    #[arg(long, value_name = "PART", value_parser = key, conflicts_with = "month")]
    prefix: Option<Key>,

    /// List at most this many keys. The sum counts those that are not listed, too.
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

pub(crate) async fn run(args: UsageArgs) -> Result<(), CommandError> {
    let key = args.whole_key()?;
    let mut conn = args.database.connect().await?;
    let known = args.limits.known(&mut conn).await?;
    let limit = known.as_ref().and_then(|known| known.get(&args.name).ok());
    if let Some(limit) = limit.filter(|limit| limit.kind != LimitKind::Meter) {
        return Err(no_meter(&args.name, &format!("is a {}, and no meter", limit.kind)));
    }
    let mut away = Away::of_tables(&mut conn, args.timeout).await?;
    let mut usage = Usage::of(&args.name);
    for part in away.parts() {
        let mut tx = read_only(&mut conn, args.timeout).await?;
        let found = read(&mut tx, &args, key.as_ref(), part).await;
        if let Some(found) = away.answer(part, found)? {
            usage.add(found)?;
        }
    }
    if limit.is_none() && usage.count == 0 && away.is_empty() {
        expect_rows(&mut conn, &args, known.as_ref()).await?;
    }
    usage.keys.sort_by(|one, other| (other.used.0, &one.key).cmp(&(one.used.0, &other.key)));
    usage.keys.truncate(args.limit as usize);
    args.output.print(&usage, || usage.text())?;
    away.check()
}

impl UsageArgs {
    fn whole_key(&self) -> Result<Option<Key>, CommandError> {
        let first = self.first().filter(|_| !self.key.is_empty());
        joined(&first.into_iter().chain(&self.key).cloned().collect::<Vec<_>>())
    }

    /// The part that keys begin with.
    fn first(&self) -> Option<&Key> {
        self.month.as_ref().or(self.prefix.as_ref())
    }
}

/// The used tokens of a meter.
#[derive(Serialize)]
struct Usage<'a> {
    limit: &'a str,
    /// The sum of all keys, also of those that are not listed.
    used: Used,
    count: i64,
    keys: Vec<OfKey>,
}

#[derive(Serialize)]
struct OfKey {
    key: Key,
    used: Used,
}

/// Used tokens, in micro-tokens. A key can use one more than an amount holds, and all keys together many more.
#[derive(Clone, Copy)]
struct Used(i128);

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i64::try_from(self.0) {
            Ok(micros) => Tokens::from_micros(micros).fmt(f),
            Err(_) => write!(f, "{}.{:06}", self.0 / 1_000_000, self.0.abs() % 1_000_000),
        }
    }
}

impl Serialize for Used {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(self.0) {
            Ok(micros) => Tokens::from_micros(micros).serialize(serializer),
            Err(_) => serializer.collect_str(self),
        }
    }
}

#[derive(FromRow)]
struct Found {
    key: String,
    used: String,
    total: String,
    keys: i64,
}

impl<'a> Usage<'a> {
    const fn of(limit: &'a str) -> Self {
        Self { limit, used: Used(0), count: 0, keys: Vec::new() }
    }

    /// Adds the keys of a part.
    fn add(&mut self, found: Vec<Found>) -> Result<(), CommandError> {
        let Some(Found { total, keys, .. }) = found.first() else { return Ok(()) };
        self.used.0 += total.parse::<i128>()?;
        self.count += keys;
        for Found { key, used, .. } in found {
            self.keys.push(OfKey { key: Key::try_from(key)?, used: Used(used.parse()?) });
        }
        Ok(())
    }

    fn text(&self) -> String {
        let lines = self.keys.iter().map(|of| vec![shown(&of.key), of.used.to_string()]);
        let heads = ["KEY", "USED"].map(str::to_owned).to_vec();
        let sum = vec![counted(self.count, "key"), self.used.to_string()];
        let mut lines = columns(&std::iter::once(heads).chain(lines).chain([sum]).collect::<Vec<_>>());
        lines[0] = styled(HEADING, &lines[0]);
        lines.join("\n")
    }
}

/// Fails for a name of which no meter has rows, with the name that was probably meant.
async fn expect_rows(conn: &mut PgConnection, args: &UsageArgs, known: Option<&Limits>) -> Result<(), CommandError> {
    let mut meters: Vec<Limit> = known.into_iter().flat_map(Limits::iter).cloned().collect();
    meters.retain(|limit| limit.kind == LimitKind::Meter);
    for part in Away::of_tables(conn, args.timeout).await?.parts() {
        let sql = concat!(include_str!("limit_names.sql"), include_str!("usage_names.sql"));
        let names = sqlx::query_as(sql).bind(part).persistent(false);
        let names: Vec<(String, bool)> = names.fetch_all(&mut *read_only(conn, args.timeout).await?).await?;
        for (name, is_meter) in names {
            match is_meter {
                true if name == args.name => return Ok(()),
                true => meters.push(LimitSpec::new(name, LimitKind::Meter, Tokens::ZERO, Duration::ZERO).try_into()?),
                false if name == args.name => {
                    return Err(no_meter(&name, "has rows that are no meter's: time gives their tokens back"));
                }
                false => {}
            }
        }
    }
    Limits::of(&meters)?.get(&args.name)?;
    Ok(())
}

fn no_meter(name: &str, fault: &str) -> CommandError {
    let name = printable(name);
    CommandError::new(format!("{name:?} {fault}"), "see what its keys hold with `tollgate inspect`")
}

async fn read(
    conn: &mut PgConnection,
    args: &UsageArgs,
    key: Option<&Key>,
    part: i16,
) -> Result<Vec<Found>, sqlx::Error> {
    sqlx::query_as(include_str!("usage.sql"))
        .bind(&args.name)
        .bind(key.map(Key::as_str))
        .bind(args.first().map(Key::as_str))
        .bind(i64::from(args.limit.max(1)))
        .bind(part)
        .persistent(false)
        .fetch_all(conn)
        .await
}

/// Reads a month as a key has it.
fn month(text: &str) -> Result<Key, String> {
    let is_month = text.len() == 7 && chrono::NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d").is_ok();
    if is_month { key(text) } else { Err("a month is written as 2026-11".to_owned()) }
}
