//! Each table takes the last value at each bound, and refuses the first one beyond it, by the name of a constraint.

mod definitions;
mod override_rows;
mod rows;
mod view;

use std::slice;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tollgate::LimitKind;

use crate::teller::run;
use crate::world::{OWNER, World};

/// A table, and a row that it takes: the columns, each with an expression.
struct Table {
    name: &'static str,
    row: &'static [(&'static str, &'static str)],
}

/// Other expressions for some of the columns.
type Changes<'c> = &'c [(&'c str, &'c str)];

impl Table {
    /// The constraint that keeps out a row with these changes, or the column that must not be null. `None` if the table
    /// takes the row. Afterwards the row is gone.
    async fn fault(&self, conn: &mut PgConnection, changes: Changes<'_>) -> Option<String> {
        let mut tx = conn.begin().await.unwrap();
        let inserted = sqlx::raw_sql(AssertSqlSafe(self.insert(changes))).execute(&mut *tx).await;
        tx.rollback().await.unwrap();
        let error = inserted.err()?;
        let database = error.as_database_error().unwrap_or_else(|| panic!("{error}: {changes:?}"));
        let of = database.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        let fault = of.constraint().or(of.column());
        Some(fault.unwrap_or_else(|| panic!("{error}: {changes:?}")).to_owned())
    }

    fn insert(&self, changes: Changes<'_>) -> String {
        let mut row = self.row.to_vec();
        for (column, value) in changes {
            row.retain(|(name, _)| name != column);
            row.push((column, value));
        }
        let (columns, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        format!("insert into tollgate.{} ({}) values ({})", self.name, columns.join(", "), values.join(", "))
    }

    async fn expect_taken(&self, conn: &mut PgConnection, changes: &[Changes<'_>]) {
        for changes in changes {
            assert_eq!(self.fault(conn, changes).await, None, "{}: {changes:?}", self.name);
        }
    }

    async fn expect_refused(&self, conn: &mut PgConnection, refused: &[(&str, Changes<'_>)]) {
        for (fault, changes) in refused {
            assert_eq!(self.fault(conn, changes).await.as_deref(), Some(*fault), "{}: {changes:?}", self.name);
        }
    }

    /// The table takes a row with each of these changes by itself.
    async fn expect_each_taken(&self, conn: &mut PgConnection, changes: Changes<'_>) {
        for change in changes {
            self.expect_taken(conn, &[slice::from_ref(change)]).await;
        }
    }

    /// One fault keeps out a row with each of these changes by itself.
    async fn expect_each_refused(&self, conn: &mut PgConnection, fault: &str, changes: Changes<'_>) {
        for change in changes {
            self.expect_refused(conn, &[(fault, slice::from_ref(change))]).await;
        }
    }

    /// Each of these columns must have a value.
    async fn expect_required(&self, conn: &mut PgConnection, columns: &[&str]) {
        for column in columns {
            self.expect_refused(conn, &[(column, &[(column, "null")])]).await;
        }
    }

    /// A second row needs another value in one of these columns.
    async fn expect_key(&self, conn: &mut PgConnection, key: &str, others: Changes<'_>) {
        run(conn, &self.insert(&[])).await;
        self.expect_refused(conn, &[(key, &[])]).await;
        self.expect_each_taken(conn, others).await;
    }
}

/// The functions say what the tables take.
#[tokio::test]
async fn a_limit_of_each_kind_has_a_definition_and_is_overridden_and_slowed_down_if_it_can_be() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for kind in LimitKind::ALL {
        let name = serde_json::to_string(&kind).unwrap().replace('"', "'");
        let [rate, period] = [!kind.is_money(), kind.has_period()].map(i32::from);
        run(&mut conn, &format!("select tollgate.define({name}, {name}, {rate}, '{period} s')")).await;
        for (call, is_taken) in [
            (format!("set_override({name}, 'k', rate => {rate}, reason => 'x')"), kind != LimitKind::Meter),
            (format!("slow_down({name}, 'k')"), kind.can_slow()),
        ] {
            let done = sqlx::raw_sql(AssertSqlSafe(format!("select tollgate.{call}"))).execute(&mut conn).await;
            let code = done.err().map(|error| error.as_database_error().unwrap().code().unwrap().into_owned());
            assert_eq!(code.as_deref(), (!is_taken).then_some("TG002"), "{call}");
        }
    }
}

/// A connection of the owner, who alone may write every table. Its path has no operators of strangers.
async fn owner(world: &World) -> PgConnection {
    let mut conn = world.connect_as(OWNER).await;
    run(&mut conn, "set search_path = pg_catalog").await;
    conn
}

/// An instant that no row holds, as SQL, and the last that one does.
const PAST_THE_END: &str = "timestamptz '262143-01-01 00:00:00+00'";
const LAST: &str = "timestamptz '262143-01-01 00:00:00+00' - interval '1 microsecond'";
/// PostgreSQL's first instant.
const FIRST: &str = "timestamptz '4714-11-24 00:00:00+00 BC'";
