use super::found::Found;
use crate::algebra::{Flow, Timestamp};
use crate::limit::Storage;
use crate::plan::{Change, Need, Row};

/// Rows as the arrays that statements bind.
pub(super) struct Columns<'r> {
    pub(super) names: Vec<&'r str>,
    pub(super) keys: Vec<&'r str>,
    pub(super) shards: Vec<i16>,
}

impl<'r> Columns<'r> {
    pub(super) fn of(rows: impl IntoIterator<Item = &'r Row>) -> Self {
        let mut columns = Self { names: Vec::new(), keys: Vec::new(), shards: Vec::new() };
        for row in rows {
            columns.names.push(row.name());
            columns.keys.push(row.key().as_str());
            columns.shards.push(shard(row));
        }
        columns
    }
}

/// What changed in one table.
pub(super) struct Written<'r> {
    pub(super) at: Columns<'r>,
    pub(super) values: Vec<i64>,
    pub(super) instants: Vec<Timestamp>,
    pub(super) full_at: Vec<Timestamp>,
}

impl<'r> Written<'r> {
    pub(super) fn of(table: Storage, rows: &'r [Row], changes: &[Change]) -> Self {
        let changes: Vec<_> = changes.iter().filter(|change| rows[change.row].storage() == table).collect();
        Self {
            at: Columns::of(changes.iter().map(|change| &rows[change.row])),
            values: changes.iter().map(|change| change.state.value.micros()).collect(),
            instants: changes.iter().map(|change| change.state.ts).collect(),
            full_at: changes.iter().map(|change| change.full_at).collect(),
        }
    }
}

/// What changed in one table, with what it was before.
pub(super) struct Swapped<'r> {
    pub(super) at: Columns<'r>,
    pub(super) tids: Vec<&'r str>,
    pub(super) old_values: Vec<i64>,
    pub(super) old_instants: Vec<Timestamp>,
    pub(super) values: Vec<i64>,
    pub(super) instants: Vec<Timestamp>,
    pub(super) full_at: Vec<Timestamp>,
    pub(super) parts: Vec<i32>,
}

impl<'r> Swapped<'r> {
    /// Leaves out what was absent: it cannot be swapped.
    pub(super) fn of(rows: &'r [Row], found: &'r Found, changes: &[(Change, i32)]) -> Self {
        let place = |change: &Change| Some((found.states[change.row]?, found.tids[change.row].as_deref()?));
        let changes: Vec<_> = changes
            .iter()
            .filter_map(|(change, part)| place(change).map(|(old, tid)| (change, old, tid, *part)))
            .collect();
        Self {
            at: Columns::of(changes.iter().map(|(change, ..)| &rows[change.row])),
            tids: changes.iter().map(|(_, _, tid, _)| *tid).collect(),
            old_values: changes.iter().map(|(_, old, ..)| old.value.micros()).collect(),
            old_instants: changes.iter().map(|(_, old, ..)| old.ts).collect(),
            values: changes.iter().map(|(change, ..)| change.state.value.micros()).collect(),
            instants: changes.iter().map(|(change, ..)| change.state.ts).collect(),
            full_at: changes.iter().map(|(change, ..)| change.full_at).collect(),
            parts: changes.iter().map(|(.., part)| *part).collect(),
        }
    }
}

/// What a statement needs to tell, without a lock and in floats, that a row is evidently short of a balance.
///
/// Only a hint: it decides whether a row is locked, never whether a call is granted.
#[derive(Default)]
pub(super) struct Hint {
    /// In micro-tokens; `None` for no hint.
    pub(super) balance: Option<i64>,
    /// Micro-tokens per period.
    pub(super) rate: f64,
    /// In seconds.
    pub(super) period: f64,
    pub(super) stepped: bool,
    /// In seconds since the Unix epoch; `None` where steps are counted from the row itself.
    pub(super) phase: Option<f64>,
}

impl Hint {
    pub(super) fn of(need: Option<&Need>) -> Self {
        let Some(Need { balance, terms }) = need else {
            // A period of zero would be divided by, even without a balance to compare with.
            return Self { period: 1.0, ..Self::default() };
        };
        Self {
            balance: Some(balance.micros()),
            rate: float(terms.rate),
            period: seconds(terms.period),
            stepped: terms.flow != Flow::Continuous,
            phase: match terms.flow {
                Flow::Continuous | Flow::FirstUse => None,
                Flow::Grid { phase } => Some(seconds(phase)),
            },
        }
    }
}

/// Hints for several rows.
#[derive(Default)]
pub(super) struct Hints {
    pub(super) balances: Vec<Option<i64>>,
    pub(super) rates: Vec<f64>,
    pub(super) periods: Vec<f64>,
    pub(super) stepped: Vec<bool>,
    pub(super) phases: Vec<Option<f64>>,
}

impl Hints {
    pub(super) fn of(rows: &[Row], needs: Option<&[Need]>) -> Self {
        let mut hints = Self::default();
        for place in 0..rows.len() {
            let hint = Hint::of(needs.and_then(|needs| needs.get(place)));
            hints.balances.push(hint.balance);
            hints.rates.push(hint.rate);
            hints.periods.push(hint.period);
            hints.stepped.push(hint.stepped);
            hints.phases.push(hint.phase);
        }
        hints
    }
}

/// A shard as its column holds it. Limits have far fewer, so the fallback is never taken.
pub(super) fn shard(row: &Row) -> i16 {
    i16::try_from(row.shard()).unwrap_or(i16::MAX)
}

fn seconds(micros: i64) -> f64 {
    float(micros) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "a hint")]
fn float(number: i64) -> f64 {
    number as f64
}
