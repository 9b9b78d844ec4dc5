//! Objects that strangers own in the schema, or have tied to the tables there.
//!
//! A role that may create in the database can make the schema before anybody migrates, with a history whose trigger
//! would run with the rights of whoever migrates. Until its right is taken back, a role that may create in the schema
//! can leave a function there that a call of ours fits better than our own. So these statements touch something only
//! after this module has looked at it:
//!
//! | statement | what a stranger could have made |
//! | --- | --- |
//! | `create schema` | the schema, whose owner may drop what is in it and make it anew |
//! | the history is read | a view, a policy, a column of a type with a cast of theirs |
//! | the history is written | the same, and a trigger, a rule, a default, a check, an index, a partition |
//! | a migration creates | an object by its name (PostgreSQL refuses, and says less) |
//! | the functions are called later | an overload, a procedure, an aggregate or a type by the name of a function |
//! | `distribute` updates each table | a trigger, a rule, a policy, a foreign key, a child table |
//! | each of them | an event trigger with a function of theirs |
//!
//! Everything runs under a search path of `pg_catalog` alone, so no operator, cast or function of another schema is
//! in question. While the advisory lock is held the history is either made by us or locked against new triggers, and
//! the rights to create are taken back in a transaction before that.

use std::collections::BTreeSet;

use sqlx::PgConnection;

use super::quoted::literal;
use super::{MigrateError, Migrator, rows, runner};

/// Something that migrations leave to a person.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Leftover {
    /// The object or the right, and its owner.
    pub what: String,
    /// The SQL that removes it.
    pub remedy: String,
    /// Whether somebody may ask or give tokens, write rows or run code by it.
    pub is_right: bool,
}

/// Fails for what is in the way: it belongs to a stranger, and has a name of ours or runs with what is ours.
pub(super) async fn refuse(conn: &mut PgConnection, of: &Migrator) -> Result<(), MigrateError> {
    let found = found(conn, of).await?;
    let what: Vec<_> =
        found.into_iter().filter(|(is_in_the_way, ..)| *is_in_the_way).map(|(_, what, _)| what).collect();
    if what.is_empty() { Ok(()) } else { Err(MigrateError::Strangers { what }) }
}

/// The objects that are not in the way.
pub(super) async fn left(conn: &mut PgConnection, of: &Migrator) -> Result<Vec<Leftover>, MigrateError> {
    let found = found(conn, of).await?.into_iter().filter(|(is_in_the_way, ..)| !is_in_the_way);
    Ok(found.map(|(_, what, remedy)| Leftover { what, remedy, is_right: false }).collect())
}

async fn found(conn: &mut PgConnection, of: &Migrator) -> Result<Vec<(bool, String, String)>, MigrateError> {
    rows(conn, query(of), "look for objects of strangers").await
}

/// Fails as [`refuse`] does, in PL/pgSQL.
pub(super) fn refusing(of: &Migrator) -> String {
    format!(
        "declare\n    told pg_catalog.text;\n\
         begin\n    \
         select pg_catalog.string_agg(f.what, '; ') into told from (\n        \
         select s.what from (\n{}\n) s where s.is_in_the_way limit {FEW}\n    ) f;\n    \
         if told is not null then\n        \
         raise exception using errcode = 'insufficient_privilege', message = told || ' ({REMEDY})';\n    end if;\n\
         end;\n",
        query(of)
    )
}

fn query(of: &Migrator) -> String {
    trusting(include_str!("strangers.sql"), of).replace("{names}", &names())
}

/// Puts the roles that are trusted into a query.
pub(super) fn trusting(query: &str, of: &Migrator) -> String {
    let owner = of.owner.as_deref().map_or("null".to_owned(), literal);
    query.replace("{trusted}", include_str!("trusted.sql").trim_end()).replace("{owner}", &owner)
}

/// The names of everything that the migrations make, and of the indexes that PostgreSQL makes for their tables, as the
/// elements of an array.
pub(super) fn names() -> String {
    let migrations = runner();
    let texts = migrations.get_migrations().iter().filter_map(|migration| migration.sql());
    let made = texts.flat_map(str::lines).filter_map(|line| {
        let made = line.strip_prefix("create ")?;
        let name = made.strip_prefix("index ").or_else(|| Some(made.split_once(" tollgate.")?.1))?;
        name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
    });
    let made = made.chain(["schema_history"]);
    let made: BTreeSet<_> = made.flat_map(|name| [name.to_owned(), format!("{name}_pkey")]).collect();
    made.into_iter().collect::<Vec<_>>().join(",")
}

/// The objects that are in the way, in one line: the first of many are enough.
pub(super) fn listed(what: &[String]) -> String {
    let more = what.len().saturating_sub(FEW);
    let few = what[..what.len() - more].join("; ");
    if more == 0 { few } else { format!("{few}; and {more} more") }
}

const FEW: usize = 3;

pub(super) const REMEDY: &str =
    "drop what is not yours; a role that you trust can be named (`--owner`, `Migrator::owner`)";
