//! The table of overrides, as it is read.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::map::Map;
use super::said::{Effect, Override};
use crate::algebra::Timestamp;
use crate::key::Key;
use crate::limit::LimitKind;
use crate::tokens::Tokens;

/// Tells versions of the table apart: how many rows it has, and the sum of the transactions that wrote them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stamp {
    rows: i64,
    versions: i64,
}

/// The table, as a statement found it.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The clock, after the snapshot.
    pub(super) now: Timestamp,
    pub(super) stamp: Stamp,
    /// `None` where it is as it was before.
    pub(super) map: Option<Map>,
}

/// Reads the table, unless it is as it was. In text, which no pooler takes apart.
pub(super) async fn read(conn: &mut PgConnection, before: Option<Stamp>) -> Result<Snapshot, sqlx::Error> {
    if let Some(before) = before {
        let row = sqlx::raw_sql(include_str!("stamp.sql")).fetch_one(&mut *conn).await?;
        let (now, stamp) = stamped(&row)?;
        if stamp == before {
            return Ok(Snapshot { now, stamp, map: None });
        }
    }
    let rows = sqlx::raw_sql(include_str!("read.sql")).fetch_all(conn).await?;
    let (now, stamp) = stamped(rows.first().ok_or(sqlx::Error::RowNotFound)?)?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(name) = row.try_get::<Option<String>, _>("name")? else { continue };
        if let Some(said) = said(name.clone(), row)? {
            all.push(said);
        } else {
            tracing::warn!(limit = name, "an override that this release does not know does not apply");
        }
    }
    Ok(Snapshot { now, stamp, map: Some(Map::of(all)) })
}

fn stamped(row: &PgRow) -> Result<(Timestamp, Stamp), sqlx::Error> {
    let stamp = Stamp { rows: row.try_get("rows")?, versions: row.try_get("versions")? };
    Ok((Timestamp::from_micros(row.try_get("now")?), stamp))
}

/// `None` for what a later release says.
fn said(limit: String, row: &PgRow) -> Result<Option<Override>, sqlx::Error> {
    let instant = |micros: i64| DateTime::<Utc>::from(Timestamp::from_micros(micros));
    let tokens = |column| row.try_get(column).map(Tokens::from_micros);
    let effect = match row.try_get("effect")? {
        "numbers" => {
            let kind: StrDeserializer<'_, Error> = row.try_get::<&str, _>("kind")?.into_deserializer();
            let Ok(kind) = LimitKind::deserialize(kind) else { return Ok(None) };
            let period = u64::try_from(row.try_get::<i64, _>("period")?).map_err(decode)?;
            let period = std::time::Duration::from_micros(period);
            let (rate, capacity, max_reserved) = (tokens("rate")?, tokens("capacity")?, tokens("max_reserved")?);
            Effect::Numbers { kind, rate, period, capacity, max_reserved }
        }
        "deny" => Effect::Deny,
        "unlimited" => Effect::Unlimited,
        _ => return Ok(None),
    };
    let key: String = row.try_get("key")?;
    let key = if key.is_empty() { None } else { Some(Key::try_from(key).map_err(decode)?) };
    Ok(Some(Override {
        limit,
        key,
        effect,
        starts_at: instant(row.try_get("starts_at")?),
        ends_at: row.try_get::<Option<i64>, _>("ends_at")?.map(instant),
        reason: row.try_get("reason")?,
        set_by: row.try_get("set_by")?,
        set_at: instant(row.try_get("set_at")?),
    }))
}

fn decode(error: impl std::error::Error + Send + Sync + 'static) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}
