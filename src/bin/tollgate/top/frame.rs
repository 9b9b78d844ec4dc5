use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use tollgate::algebra::{State, Terms, Timestamp};
use tollgate::{Key, Limits, Storage, Tokens};

use super::sample::{RowId, RowSample, Sample, TableSample, Totals};

/// What is to be shown: one look at the tables, and what has changed since the one before it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Frame {
    pub(super) at: DateTime<Utc>,
    /// How long ago the look before was; nothing can be said of rates without one.
    pub(super) seconds: Option<f64>,
    pub(super) tables: Vec<TableLine>,
    pub(super) keys: Vec<KeyLine>,
}

/// One table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TableLine {
    pub(super) name: String,
    pub(super) bytes: i64,
    pub(super) live: i64,
    pub(super) dead: i64,
    /// The share of updates that touched no index, since the look before or, without one, since the statistics were reset.
    pub(super) hot: Option<f64>,
    /// Rows inserted or updated per second.
    pub(super) written_per_second: Option<f64>,
    pub(super) deleted_per_second: Option<f64>,
    /// The share of pages that the following was counted on, in percent.
    pub(super) percent: f32,
    pub(super) counted: Totals,
}

/// One key of a limit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KeyLine {
    pub(super) storage: Storage,
    pub(super) limit: String,
    pub(super) key: String,
    pub(super) shard: i16,
    /// What can be spent now, if the limit is known; else the balance when the row was written.
    pub(super) balance: Tokens,
    /// The most that it can hold, if the limit is known.
    pub(super) capacity: Option<Tokens>,
    /// Until a debt is cleared, if the limit is known.
    #[serde(rename = "clears_in_seconds", serialize_with = "some_seconds")]
    pub(super) clears_in: Option<Duration>,
    /// Until it is full, by the limits file or else by the row's own word.
    #[serde(rename = "full_in_seconds", serialize_with = "seconds")]
    pub(super) full_in: Duration,
    /// Whether it was written since the look before; nothing is known of a row that was not looked at then.
    pub(super) written: Option<bool>,
    /// Tokens that left per second since the look before: at least so many, where the limit is not known.
    pub(super) taken_per_second: Option<f64>,
}

impl Frame {
    pub(super) fn new(before: Option<&Sample>, now: &Sample, limits: Option<&Limits>) -> Self {
        let seconds = before.map(|before| micros_to_seconds(now.now - before.now)).filter(|seconds| *seconds > 0.0);
        let of_before = |name: &str| before.and_then(|before| before.tables.iter().find(|table| table.name == name));
        let (mut tables, mut keys) = (Vec::new(), Vec::new());
        for table in &now.tables {
            let before = of_before(&table.name);
            tables.push(TableLine::new(before, table, seconds));
            let storage = if table.name == "buckets" { Storage::Ephemeral } else { Storage::Durable };
            for (id, row) in &table.rows {
                let before = before.and_then(|before| before.rows.get(id));
                let terms = terms(limits, storage, id);
                keys.push(KeyLine::new(storage, id, row, &Step { before, seconds, now: now.now, terms }));
            }
        }
        Self { at: Timestamp::from_micros(now.now).into(), seconds, tables, keys }
    }
}

impl TableLine {
    fn new(before: Option<&TableSample>, table: &TableSample, seconds: Option<f64>) -> Self {
        let (counts, old) = (table.counts, before.map(|before| before.counts));
        let since = |now: i64, then: i64| if now >= then { now - then } else { now };
        let rate = |now: i64, then: Option<i64>| Some(float(since(now, then?)) / seconds?);
        let (updated, hot) = match old {
            Some(old) if counts.updated > old.updated => {
                (since(counts.updated, old.updated), since(counts.updated_hot, old.updated_hot))
            }
            _ => (counts.updated, counts.updated_hot),
        };
        Self {
            name: table.name.clone(),
            bytes: counts.bytes,
            live: counts.live,
            dead: counts.dead,
            hot: (updated > 0).then(|| float(hot) / float(updated)),
            written_per_second: rate(counts.written, old.map(|old| old.written)),
            deleted_per_second: rate(counts.deleted, old.map(|old| old.deleted)),
            percent: table.percent,
            counted: table.totals,
        }
    }
}

/// What there is to compare a row with.
struct Step<'s> {
    before: Option<&'s RowSample>,
    seconds: Option<f64>,
    now: i64,
    /// Of the limit, if it is known, and its capacity.
    terms: Option<(Terms, Tokens)>,
}

impl KeyLine {
    fn new(storage: Storage, id: &RowId, row: &RowSample, step: &Step<'_>) -> Self {
        let (state, now) = (row.state(), Timestamp::from_micros(step.now));
        let (balance, clears_in, full_at) = match &step.terms {
            Some((terms, _)) => {
                let clears_at = (state.value < Tokens::ZERO).then(|| terms.first_instant(state, Tokens::ZERO));
                (terms.refill(state, now).value, clears_at, terms.full_at(state).micros())
            }
            None => (state.value, None, row.full_at),
        };
        Self {
            storage,
            limit: id.name.clone(),
            key: id.key.clone(),
            shard: id.shard,
            balance,
            capacity: step.terms.map(|(_, capacity)| capacity),
            clears_in: clears_in.map(|at| until(at.micros(), step.now)).filter(|span| !span.is_zero()),
            full_in: until(full_at, step.now),
            written: step.before.map(|before| before.version != row.version),
            taken_per_second: step.taken(state),
        }
    }
}

impl Step<'_> {
    fn taken(&self, state: State) -> Option<f64> {
        let (before, seconds) = (self.before?.state(), self.seconds?);
        let had = self.terms.map_or(before.value, |(terms, _)| terms.refill(before, state.ts).value);
        // What was given back is nothing taken.
        let micros = had.micros().saturating_sub(state.value.micros()).max(0);
        Some(float(micros) / 1e6 / seconds)
    }
}

impl RowSample {
    fn state(&self) -> State {
        State { value: Tokens::from_micros(self.micros), ts: Timestamp::from_micros(self.since) }
    }
}

fn terms(limits: Option<&Limits>, storage: Storage, id: &RowId) -> Option<(Terms, Tokens)> {
    let limit = limits?.get(&id.name).ok()?;
    let spec = limit.spec();
    let key = Key::try_from(id.key.clone()).ok()?;
    // One of several rows for a key holds its share of the limit.
    let index = limit.shard_numbers().position(|number| i16::try_from(number) == Ok(id.shard))?;
    let terms = Terms::of(limit, &key).shard(index, limit.shard_numbers().len());
    (spec.storage == storage).then(|| (terms, terms.full(Timestamp::MIN).value))
}

fn seconds<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(span.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "the signature that serde's `serialize_with` calls")]
fn some_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

fn until(instant: i64, now: i64) -> Duration {
    Duration::from_micros(u64::try_from(instant.saturating_sub(now)).unwrap_or_default())
}

fn micros_to_seconds(micros: i64) -> f64 {
    float(micros) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "figures to be looked at")]
fn float(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::sample::Counts;
    use super::*;

    const SECOND: i64 = 1_000_000;
    const NOON: i64 = 1_700_000_000 * SECOND;

    /// A look, so many seconds after noon, at keys with balances at instants, by transactions.
    fn look(at: i64, written: i64, rows: &[(&str, i64, i64, &str)]) -> Sample {
        let row = |(key, tokens, since, version): &(&str, i64, i64, &str)| {
            let id = RowId { name: "messages".to_owned(), key: (*key).to_owned(), shard: 0 };
            // Ten a minute, and twenty at most.
            let full_at = NOON + since * SECOND + (20 - tokens) * 6 * SECOND;
            let since = NOON + since * SECOND;
            (id, RowSample { micros: tokens * 1_000_000, since, full_at, version: (*version).to_owned() })
        };
        let counts =
            Counts { bytes: 81_920, live: 3, dead: 1, written, updated: written, updated_hot: written / 2, deleted: 7 };
        let totals = Totals { wanting: 3, low: 1, owing: 1, owed: 4e6 };
        let rows: BTreeMap<_, _> = rows.iter().map(row).collect();
        let table = TableSample { name: "rate_limits".to_owned(), percent: 50.0, counts, totals, rows };
        Sample { now: NOON + at * SECOND, tables: vec![table] }
    }

    /// Ada spent ten of her fifteen within two seconds, bob owes four, eve rests.
    pub(in super::super) fn two_looks() -> [Sample; 2] {
        let before = look(0, 100, &[("ada", 15, 0, "1"), ("bob", -4, -12, "2"), ("eve", 19, -1, "3")]);
        let now = look(2, 140, &[("ada", 5, 1, "4"), ("bob", -4, -12, "2"), ("eve", 19, -1, "3")]);
        [before, now]
    }

    pub(in super::super) fn limits() -> Limits {
        Limits::from_toml("[messages]\nkind = \"token_bucket\"\nrate = 10\nper = \"1m\"\ncapacity = 20\n").unwrap()
    }

    fn line<'f>(frame: &'f Frame, key: &str) -> &'f KeyLine {
        frame.keys.iter().find(|line| line.key == key).unwrap()
    }

    #[test]
    fn what_was_taken_is_at_least_what_is_missing_and_exact_where_the_limit_is_known() {
        let [before, now] = two_looks();
        let frame = Frame::new(Some(&before), &now, None);
        assert_eq!(line(&frame, "ada").taken_per_second, Some(5.0));
        // A sixth of a token came back in the second before it was written.
        let frame = Frame::new(Some(&before), &now, Some(&limits()));
        assert!((line(&frame, "ada").taken_per_second.unwrap() - 10.166_666 / 2.0).abs() < 1e-9);
        assert_eq!((line(&frame, "ada").written, line(&frame, "bob").written), (Some(true), Some(false)));
        assert_eq!(line(&frame, "eve").taken_per_second, Some(0.0));
    }

    #[test]
    fn a_balance_is_as_of_now_where_the_limit_is_known_and_else_as_of_the_row() {
        let [_, now] = two_looks();
        let frame = Frame::new(None, &now, None);
        let bob = line(&frame, "bob");
        assert_eq!((bob.balance, bob.clears_in), (Tokens::from_micros(-4_000_000), None));
        let frame = Frame::new(None, &now, Some(&limits()));
        let bob = line(&frame, "bob");
        // Fourteen seconds give back two and a third; the debt is cleared after 24.
        assert_eq!((bob.balance, bob.clears_in), (Tokens::from_micros(-1_666_667), Some(Duration::from_secs(10))));
        assert_eq!(bob.full_in, Duration::from_secs(130));
        assert_eq!((frame.seconds, bob.taken_per_second), (None, None));
    }

    #[test]
    fn what_a_table_counts_is_told_per_second() {
        let [before, now] = two_looks();
        let table = &Frame::new(Some(&before), &now, None).tables[0];
        assert_eq!((table.written_per_second, table.deleted_per_second, table.hot), (Some(20.0), Some(0.0), Some(0.5)));
        // Statistics that were reset in between count from there.
        let table = &Frame::new(Some(&now), &Sample { now: now.now + SECOND, ..before }, None).tables[0];
        assert_eq!(table.written_per_second, Some(100.0));
        assert_eq!(Frame::new(None, &now, None).tables[0].written_per_second, None);
    }
}
