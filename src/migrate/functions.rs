//! The functions for callers without the library: who may call them, and whether they still have the text of the
//! migrations.
//!
//! Their text is in `migrations/`, from V6 on. Its comments give some reasons for it; these are the others:
//!
//! - **The rule is pure there, too**: a few expressions and two functions over scalars, which get the instant and read
//!   no table. So `tests/postgres/functions/rule.rs` compares 100 000 random steps a run with `Plan::decide`, and
//!   `walk.rs` compares the tables with the limiter. Both are needed. A clamp by `least(x, …)` ignores nulls, and so
//!   moved a missing row to the end of time. A million pure steps did not find that, and the tables showed it at once.
//! - **Three short statements** decide a grant: the definition; the row, and after it the clock; and a write, if the
//!   row still holds what was read. When the clock was read before the row, 16 of 25 284 refusals were dated before the
//!   grant that caused them. One statement that joins the definition with both tables costs more than two.
//! - **PL/pgSQL prepares each expression once in each transaction**, so a call alone in its transaction pays for all of
//!   them. So in the usual case, a token bucket that has enough, the flow is a constant, and few expressions remain. A
//!   sixth of a call is the CHECK constraints of its row, which PostgreSQL parses at each update.
//! - **Helpers of one expression are inlined, and anything else is PL/pgSQL**: an SQL function that is not inlined is
//!   parsed and planned at each call. PostgreSQL does not inline a function if an expensive expression is passed for a
//!   parameter that occurs twice, or if an immutable function calls a stable one. A test counts the calls, by
//!   `track_functions`.
//! - **`div(numeric, numeric)`** is an exact floor for a product that is not negative: rate times elapsed time reaches
//!   2^126.
//! - **No overloads**: with `consume(name, cost)` beside `consume(name, key)`, a `bigint` user id would charge
//!   everybody's row. There are also none for keys that are numbers or UUIDs, or for costs that are floats. Each verb
//!   would be six functions. `PostgREST` chooses by the names of arguments, and could not choose among them. And
//!   PostgreSQL prefers float8 to numeric. The empty key and null are errors, because a left join that found nothing
//!   must not charge everybody.
//! - **A settlement names the instant of the decision** instead of a receipt: with several limits, the earliest of
//!   their instants, because the clock may have gone back behind some rows. With a later instant, a window would give
//!   back tokens that it has refilled since, and a row of tomorrow would let the tokens of today be charged twice.
//! - **A trigger runs with the owner's rights**, on rows of a table that may be an attacker's, so that a role that
//!   inserts does not need the right to ask. It evaluates nothing that a role without superuser rights can make.
//!   `tests/postgres/functions/attacks.rs` tries everything that such a role can make.
//! - **A body is parsed under the settings of its caller**, so no text in one has a backslash unless it says `E''`, and
//!   no message prints an interval.
//! - **Overrides**: the statement that reads the definition asks whether there are any (two look-ups, 3 of 14 µs), and
//!   another statement reads them if there are. One statement that joins everything took 8 to 10 µs of each call. A
//!   flag in `tollgate.limits` would need triggers, which Citus refuses on reference tables, and it would miss an
//!   override that is set while the limit is being defined.
//!
//! Rights are granted in three sets ([`Callers`]), so that an application that asks cannot mint tokens. Only the owner
//! may call a function that takes an instant, because a caller could override the clock with it.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::quoted::{ENTER, LEAVE, literal};
use super::{MigrateError, rows, runner};

/// The purpose for which a role calls the functions of the schema `tollgate`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Callers {
    /// Applications are limited: they ask, they look, and they make triggers that ask. A gate of theirs holds the
    /// shards of Citus that it writes.
    Applications,
    /// Operators decide what others have: they define limits and override them, give and take tokens, and settle. A
    /// role that may do so can grant itself any tokens.
    Operators,
    /// Reporters tell how the other side of a limit fares: they slow the limit down and pause it, and do nothing else.
    /// A reporter that lies can slow a limit down to a hundredth of its rate, and pause it for a day at a time.
    Reporters,
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
                "hold_shard",
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
            Self::Reporters => &["pause", "slow_down"],
        }
    }
}

/// The statement that lets a role call one of the sets of functions. The role needs no right on the tables, and
/// gets none. Before the first grant only the owner may call the functions.
///
/// A grant to ask revokes an earlier grant to give or to report, unless the role may write the tables anyway. To let a
/// role do several of these, grant it [`Callers::Applications`] first.
#[must_use]
pub fn grants(role: &str, callers: Callers) -> String {
    let taken = match callers {
        Callers::Applications => MAY_NOT_WRITE,
        Callers::Operators | Callers::Reporters => "false",
    };
    GRANT
        .replace("{enter}", ENTER)
        .replace("{leave}", LEAVE)
        .replace("{functions}", &callers.functions().join(", "))
        .replace("{taken}", taken)
        .replace("{role}", &literal(role))
}

/// Fails for the first function that is missing, or has another text than in the migrations.
pub(super) async fn refuse_edited(conn: &mut PgConnection) -> Result<(), MigrateError> {
    let present: Vec<(String, String)> = rows(conn, PRESENT.to_owned(), "read the catalogue").await?;
    let migrations = runner();
    let texts = migrations.get_migrations().iter().filter_map(|migration| migration.sql()).flat_map(bodies);
    // If several migrations make a function, the last text counts.
    let known: BTreeMap<_, _> = texts.collect();
    let is_edited = |(name, body): &(&str, &str)| {
        let mut found = present.iter().filter(|(present, _)| present == name);
        // There are no overloads of ours.
        found.next().is_none_or(|(_, present)| present != body) || found.next().is_some()
    };
    match known.into_iter().find(is_edited) {
        Some((name, _)) => Err(MigrateError::EditedFunction { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// The name and the body of each function that a migration makes.
fn bodies(migration: &str) -> impl Iterator<Item = (&str, &str)> {
    let made = ["\ncreate function tollgate.", "\ncreate or replace function tollgate."];
    made.into_iter().flat_map(|made| migration.split(made).skip(1)).filter_map(|text| {
        let (name, rest) = text.split_once('(')?;
        Some((name, rest.split("$$").nth(1)?))
    })
}

/// The signatures are read from the schema, which may have overloads.
const GRANT: &str = "\
do $tollgate$
declare
    grantee pg_catalog.text := {role};
    who pg_catalog.oid;
    f pg_catalog.record;
begin
    {enter}
    select r.oid into who from pg_catalog.pg_roles r where r.rolname::text = grantee;
    if who is null then
        raise exception using errcode = 'undefined_object',
            message = pg_catalog.format('role %I does not exist', grantee);
    end if;
    execute pg_catalog.format('grant usage on schema tollgate to %I', grantee);
    for f in
        select p.oid,
               pg_catalog.format('%s on function %s %s %I', w.verb, p.oid::regprocedure, w.whom, grantee) as statement,
               w.verb = 'grant execute'::text as is_granted
          from pg_catalog.pg_proc p
         cross join lateral (
             select 'grant execute' as verb, 'to' as whom where p.proname::text = any ('{{functions}}'::text[])
              union all
             -- An object of a stranger is not ours to revoke.
             select 'revoke execute', 'from'
              where p.proname::text <> all ('{{functions}}'::text[]) and pg_catalog.pg_has_role(p.proowner, 'usage')
                and {taken}
         ) w
         where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
    loop
        execute f.statement;
        if f.is_granted and not exists (select from pg_catalog.pg_proc p
                                         cross join lateral pg_catalog.aclexplode(p.proacl) a
                                         where p.oid = f.oid and a.grantee = who) then
            raise exception using errcode = 'insufficient_privilege',
                message = pg_catalog.concat('only the owner of the schema can ', f.statement);
        end if;
    end loop;
    {leave}
end $tollgate$;
";

const MAY_NOT_WRITE: &str = "not exists (select from pg_catalog.pg_class c
                            where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
                              and c.relkind in ('r'::\"char\", 'p'::\"char\")
                              and pg_catalog.has_table_privilege(who, c.oid, 'insert, update, delete'))";

const PRESENT: &str = "
    select p.proname::text, p.prosrc
      from pg_catalog.pg_proc p
     where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid";
