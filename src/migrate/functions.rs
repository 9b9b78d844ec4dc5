//! The functions for callers without the library: who may call them, and whether they still are what migrations made.

use std::collections::BTreeMap;

use sqlx::{FromRow, PgConnection};

use super::{MigrateError, failed, runner};

/// For what a role calls the functions of the schema `tollgate`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Callers {
    /// To be limited: they ask, they look, and they make triggers that ask.
    Applications,
    /// To say what others have: they define limits and override them, give and take tokens, and settle. Whoever may do
    /// so can grant itself whatever it likes.
    Operators,
}

impl Callers {
    const fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Applications => &[
                "balance",
                "check",
                "check_all",
                "consume",
                "consume_all",
                "consume_global",
                "granted",
                "key",
                "limit_inserts",
                "limit_rows",
                "request",
                "request_global",
                "reserve",
                "reserve_all",
            ],
            Self::Operators => {
                &["cancel", "credit", "debit", "define", "remove_override", "reset", "set_override", "settle"]
            }
        }
    }
}

/// The statements that let a role call one of the two sets of functions. It needs no right on the tables, and gets
/// none.
///
/// Nobody but the owner may call any of them before.
#[must_use]
pub fn grants(role: &str, callers: Callers) -> String {
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let functions: Vec<_> = callers.functions().iter().map(|function| format!("tollgate.{function}")).collect();
    let functions = functions.join(", ");
    format!("grant usage on schema tollgate to {role};\ngrant execute on function {functions} to {role};\n")
}

/// Fails for the first function that is missing, or has another text than in the migrations.
pub(super) async fn refuse_edited(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let present = sqlx::raw_sql(PRESENT).fetch_all(conn).await;
    let present = present.and_then(|rows| rows.iter().map(<(String, String)>::from_row).collect());
    let present: BTreeMap<String, String> = present.map_err(failed("read the catalogue"))?;
    let migrations = runner();
    let texts = migrations.get_migrations().iter().filter_map(|migration| migration.sql()).flat_map(bodies);
    // Of several texts the last one counts.
    let known: BTreeMap<_, _> = texts.collect();
    match known.into_iter().find(|(name, body)| present.get(*name).map(String::as_str) != Some(*body)) {
        Some((name, _)) => Err(MigrateError::EditedFunction { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// The name and the body of each function that a migration makes.
fn bodies(migration: &str) -> impl Iterator<Item = (&str, &str)> {
    migration.split("\ncreate function tollgate.").skip(1).filter_map(|text| {
        let (name, rest) = text.split_once('(')?;
        Some((name, rest.split("$$").nth(1)?))
    })
}

const PRESENT: &str = "
    select p.proname::text, p.prosrc
      from pg_catalog.pg_proc p
     where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid";
