//! Statements that write rows which the transaction holds.

use sqlx::{Row as _, query_file};

use super::calls::CallColumns;
use super::columns::{self, Columns, Values};
use super::fault::unwritten;
use super::{Store, failed};
use crate::algebra::{State, Timestamp};
use crate::call::{CallId, StoredCall};
use crate::error::{Error, Step};
use crate::limit::Storage;
use crate::plan::{CallWrite, RowId, RowWrite};

/// The rows and calls that a transaction has locked, as it read them.
#[derive(Clone, Copy)]
pub(crate) struct Held<'h> {
    pub(crate) rows: &'h [RowId],
    /// The state of each row; `None` if this transaction has inserted it.
    pub(crate) states: &'h [Option<State>],
    pub(crate) names: &'h [CallId],
    pub(crate) known: &'h [Option<StoredCall>],
}

/// Runs a statement that writes rows of both tables, whose changes it binds before anything else. Returns how many it
/// wrote.
macro_rules! save {
    ($store:ident, $rows:expr, $changes:expr, $xid:expr, $file:literal $(, $($bind:tt)*)?) => {{
        let [(ephemeral, ephemeral_values), (durable, durable_values)] = by_table($rows, $changes);
        let written = $store.fetch(query_file!(
            $file, columns::part(&$rows[$changes[0].row]),
            &ephemeral.names as &[&str], &ephemeral.keys as &[&str], &ephemeral.shards, &ephemeral_values.amounts,
            &ephemeral_values.instants as &[Timestamp], &ephemeral_values.full_at as &[Timestamp],
            &durable.names as &[&str], &durable.keys as &[&str], &durable.shards, &durable_values.amounts,
            &durable_values.instants as &[Timestamp], &durable_values.full_at as &[Timestamp], $xid,
            &ephemeral_values.lists.numbers, &ephemeral_values.lists.firsts as &[Option<i32>],
            &ephemeral_values.lists.lasts as &[Option<i32>], &durable_values.lists.numbers,
            &durable_values.lists.firsts as &[Option<i32>], &durable_values.lists.lasts as &[Option<i32>]
            $(, $($bind)*)?
        ));
        let written: i64 = written.await?.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        usize::try_from(written).map_err(|error| sqlx::Error::Decode(error.into()))
    }};
}

impl Store<'_> {
    /// Writes the changes of rows that transaction `xid` holds, and of locked or new calls, in one statement: all or
    /// nothing, even if the caller goes away. On Citus it takes several statements. If the caller goes away in between,
    /// and commits, nothing is given back twice, and no id stands for a charge that was not made.
    pub(crate) async fn save(
        &mut self,
        held: &Held<'_>,
        changes: &[RowWrite],
        calls: &[CallWrite],
        xid: i64,
    ) -> Result<(), Error> {
        let Some(xid) = self.provable(xid) else {
            let (new, used): (Vec<_>, Vec<_>) = calls.iter().cloned().partition(|call| call.row().is_some());
            self.save_calls(held, &used).await?;
            self.save_on_citus(held, changes).await?;
            return self.save_calls(held, &new).await;
        };
        let first = &held.rows[changes[0].row];
        let written = match (changes, calls) {
            ([RowWrite { row, state }], []) => self.save_one(&held.rows[*row], state, Some(xid), None).await,
            (_, []) => self.save_rows(held.rows, changes, xid).await,
            _ => self.save_rows_and_calls(held, changes, calls, xid).await,
        };
        if written.map_err(failed(Step::Save, first))? != changes.len() + calls.len() {
            // The statement ran in another transaction than the one that holds the rows, or something keeps the rows
            // from being written.
            self.prove_transaction(first.name()).await?;
            return Err(unwritten(&first.name));
        }
        Ok(())
    }

    /// Writes the changes, table by table and part by part, of rows that still are as they were read. A lock does not
    /// hold a part on its node, and each node counts its own transactions.
    async fn save_on_citus(&mut self, held: &Held<'_>, changes: &[RowWrite]) -> Result<(), Error> {
        let row = |change: &RowWrite| &held.rows[change.row];
        let read = |change: &RowWrite| held.states[change.row].as_ref();
        let place = |change: &RowWrite| (row(change).storage, row(change).part);
        for piece in changes.chunk_by(|one, other| place(one) == place(other)) {
            let first = row(&piece[0]);
            let written = match piece {
                [change] => self.save_one(first, &change.state, None, read(change)).await,
                _ => self.save_piece(held, piece).await,
            };
            // They have moved: only a trigger could keep a row from being written, too, and Citus takes none.
            if written.map_err(failed(Step::Save, first))? != piece.len() {
                return Err(Error::Moved { limit: first.name.clone().into() });
            }
        }
        Ok(())
    }

    /// Writes one row, if it is as it was read: without a state to compare, whatever it is. Returns how many rows were
    /// written.
    async fn save_one(
        &mut self,
        row: &RowId,
        state: &State,
        xid: Option<i64>,
        read: Option<&State>,
    ) -> Result<usize, sqlx::Error> {
        let rows = fetch!(
            self,
            row.storage(),
            "src/store/sql/save_one.sql",
            "src/store/sql/ephemeral/save_one.sql",
            columns::part(row),
            row.name(),
            row.key().as_str(),
            columns::shard(row),
            state.value.micros(),
            state.ts as Timestamp,
            state.full_at as Timestamp,
            xid as Option<i64>,
            state.list.to_column() as Option<Vec<i64>>,
            read.map(|read| read.value.micros()) as Option<i64>,
            read.and_then(comparable) as Option<Timestamp>,
            read.and_then(|read| read.list.to_column()) as Option<Vec<i64>>
        );
        Ok(rows?.len())
    }

    /// Writes rows of one table and part, all or none, if they are as they were read. Returns how many were written.
    async fn save_piece(&mut self, held: &Held<'_>, changes: &[RowWrite]) -> Result<usize, sqlx::Error> {
        let rows: Vec<_> = changes.iter().map(|change| held.rows[change.row].clone()).collect();
        let read = || changes.iter().map(|change| held.states[change.row].as_ref());
        let (values, rows) = (Values::of(changes.iter()), rows.as_slice());
        let written = on_rows!(
            self,
            rows,
            "src/store/sql/save_citus.sql",
            "src/store/sql/ephemeral/save_citus.sql",
            &values.amounts,
            &values.instants as &[Timestamp],
            &values.full_at as &[Timestamp],
            &values.lists.numbers,
            &values.lists.firsts as &[Option<i32>],
            &values.lists.lasts as &[Option<i32>],
            &read().map(|read| Some(read?.value.micros())).collect::<Vec<_>>() as &[Option<i64>],
            &read().map(|read| comparable(read?)).collect::<Vec<_>>() as &[Option<Timestamp>],
            &read().map(|read| read?.list.to_text()).collect::<Vec<_>>() as &[Option<String>]
        );
        Ok(written?.len())
    }

    /// Writes several rows, and returns how many were written.
    async fn save_rows(&mut self, rows: &[RowId], changes: &[RowWrite], xid: i64) -> Result<usize, sqlx::Error> {
        save!(self, rows, changes, xid, "src/store/sql/save_rows.sql")
    }

    /// Writes rows and calls, and returns how many were written.
    async fn save_rows_and_calls(
        &mut self,
        held: &Held<'_>,
        changes: &[RowWrite],
        calls: &[CallWrite],
        xid: i64,
    ) -> Result<usize, sqlx::Error> {
        let new = CallColumns::of(calls.iter().filter_map(CallWrite::row));
        let read: Vec<_> = calls.iter().filter(|call| call.row().is_none()).collect();
        let of_read = || read.iter().map(|call| &held.names[call.name()]);
        let limits: Vec<_> = of_read().map(CallId::name).collect();
        let keys: Vec<_> = of_read().map(|name| name.key().as_str()).collect();
        let ids: Vec<_> = of_read().map(CallId::id).collect();
        let kept: Vec<_> = read.iter().map(|call| matches!(call, CallWrite::Use { .. })).collect();
        save!(
            self,
            held.rows,
            changes,
            xid,
            "src/store/sql/save_calls.sql",
            &limits as &[&str],
            &keys as &[&str],
            &ids as &[&str],
            &kept,
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
        )
    }

    /// The transaction, if a statement can compare it with its own. On Citus it cannot: each node counts its own
    /// transactions.
    pub(super) fn provable(&self, xid: i64) -> Option<i64> {
        (!self.is_distributed()).then_some(xid)
    }
}

/// The instant of a row that was read, to compare with the row; `None` if the row may hold a later one.
fn comparable(read: &State) -> Option<Timestamp> {
    Some(read.ts).filter(|ts| *ts < Timestamp::MAX)
}

/// The changes of `tollgate.ephemeral`, and those of `tollgate.durable`, as arrays.
fn by_table<'r>(rows: &'r [RowId], changes: &[RowWrite]) -> [(Columns<'r>, Values); 2] {
    [Storage::Ephemeral, Storage::Durable].map(|table| {
        let changes = changes.iter().filter(|change| rows[change.row].storage() == table);
        (Columns::of(changes.clone().map(|change| &rows[change.row])), Values::of(changes))
    })
}
