//! One key.

use std::io::Write;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use tollgate::algebra::Timestamp;
use tollgate::{Key, Limit};

use super::row::{Found, Next, Row, Standing};
use super::{Definition, InspectArgs};
use crate::error::CommandError;
use crate::limits_file::describe;
use crate::output::{self, BAD, CAUTION, FAINT, GOOD, instant, printable, shown, span, styled};

pub(super) async fn inspect(
    conn: &mut PgConnection,
    args: &InspectArgs,
    definition: &Definition,
    key: Key,
) -> Result<(), CommandError> {
    let found: Vec<Found> =
        sqlx::query_as(include_str!("sql/one.sql")).bind(&args.name).bind(key.as_str()).fetch_all(conn).await?;
    let rows: Vec<Row> = found.iter().filter_map(Found::row).collect();
    definition.unless_unknown(!rows.is_empty())?;
    let limit = definition.limit();
    if limit.is_none() && rows.is_empty() {
        return Err(CommandError::NoRow { limit: args.name.clone(), key: shown(&key) });
    }
    let now = found.first().map_or(0, |found| found.now);
    let report = Report::of(args, limit, key, rows, Timestamp::from_micros(now).into());
    if args.output.json { output::json(&report) } else { report.print(limit) }
}

#[derive(Serialize)]
struct Report<'a> {
    limit: &'a str,
    key: Key,
    observed_at: DateTime<Utc>,
    /// Only with a definition.
    #[serde(flatten)]
    standing: Option<Standing>,
    next: Option<Next>,
    /// What is on disk; empty where nothing is, which means full.
    rows: Vec<Row>,
}

impl<'a> Report<'a> {
    fn of(args: &'a InspectArgs, limit: Option<&Limit>, key: Key, rows: Vec<Row>, now: DateTime<Utc>) -> Self {
        let (standing, next) = limit.map_or((None, None), |limit| {
            let standing = Standing::of(limit, &key, &rows, now);
            (Some(standing), Some(Next::of(limit, &key, &rows, now, args.cost)))
        });
        Self { limit: &args.name, key, observed_at: now, standing, next, rows }
    }

    fn print(&self, limit: Option<&Limit>) -> Result<(), CommandError> {
        let mut out = output::out();
        let mut line = |name: &str, text: String| writeln!(out, "{} {text}", styled(FAINT, format_args!("{name:<9}")));
        line("limit", limit.map_or_else(|| printable(self.limit), describe))?;
        line("key", shown(&self.key))?;
        if let Some(standing) = &self.standing {
            line("balance", balance(standing))?;
            line("full", self.full(standing))?;
        }
        if let Some(next) = &self.next {
            line(&format!("cost {}", next.cost), self.next(next))?;
        }
        if self.rows.is_empty() {
            line("row", "none, which means full".to_owned())?;
        }
        for row in &self.rows {
            line("row", self.row(row, limit))?;
        }
        Ok(())
    }

    fn full(&self, standing: &Standing) -> String {
        if standing.is_full() { "now".to_owned() } else { self.later(standing.full_at) }
    }

    fn next(&self, next: &Next) -> String {
        match next.at {
            None => styled(BAD, "never: more than the capacity"),
            Some(at) if at <= self.observed_at => styled(GOOD, "would be granted now"),
            Some(at) => format!("{} {}", styled(CAUTION, "granted"), self.later(at)),
        }
    }

    fn row(&self, row: &Row, limit: Option<&Limit>) -> String {
        let mut parts = vec![format!("{} at {} in {}", row.value, instant(row.as_of), row.table)];
        if row.shard > 0 || limit.is_some_and(|limit| limit.spec().shards > 1) {
            parts.push(format!("shard {}", row.shard));
        }
        if let (None, Some(full_at)) = (limit, row.full_at) {
            let is_full = full_at <= self.observed_at;
            parts.push(if is_full { "full by now".to_owned() } else { format!("full {}", self.later(full_at)) });
        }
        if row.as_of > self.observed_at {
            let ahead = format!("{} in the future (reset mends it)", self.until(row.as_of));
            parts.push(styled(BAD, ahead));
        }
        if let Some(limit) = limit {
            if limit.spec().storage != row.storage {
                parts.push(styled(CAUTION, "which the limit does not use any more"));
            } else if !limit.shard_numbers().contains(&row.shard) {
                parts.push(styled(CAUTION, "of another number of shards, which the next call takes over"));
            }
        }
        parts.join(", ")
    }

    fn later(&self, at: DateTime<Utc>) -> String {
        format!("in {}, at {}", self.until(at), instant(at))
    }

    fn until(&self, at: DateTime<Utc>) -> String {
        span((at - self.observed_at).to_std().unwrap_or_default())
    }
}

fn balance(standing: &Standing) -> String {
    let Standing { balance, capacity, .. } = standing;
    let style = if balance.is_negative() {
        BAD
    } else if standing.is_full() {
        GOOD
    } else {
        CAUTION
    };
    let owed = if balance.is_negative() { format!(" (owes {})", standing.debt) } else { String::new() };
    format!("{} of {capacity}{owed}", styled(style, balance))
}
