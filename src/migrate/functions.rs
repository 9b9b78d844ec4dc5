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
    /// The names of the functions, in the schema `tollgate`.
    #[must_use]
    pub const fn functions(self) -> &'static [&'static str] {
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

/// The statement that lets a role call one of the two sets of functions. It needs no right on the tables, and gets
/// none. Nobody but the owner may call any of them before.
///
/// A grant to ask takes back an earlier grant to give, unless the role may write the tables anyway. To let a role do
/// both, grant it [`Callers::Applications`] first.
#[must_use]
pub fn grants(role: &str, callers: Callers) -> String {
    let name = format!("\"{}\"", role.replace('"', "\"\""));
    let id = format!("'{}'::regrole::oid", name.replace('\'', "''"));
    let taken = match callers {
        Callers::Applications => MAY_NOT_WRITE,
        Callers::Operators => "false",
    };
    GRANT
        .replace("{functions}", &callers.functions().join(", "))
        .replace("{taken}", taken)
        .replace("{role}", &id)
        .replace("{name}", &name)
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

/// Signatures are those of the schema: it may have overloads.
const GRANT: &str = "\
do $tollgate$
declare
    f record;
begin
    grant usage on schema tollgate to {name};
    for f in
        select p.oid,
               pg_catalog.format('%s on function %s %s {name}', w.verb, p.oid::regprocedure, w.whom) as statement,
               w.verb = 'grant execute'::text as is_granted
          from pg_catalog.pg_proc p
         cross join lateral (
             select 'grant execute' as verb, 'to' as whom where p.proname::text = any ('{{functions}}'::text[])
              union all
             select 'revoke execute', 'from' where p.proname::text <> all ('{{functions}}'::text[]) and {taken}
         ) w
         where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
    loop
        execute f.statement;
        if f.is_granted and not exists (select from pg_catalog.pg_proc p
                                         cross join lateral pg_catalog.aclexplode(p.proacl) a
                                         where p.oid = f.oid and a.grantee = {role}) then
            raise exception using errcode = 'insufficient_privilege',
                message = pg_catalog.concat('only the owner of the schema can ', f.statement);
        end if;
    end loop;
end $tollgate$;
";

const MAY_NOT_WRITE: &str = "not exists (select from pg_catalog.pg_class c
                            where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
                              and c.relkind in ('r'::\"char\", 'p'::\"char\")
                              and pg_catalog.has_table_privilege({role}, c.oid, 'insert, update, delete'))";

const PRESENT: &str = "
    select p.proname::text, p.prosrc
      from pg_catalog.pg_proc p
     where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid";
