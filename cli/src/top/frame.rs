use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use sqlx::{AssertSqlSafe, FromRow, PgConnection};
use tollgate::algebra::{Terms, Timestamp};
use tollgate::{Key, LimitKind, Limits, Override, Overrides, Storage, Tokens};

use super::TopArgs;
use crate::database::{clock, read_only};
use crate::error::CommandError;
use crate::output::about;
use crate::parts::Away;
use crate::row::{Row, live_leases, until};
use crate::storage;

/// One look at the tables, at one instant or as near as several statements come.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// By the database's clock.
    pub(super) at: Timestamp,
    pub(super) totals: BTreeMap<Storage, Totals>,
    /// By limit, key, shard and storage.
    pub(super) rows: BTreeMap<(String, String, i16, Storage), Row>,
    /// Overrides; none where no part answers.
    said: Option<Overrides>,
    /// Why it shows a part of them only, where Citus has lost a node.
    pub(super) away: Option<String>,
}

/// How the rows of one table stand.
#[derive(Clone, Copy, Debug, FromRow, Serialize)]
pub(super) struct Totals {
    /// The share of its pages that was looked at, in percent.
    pub(super) percent: f64,
    /// Rows on these pages that are not full.
    pub(super) not_full: i64,
}

#[derive(FromRow)]
struct Found {
    #[sqlx(flatten)]
    row: Row,
    #[sqlx(flatten)]
    totals: Totals,
}

impl Sample {
    /// Looks, in transactions that write nothing and whose statements take ten seconds at most.
    pub(super) async fn take(conn: &mut PgConnection, args: &TopArgs) -> Result<Self, CommandError> {
        let mut away = Away::of_tables(conn, LONGEST).await?;
        let at = clock(&mut *read_only(conn, LONGEST).await?).await?;
        let none = Totals { percent: 100.0, not_full: 0 };
        let totals = STORAGES.map(|storage| (storage, none)).into();
        let mut sample = Self { at, totals, rows: BTreeMap::new(), said: None, away: None };
        for part in away.parts() {
            let mut tx = read_only(conn, LONGEST).await?;
            let found = tables(&mut tx, args, part).await;
            if found.is_ok() && sample.said.is_none() {
                sample.said = Some(Overrides::read(&mut tx).await?);
            }
            tx.commit().await?;
            for (storage, found) in away.answer(part, found)?.into_iter().flatten() {
                sample.add(storage, found, &args.filter);
            }
        }
        sample.away = away.check().err().map(|away| away.to_string());
        Ok(sample)
    }

    fn add(&mut self, storage: Storage, found: Vec<Found>, filter: &str) {
        if let (Some(Found { totals: more, .. }), Some(totals)) = (found.first(), self.totals.get_mut(&storage)) {
            totals.percent = totals.percent.min(more.percent);
            totals.not_full += more.not_full;
        }
        for Found { row, .. } in found {
            if row.name.contains(filter) || row.key.contains(filter) {
                self.rows.insert((row.name.clone(), row.key.clone(), row.shard, storage), row);
            }
        }
    }
}

/// The rows of a part in both tables: a look sees a call that writes to both in both or in neither.
async fn tables(tx: &mut PgConnection, args: &TopArgs, part: i16) -> Result<[(Storage, Vec<Found>); 2], sqlx::Error> {
    let mut found = STORAGES.map(|storage| (storage, Vec::new()));
    for (storage, rows) in &mut found {
        let sql = include_str!("rows.sql").replace(storage::table(Storage::Durable), storage::table(*storage));
        *rows = sqlx::query_as(AssertSqlSafe(sql))
            .bind(MOST_PAGES)
            .bind(i64::from(args.rows))
            .bind(storage::name(*storage))
            .bind(part)
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
    }
    Ok(found)
}

/// The content of the screen: one look at the tables, and the changes since the one before it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Frame {
    pub(super) at: DateTime<Utc>,
    /// How long ago the look before was; without one there are no rates.
    pub(super) seconds: Option<f64>,
    pub(super) tables: BTreeMap<Storage, Totals>,
    pub(super) keys: Vec<KeyLine>,
    /// Why these are a part of them only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) away: Option<String>,
}

/// One row of a key.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KeyLine {
    pub(super) storage: Storage,
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) shard: i16,
    /// Whether an operator has given the key other numbers, denies it, or lets it through.
    pub(super) overridden: bool,
    /// The share of the rate that a slow-down leaves the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate_share: Option<f64>,
    /// The tokens that can be spent now, if the limit is known, or it is a wallet; none of a meter.
    pub(super) remaining: Option<Tokens>,
    /// The tokens that are used and have not come back; where the limit is not known, as of when the row was written.
    pub(super) used: Tokens,
    /// The most that it can hold, if the limit is known.
    pub(super) capacity: Option<Tokens>,
    /// How many leases it has granted that have not ended.
    pub(super) leases: usize,
    /// Until a debt is cleared, if the limit is known.
    #[serde(rename = "clears_in_seconds", serialize_with = "seconds")]
    pub(super) clears_in: Option<Duration>,
    /// Until it is full, by the limits file or else by the definition that wrote it; none for never.
    #[serde(rename = "full_in_seconds", serialize_with = "seconds")]
    pub(super) full_in: Option<Duration>,
    /// Whether it was written since the look before; nothing is known of a row that was not looked at then.
    pub(super) written: Option<bool>,
    /// Tokens that left per second since the look before: at least so many, where the limit is not known.
    pub(super) taken_per_second: Option<f64>,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sort {
    /// The hottest keys first: most tokens taken since the look before.
    Taken,
    /// The most exhausted keys first: longest until full.
    Full,
    /// The deepest debts first: fewest tokens remaining. Of limits that are not known, the most used keys first.
    Remaining,
    /// By limit and key.
    Name,
}

impl Frame {
    pub(super) fn new(before: Option<&Sample>, now: &Sample, limits: Option<&Limits>) -> Self {
        let seconds = before.map(|before| until(now.at, before.at).as_secs_f64()).filter(|seconds| *seconds > 0.0);
        let line = |(id, row)| KeyLine::new(before.and_then(|before| before.rows.get(id)), row, now, seconds, limits);
        let keys = now.rows.iter().map(line).collect();
        Self { at: now.at.into(), seconds, tables: now.totals.clone(), keys, away: now.away.clone() }
    }

    pub(super) fn sorted(&self, sort: Sort) -> Vec<&KeyLine> {
        let mut lines: Vec<_> = self.keys.iter().collect();
        lines.sort_by(|one, other| sort.compare(one, other).then_with(|| Sort::Name.compare(one, other)));
        lines
    }
}

impl Sort {
    fn compare(self, one: &KeyLine, other: &KeyLine) -> Ordering {
        let taken = |line: &KeyLine| line.taken_per_second.unwrap_or_default();
        let remaining = |line: &KeyLine| line.remaining.map_or(-line.used.micros(), Tokens::micros);
        let full_in = |line: &KeyLine| line.full_in.unwrap_or(Duration::MAX);
        match self {
            Self::Taken => taken(other).total_cmp(&taken(one)).then(other.written.cmp(&one.written)),
            Self::Full => full_in(other).cmp(&full_in(one)),
            Self::Remaining => remaining(one).cmp(&remaining(other)),
            Self::Name => (&one.limit, &one.key, one.shard).cmp(&(&other.limit, &other.key, other.shard)),
        }
    }
}

impl KeyLine {
    fn new(before: Option<&Row>, row: &Row, sample: &Sample, seconds: Option<f64>, limits: Option<&Limits>) -> Self {
        let Sample { at: now, said, .. } = sample;
        let (now, live) = (*now, said.as_ref().map_or_else(Vec::new, |said| about_row(said, row, *now)));
        let (state, terms) = (row.state(), terms(limits, row, said.as_ref()));
        let full_at =
            terms.map_or(row.full_at(), |terms| Some(terms.full_at(&state)).filter(|at| *at < Timestamp::MAX));
        // A meter has use. So has what is below zero and not known.
        let kind = limits.and_then(|limits| limits.get(&row.name).ok()).map(|limit| limit.kind);
        let remaining = terms.filter(|_| kind != Some(LimitKind::Meter)).map(|terms| terms.balance(&state, now));
        let remaining = remaining.or(row.balance().filter(|balance| kind.is_none() && !balance.is_negative()));
        let owes = terms.filter(|_| remaining.is_some_and(Tokens::is_negative));
        // Time gives a wallet nothing.
        let clears_at = owes.map(|terms| terms.first_instant(&state, Tokens::ZERO)).filter(|at| *at < Timestamp::MAX);
        let refilled = terms.map_or(state.value, |terms| terms.refill(&state, now).value);
        let taken = |before: &Row| {
            let had = terms.map_or(before.state(), |terms| terms.refill(&before.state(), state.ts)).value;
            // Tokens that were given back do not count as taken.
            (about(had) - about(state.value)).max(0.0)
        };
        Self {
            storage: row.storage(),
            limit: row.name.clone(),
            key: row.key.clone(),
            shard: row.shard,
            overridden: !live.is_empty(),
            rate_share: live.iter().filter_map(|said| said.share(now.into())).min().map(|share| f64::from(share) / 1e6),
            remaining,
            used: Tokens::from_micros(refilled.micros().min(0).saturating_neg()),
            capacity: terms.map(|terms| terms.balance(&terms.full(now), now)).filter(|_| !state.list.is_wallet()),
            leases: live_leases(&state, now).count(),
            clears_in: clears_at.map(|at| until(at, now)).filter(|span| !span.is_zero()),
            full_in: full_at.map(|at| until(at, now)),
            written: before.map(|before| before.state() != state),
            taken_per_second: before.zip(seconds).map(|(before, seconds)| taken(before) / seconds),
        }
    }
}

/// The terms of a row, if the limit is known: one of several rows for a key holds its share of the limit.
fn terms(limits: Option<&Limits>, row: &Row, said: Option<&Overrides>) -> Option<Terms> {
    let limit = limits?.get(&row.name).ok()?;
    let key = Key::try_from(row.key.clone()).ok()?;
    let applied = said.and_then(|said| said.applied(limit, &key)).unwrap_or_default();
    let limit = applied.numbers.as_ref().unwrap_or(limit);
    Some(Terms::of(limit, &key).paused(applied.pause).shard(row.index(limit)?, limit.spec().shards.into()))
}

/// The overrides that are live for the key of a row.
fn about_row(said: &Overrides, row: &Row, now: Timestamp) -> Vec<Override> {
    Key::try_from(row.key.clone()).map_or_else(|_| Vec::new(), |key| said.live_for(&row.name, &key, now.into()))
}

#[expect(clippy::ref_option, reason = "the signature that serde's `serialize_with` calls")]
fn seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

/// A look that takes longer costs too much.
const LONGEST: Duration = Duration::from_secs(10);

/// Eight megabytes of each table, some ninety thousand rows: tens of milliseconds for each look at most.
const MOST_PAGES: f64 = 1024.0;

const STORAGES: [Storage; 2] = [Storage::Durable, Storage::Ephemeral];
