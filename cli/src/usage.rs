//! `tollgate usage`: the used tokens of the keys of a meter.

use std::time::Duration;

use serde::Serialize;
use sqlx::{FromRow, PgConnection};
use tollgate::{Key, KeyError, Tokens};

use crate::database::{DatabaseArgs, read_only};
use crate::error::CommandError;
use crate::output::{HEADING, OutputArgs, columns, counted, printable, shown, styled};
use crate::parts::Away;
use crate::target::{joined, key};

/// Show how much each key of a meter has used, the largest first, and the sum.
///
/// A meter is a wallet that nobody pays into. Its rows count the settled costs of calls. A call that is not settled yet
/// counts with its estimate. Keys of other limits get their tokens back with time, so they have no usage: use `tollgate
/// inspect` for those.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    /// The meter's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// Show only this key, written as the list prints it. With --month, leave out the month.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Vec<Key>,

    /// Show only keys that begin with this month, such as 2026-11.
    #[arg(long, value_name = "MONTH", value_parser = month)]
    month: Option<String>,

    /// List at most this many keys. The sum counts those that are not listed, too.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,

    /// How long the server may take for one statement.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: UsageArgs) -> Result<(), CommandError> {
    let key = args.whole_key()?;
    let mut conn = args.database.connect().await?;
    let mut away = Away::of_tables(&mut conn, args.timeout).await?;
    let mut usage = Usage::of(&args.name);
    for part in away.parts() {
        let mut tx = read_only(&mut conn, args.timeout).await?;
        let found = read(&mut tx, &args, key.as_ref(), part).await;
        if let Some(found) = away.answer(part, found)? {
            usage.add(found)?;
        }
    }
    usage.keys.sort_by(|one, other| (other.used, &one.key).cmp(&(one.used, &other.key)));
    usage.keys.truncate(args.limit as usize);
    args.output.print(&usage, || usage.text())?;
    away.check()
}

impl UsageArgs {
    fn whole_key(&self) -> Result<Option<Key>, CommandError> {
        let month = self.month.iter().filter(|_| !self.key.is_empty()).cloned().map(Key::try_from);
        let mut words = month.collect::<Result<Vec<_>, KeyError>>()?;
        words.extend(self.key.iter().cloned());
        joined(&words)
    }
}

/// The used tokens of a meter.
#[derive(Serialize)]
struct Usage<'a> {
    limit: &'a str,
    /// The sum of all keys, also of those that are not listed.
    used: Tokens,
    count: i64,
    keys: Vec<OfKey>,
}

#[derive(Serialize)]
struct OfKey {
    key: Key,
    used: Tokens,
}

#[derive(FromRow)]
struct Found {
    key: String,
    used: i64,
    total: i64,
    keys: i64,
    is_meter: bool,
}

impl<'a> Usage<'a> {
    const fn of(limit: &'a str) -> Self {
        Self { limit, used: Tokens::ZERO, count: 0, keys: Vec::new() }
    }

    /// Adds the keys of a part.
    fn add(&mut self, found: Vec<Found>) -> Result<(), CommandError> {
        let Some(Found { total, keys, is_meter, .. }) = found.first() else { return Ok(()) };
        let what = |fault: &str| format!("{:?} {fault}", printable(self.limit));
        if !is_meter {
            let remedy = "see what its keys hold with `tollgate inspect`";
            return Err(CommandError::new(what("has rows that are no meter's: time gives their tokens back"), remedy));
        }
        let used = self.used.checked_add(Tokens::from_micros(*total));
        self.used =
            used.ok_or_else(|| CommandError::new(what("used more than a number holds"), "ask for one month"))?;
        self.count += keys;
        for Found { key, used, .. } in found {
            self.keys.push(OfKey { key: Key::try_from(key)?, used: Tokens::from_micros(used) });
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

async fn read(
    conn: &mut PgConnection,
    args: &UsageArgs,
    key: Option<&Key>,
    part: i16,
) -> Result<Vec<Found>, sqlx::Error> {
    sqlx::query_as(include_str!("usage.sql"))
        .bind(&args.name)
        .bind(key.map(Key::as_str))
        .bind(&args.month)
        .bind(i64::from(args.limit.max(1)))
        .bind(part)
        .persistent(false)
        .fetch_all(conn)
        .await
}

/// Reads a month as a key has it.
fn month(text: &str) -> Result<String, String> {
    let is_month = text.len() == 7 && chrono::NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d").is_ok();
    if is_month { Ok(text.to_owned()) } else { Err("a month is written as 2026-11".to_owned()) }
}
