//! Statements about stored calls. A transaction that writes a stored call has locked the rows of its limits before, as
//! all do.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query_file};

use super::columns::{Corrupt, index, part_number};
use super::fault::{database, unreaped, unwritten};

use super::{Held, Store};
use crate::algebra::Timestamp;
use crate::call::{CallId, StoredCall};
use crate::error::{Error, Step};
use crate::key::Key;
use crate::plan::{CallWrite, Plan};
use crate::tokens::Tokens;

/// Calls that have lapsed.
#[derive(Debug)]
pub(crate) struct Lapsed {
    pub(crate) calls: Vec<StoredCall>,
    /// The number of other lapsed calls, which this release cannot read.
    pub(crate) unreadable: u64,
    /// When the last of all these calls had lapsed.
    pub(crate) last: Option<Timestamp>,
}

/// Calls, as the arrays that statements bind.
#[derive(Default)]
pub(super) struct CallColumns<'c> {
    pub(super) names: Vec<&'c str>,
    pub(super) keys: Vec<&'c str>,
    pub(super) ids: Vec<&'c str>,
    pub(super) asked: Vec<i64>,
    pub(super) charges: Vec<String>,
    pub(super) charged_at: Vec<Timestamp>,
    pub(super) lapses_at: Vec<Option<Timestamp>>,
    pub(super) kept_until: Vec<Timestamp>,
    pub(super) used: Vec<bool>,
    pub(super) answers: Vec<Option<String>>,
}

/// Runs a statement on the calls of some names of one part, and yields its rows.
macro_rules! on_calls {
    ($store:ident, $names:expr, $file:literal $(, $($bind:tt)*)?) => {{
        let names = $names;
        let limits: Vec<_> = names.iter().map(|name| name.name()).collect();
        let keys: Vec<_> = names.iter().map(|name| name.key().as_str()).collect();
        let ids: Vec<_> = names.iter().map(|name| name.id()).collect();
        let part = part_number(names[0].part);
        $store
            .fetch(query_file!($file, part, &limits as &[&str], &keys as &[&str], &ids as &[&str] $(, $($bind)*)?))
            .await
    }};
}

/// Runs a statement on calls of one part as they were read, and yields its rows.
macro_rules! on_read_calls {
    ($store:ident, $calls:expr, $file:literal) => {{
        let calls: &[&StoredCall] = $calls;
        let names: Vec<_> = calls.iter().map(|call| &call.name).collect();
        let charged_at: Vec<_> = calls.iter().map(|call| call.charged_at).collect();
        let reported: Vec<_> = calls.iter().map(|call| call.reported.micros()).collect();
        on_calls!($store, &names, $file, &charged_at as &[Timestamp], &reported)
    }};
}

impl Store<'_> {
    /// Reads the calls that a plan must know, without a lock; `None` for a missing one. It does not read a call that a
    /// settlement may assume, because [`swap`](Self::swap) checks it.
    pub(super) async fn peek_calls(&mut self, plan: &Plan) -> Result<Vec<Option<StoredCall>>, Error> {
        let (mut known, mut asked) = (plan.assumed(), plan.asked_names());
        asked.retain(|name| known[*name].is_none());
        for (names, places) in by_part(plan, &asked) {
            let rows = on_calls!(self, &names, "src/store/sql/peek_calls.sql");
            add(&mut known, &names, places, rows).map_err(failed(Step::Read, names[0]))?;
        }
        Ok(known)
    }

    /// Locks the calls that a plan must know, and reads them; `None` for a missing one.
    pub(super) async fn lock_calls(&mut self, plan: &Plan) -> Result<Vec<Option<StoredCall>>, Error> {
        let (mut known, asked) = (vec![None; plan.names().len()], plan.asked_names());
        for (names, places) in by_part(plan, &asked) {
            let rows = on_calls!(self, &names, "src/store/sql/lock_calls.sql");
            add(&mut known, &names, places, rows).map_err(failed(Step::Lock, names[0]))?;
        }
        Ok(known)
    }

    /// Writes the changes of calls that the transaction has locked, and inserts new ones.
    pub(crate) async fn save_calls(&mut self, held: &Held<'_>, changes: &[CallWrite]) -> Result<(), Error> {
        let mut changes: Vec<_> = changes.iter().collect();
        changes.sort_by_key(|change| change.name());
        let names = held.names;
        for piece in changes.chunk_by(|one, other| names[one.name()].part == names[other.name()].part) {
            let some = |wanted: fn(&CallWrite) -> bool| -> Vec<&StoredCall> {
                piece
                    .iter()
                    .filter(|change| wanted(change))
                    .filter_map(|change| held.known[change.name()].as_ref())
                    .collect()
            };
            let new = CallColumns::of(piece.iter().filter_map(|change| change.row()));
            let used = some(|change| matches!(change, CallWrite::Use { .. }));
            let gone = some(|change| matches!(change, CallWrite::Delete { .. }));
            let first = &names[piece[0].name()];
            if !new.names.is_empty() {
                let written = self.insert_calls(first.part, &new).await;
                self.expect(written, new.names.len(), first)?;
            }
            if !used.is_empty() {
                let written = on_read_calls!(self, &used, "src/store/sql/use_calls.sql");
                self.expect(written, used.len(), first)?;
            }
            if !gone.is_empty() {
                let written = on_read_calls!(self, &gone, "src/store/sql/delete_calls.sql");
                self.expect(written, gone.len(), first)?;
            }
        }
        Ok(())
    }

    /// Fails if calls were not written. Either others changed them in a part that was moved, or a trigger or a policy
    /// keeps them from being written.
    fn expect(&self, written: Result<Vec<PgRow>, sqlx::Error>, count: usize, name: &CallId) -> Result<(), Error> {
        let written = written.map_err(failed(Step::Save, name))?;
        match written.len() == count {
            true => Ok(()),
            false if self.is_distributed() => Err(Error::Moved { limit: name.name.clone().into() }),
            false => Err(unwritten(&name.name)),
        }
    }

    async fn insert_calls(&mut self, part: u16, new: &CallColumns<'_>) -> Result<Vec<PgRow>, sqlx::Error> {
        self.fetch(query_file!(
            "src/store/sql/insert_calls.sql",
            part_number(part),
            &new.names as &[&str],
            &new.keys as &[&str],
            &new.ids as &[&str],
            &new.asked,
            &new.charges,
            &new.charged_at as &[Timestamp],
            &new.lapses_at as &[Option<Timestamp>],
            &new.kept_until as &[Timestamp],
            &new.used,
            &new.answers as &[Option<String>]
        ))
        .await
    }

    /// Stores the use of a call so far, outside of a transaction.
    pub(crate) async fn report_call(&mut self, call: &CallId, used: Tokens) -> Result<(), Error> {
        let (part, key) = (part_number(call.part), call.key().as_str());
        let reported = query_file!("src/store/sql/report_call.sql", part, call.name(), key, call.id(), used.micros());
        let reported = self.fetch(reported).await.map_err(failed(Step::Save, call))?;
        if reported.is_empty() { Err(Error::ReceiptUsed { limit: call.name.clone().into() }) } else { Ok(()) }
    }

    /// The first calls of a part that have lapsed since an instant, behind so many that were left. It locks none.
    pub(crate) async fn find_lapsed(
        &mut self,
        part: u16,
        since: Timestamp,
        left: u64,
        most: u32,
    ) -> Result<Lapsed, Error> {
        let rows = query_file!(
            "src/store/sql/find_lapsed.sql",
            part_number(part),
            since as Timestamp,
            i64::from(most),
            self.at as Option<Timestamp>,
            i64::try_from(left).unwrap_or(i64::MAX)
        );
        let rows = self.fetch(rows).await.map_err(unreaped)?;
        let name = |row: &PgRow| {
            let (name, key, id): (String, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let key = Key::try_from(key).map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok::<_, sqlx::Error>(CallId { part, name: name.into(), key, id: id.into() })
        };
        let last = rows.last().map(|row| row.try_get(8)).transpose().map_err(unreaped)?;
        let mut lapsed = Lapsed { calls: Vec::with_capacity(rows.len()), unreadable: 0, last };
        for row in &rows {
            match name(row).and_then(|name| call(name, row, 3)) {
                Ok(call) => lapsed.calls.push(call),
                // A later release may have written it.
                Err(error) => {
                    lapsed.unreadable += 1;
                    let [limit, id]: [String; 2] = [0, 2].map(|column| row.try_get(column).unwrap_or_default());
                    tracing::warn!(limit, id, %error, "a lapsed call cannot be read");
                }
            }
        }
        Ok(lapsed)
    }
}

impl<'c> CallColumns<'c> {
    pub(super) fn of(rows: impl Iterator<Item = &'c StoredCall>) -> Self {
        let mut new = Self::default();
        for row in rows {
            new.names.push(row.name.name());
            new.keys.push(row.name.key().as_str());
            new.ids.push(row.name.id());
            new.asked.push(row.asked);
            new.charges.push(json(&row.charges));
            new.answers.push(row.answer.as_ref().map(json));
            new.charged_at.push(row.charged_at);
            new.lapses_at.push(row.lapses_at);
            new.kept_until.push(row.kept_until);
            new.used.push(row.used);
        }
        new
    }
}

/// Adds the calls that were found for some names, by numbers that count from 1.
fn add(
    known: &mut [Option<StoredCall>],
    names: &[&CallId],
    places: &[usize],
    found: Result<Vec<PgRow>, sqlx::Error>,
) -> Result<(), sqlx::Error> {
    for row in found? {
        let number = index(row.try_get(0)?)?;
        known[places[number]] = Some(call(names[number].clone(), &row, 1)?);
    }
    Ok(())
}

/// Reads a call, whose columns begin at a number.
fn call(name: CallId, row: &PgRow, first: usize) -> Result<StoredCall, sqlx::Error> {
    let (charges, answer): (String, Option<String>) = (row.try_get(first + 1)?, row.try_get(first + 2)?);
    let unreadable = |_| sqlx::Error::Decode(Box::new(Corrupt { fault: "a call cannot be read", place: 0 }));
    Ok(StoredCall {
        name,
        asked: row.try_get(first)?,
        charges: serde_json::from_str(&charges).map_err(unreadable)?,
        answer: answer.as_deref().map(serde_json::from_str).transpose().map_err(unreadable)?,
        charged_at: row.try_get(first + 3)?,
        reported: Tokens::from_micros(row.try_get(first + 4)?),
        lapses_at: row.try_get(first + 5)?,
        kept_until: row.try_get(first + 6)?,
        used: row.try_get(first + 7)?,
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("records of numbers and texts become JSON")
}

/// Some names of a plan, in lock order, and their places, divided by part: one statement for each piece.
fn by_part<'p>(plan: &'p Plan, places: &'p [usize]) -> impl Iterator<Item = (Vec<&'p CallId>, &'p [usize])> {
    let name = |place: &usize| &plan.names()[*place];
    let pieces = places.chunk_by(move |one, other| name(one).part == name(other).part);
    pieces.map(move |places| (places.iter().map(name).collect(), places))
}

fn failed(step: Step, name: &CallId) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| database(step, name.name(), source)
}
