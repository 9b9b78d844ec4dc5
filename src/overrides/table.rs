//! Reads the table of overrides.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::known::{Map, Snapshot, Stamp};
use super::row::{Effect, Override};
use super::slowed_rate::SlowedRate;
use crate::algebra::Timestamp;
use crate::key::Key;
use crate::limit::written::word;
use crate::limit::{Limit, LimitSpec};
use crate::tokens::Tokens;

/// Reads the table after these statements, unless nothing has changed. It uses the simple protocol: no pooler takes its
/// messages apart, and one message is one transaction.
pub(super) async fn read(conn: &mut PgConnection, before: Option<Stamp>, first: &str) -> Result<Snapshot, sqlx::Error> {
    let under = |sql| sqlx::raw_sql(AssertSqlSafe(format!("{first}{sql}")));
    if let Some(before) = before {
        let row = under(include_str!("stamp.sql")).fetch_one(&mut *conn).await?;
        let (now, stamp) = stamped(&row)?;
        if stamp == before {
            return Ok(Snapshot { now, stamp, map: None });
        }
    }
    let rows = under(concat!(include_str!("read.sql"), include_str!("row.sql"))).fetch_all(conn).await?;
    let (now, stamp) = stamped(rows.first().ok_or(sqlx::Error::RowNotFound)?)?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        all.extend(said(row)?);
    }
    Ok(Snapshot { now, stamp, map: Some(Map::of(all)) })
}

/// A span as the statements of overrides take it; one that does not fit is longer than any that they allow.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn stamped(row: &PgRow) -> Result<(Timestamp, Stamp), sqlx::Error> {
    let stamp = Stamp { rows: row.try_get("rows")?, versions: row.try_get("versions")? };
    Ok((Timestamp::from_micros(row.try_get("now")?), stamp))
}

/// The override in a row. `None` for a row of nulls, for a key that is not valid, and for a kind of limit that this
/// release does not know.
pub(super) fn said(row: &PgRow) -> Result<Option<Override>, sqlx::Error> {
    let Some(limit) = row.try_get::<Option<String>, _>("name")? else { return Ok(None) };
    let instant = |micros: i64| DateTime::<Utc>::from(Timestamp::from_micros(micros));
    let text = |column| row.try_get::<Option<String>, _>(column).map(Option::unwrap_or_default);
    let (label, key) = (text("label")?, text("key")?);
    let effect = match text("effect")?.as_str() {
        "numbers" => {
            let Some(numbers) = numbers(&limit, row) else {
                tracing::warn!(limit, label, "an override of a kind that this release does not know does not apply");
                return Ok(None);
            };
            numbers
        }
        "slowed" => slowed(row),
        "deny" => Effect::Deny,
        "unlimited" => Effect::Unlimited,
        _ => Effect::Unreadable,
    };
    if effect == Effect::Unreadable {
        tracing::warn!(limit, label, "an override that cannot be read denies (`tollgate override list` shows it)");
    }
    let Ok(key) = Key::try_from(key) else {
        tracing::warn!(limit, label, "an override is about a key that nobody can have");
        return Ok(None);
    };
    Ok(Some(Override {
        limit,
        key: Some(key).filter(|key| !key.is_global()),
        label,
        effect,
        starts_at: instant(row.try_get("starts_at")?),
        ends_at: row.try_get::<Option<i64>, _>("ends_at")?.map(instant),
        reason: text("reason")?,
        set_by: text("set_by")?,
        set_at: instant(row.try_get("set_at")?),
    }))
}

/// The share in a row; unreadable if it is none, or never ends.
fn slowed(row: &PgRow) -> Effect {
    let ends = row.try_get::<Option<i64>, _>("ends_at").is_ok_and(|ends_at| ends_at.is_some());
    let share = row.try_get::<i64, _>("rate").ok().and_then(|share| u32::try_from(share).ok());
    match share.filter(|share| ends && (1..=SlowedRate::WHOLE).contains(share)) {
        Some(share) => Effect::Slowed { share },
        None => Effect::Unreadable,
    }
}

/// The numbers in a row; unreadable if no limit of their kind can have them. `None` for an unknown kind.
fn numbers(limit: &str, row: &PgRow) -> Option<Effect> {
    let kind: String = row.try_get("kind").unwrap_or_default();
    let kind = word(&kind).ok()?;
    let micros = |column| row.try_get::<i64, _>(column).unwrap_or(-1);
    let tokens = |column| Tokens::from_micros(micros(column));
    let (rate, capacity, max_reserved) = (tokens("rate"), tokens("capacity"), tokens("max_reserved"));
    let Ok(period) = u64::try_from(micros("period")).map(Duration::from_micros) else {
        return Some(Effect::Unreadable);
    };
    let spec = LimitSpec::new(limit, kind, rate, period).with(|spec| {
        (spec.capacity, spec.max_reserved) = (Some(capacity), max_reserved);
    });
    let is_right = Limit::try_from(spec).is_ok();
    Some(if is_right { Effect::Numbers { kind, rate, period, capacity, max_reserved } } else { Effect::Unreadable })
}
