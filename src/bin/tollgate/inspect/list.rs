//! The keys of a limit.

use std::io::Write;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use tollgate::algebra::Timestamp;
use tollgate::{Key, Limit, LimitKind, Storage, Tokens};

use super::row::{Found, Row, Standing};
use super::{Definition, InspectArgs};
use crate::error::CommandError;
use crate::output::{self, HEADING, printable, shown, span, styled};

pub(super) async fn inspect(
    conn: &mut PgConnection,
    args: &InspectArgs,
    definition: &Definition,
) -> Result<(), CommandError> {
    // Row by row; of several rows for a key none says how much there is.
    let limit = definition.limit().filter(|limit| limit.spec().shards == 1);
    let mut found = read(conn, args, limit).await?;
    definition.unless_unknown(!found.is_empty())?;
    let has_more = found.len() > args.limit as usize;
    found.truncate(args.limit as usize);
    let keys: Vec<Listed> = found.iter().filter_map(|found| Listed::of(found, limit)).collect();
    let next = has_more.then_some(args.after.saturating_add(args.limit));
    if args.output.json {
        return output::json(&Page { limit: &args.name, keys, next });
    }
    print(args, &keys, next)
}

/// One more than asked for, to know whether there are more.
async fn read(conn: &mut PgConnection, args: &InspectArgs, limit: Option<&Limit>) -> Result<Vec<Found>, CommandError> {
    let spec = limit.map(Limit::spec);
    let storage = spec.as_ref().map(|spec| if spec.storage == Storage::Durable { "durable" } else { "ephemeral" });
    let found = sqlx::query_as(include_str!("sql/list.sql"))
        .bind(&args.name)
        .bind(storage)
        .bind(spec.as_ref().and_then(|spec| spec.capacity).map(about))
        .bind(spec.as_ref().map(|spec| about(spec.rate)))
        .bind(spec.as_ref().map(|spec| spec.period.as_secs_f64()))
        .bind(spec.as_ref().map(|spec| spec.kind != LimitKind::TokenBucket))
        .bind(i64::from(args.limit) + 1)
        .bind(i64::from(args.after))
        .persistent(false)
        .fetch_all(conn)
        .await?;
    Ok(found)
}

/// Only for the order.
#[expect(clippy::cast_precision_loss, reason = "an order by amounts that differ by less is as good as any")]
fn about(tokens: Tokens) -> f64 {
    tokens.micros() as f64 / 1e6
}

#[derive(Serialize)]
struct Page<'a> {
    limit: &'a str,
    keys: Vec<Listed>,
    /// What `--after` shows the next page; null on the last.
    next: Option<u32>,
}

#[derive(Serialize)]
struct Listed {
    key: Key,
    observed_at: DateTime<Utc>,
    #[serde(flatten)]
    standing: Option<Standing>,
    row: Row,
}

impl Listed {
    fn of(found: &Found, limit: Option<&Limit>) -> Option<Self> {
        let row = found.row()?;
        let key = Key::try_from(found.key.clone()?).ok()?;
        let observed_at = Timestamp::from_micros(found.now).into();
        let standing = limit.map(|limit| Standing::of(limit, &key, std::slice::from_ref(&row), observed_at));
        Some(Self { key, observed_at, standing, row })
    }

    fn cells(&self) -> [String; 4] {
        let full_at = self.standing.as_ref().map(|standing| standing.full_at).or(self.row.full_at);
        let full_in = match full_at.map(|full_at| (full_at - self.observed_at).to_std().unwrap_or_default()) {
            None => "never".to_owned(),
            Some(wait) if wait.is_zero() => "now".to_owned(),
            Some(wait) => span(wait),
        };
        let (value, of) = self.standing.as_ref().map_or_else(
            || (self.row.value, format!("at {}", output::instant(self.row.as_of))),
            |standing| (standing.balance, standing.capacity.to_string()),
        );
        let key = match self.row.shard {
            0 => shown(&self.key),
            shard => format!("{} #{shard}", shown(&self.key)),
        };
        [key, value.to_string(), of, full_in]
    }
}

fn print(args: &InspectArgs, keys: &[Listed], next: Option<u32>) -> Result<(), CommandError> {
    let mut out = output::out();
    if keys.is_empty() {
        let more = if args.after > 0 { "more " } else { "" };
        return Ok(writeln!(out, "no {more}rows of {}: a key without a row is full", printable(&args.name))?);
    }
    let cells: Vec<_> = keys.iter().map(Listed::cells).collect();
    let is_defined = keys.iter().any(|listed| listed.standing.is_some());
    let heads = ["KEY", "BALANCE", if is_defined { "OF" } else { "ON DISK" }, "FULL IN"];
    let width =
        |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(heads[column].len());
    let (key, value, of) = (width(0), width(1), width(2));
    let line = |[k, v, o, f]: [&str; 4]| format!("{k:<key$}  {v:>value$}  {o:<of$}  {f}");
    writeln!(out, "{}", styled(HEADING, line(heads)))?;
    for row in &cells {
        writeln!(out, "{}", line([&row[0], &row[1], &row[2], &row[3]]))?;
    }
    if let Some(next) = next {
        writeln!(out, "there are more (--after {next})")?;
    }
    Ok(())
}
