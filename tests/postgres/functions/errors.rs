//! Every error that a caller can provoke is one that the guide names, for any arguments and any session.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use sqlx::{PgConnection, Row as _};

use super::settings::{SETTINGS, set};
use crate::world::World;

const STATEMENTS: usize = 6_000;
const BATCH: usize = 500;

#[tokio::test]
async fn whatever_the_arguments_are_an_error_is_one_that_the_guide_names() {
    let world = World::new().await;
    let mut conn = laid_out(&world, &[]).await;
    let tally = tally(&mut conn, STATEMENTS).await;
    assert!(tally.len() > 5, "{tally:?}");
}

/// Each in a session of its own: a function is compiled under the settings of its first call.
#[tokio::test]
async fn whatever_the_session_is_set_to_an_error_is_one_that_the_guide_names() {
    for settings in SETTINGS {
        let world = World::new().await;
        let mut conn = laid_out(&world, settings).await;
        let tally = tally(&mut conn, STATEMENTS / SETTINGS.len() / 2).await;
        assert!(tally.contains_key(""), "{settings:?}: {tally:?}");
    }
}

/// A variable of PL/pgSQL has the collation of the argument, and the columns have one of their own.
#[tokio::test]
async fn a_text_of_any_collation_is_the_same_text() {
    let world = World::new().await;
    world.sql(include_str!("errors.sql")).await;
    let mut collations = vec!["\"POSIX\""];
    let has_icu = "select exists (select from pg_collation where collprovider = 'i')";
    if sqlx::query_scalar(has_icu).fetch_one(&mut world.admin().await).await.unwrap() {
        let ignores_case =
            "create collation public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
        world.sql(ignores_case).await;
        collations.push("public.ci");
    }
    for collation in collations {
        let mut conn = super::owner(&world).await;
        for call in [
            "consume('ten', {})",
            "consume({}, 'k')",
            "consume_global({}, 0)",
            "check('window', {})",
            "reserve('owing', {})",
            "consume_all(array[tollgate.request('ten', {}), tollgate.request_global({})])",
            "balance('ten', {})",
            "credit('money', {}, 1, once => {})",
            "debit('money', {}, 1)",
            "settle('ten', {}, 1, 0, now())",
            "cancel('ten', {}, 1, now(), '2100-01-01')",
            "reset('ten', {})",
            "set_override('ten', {}, effect => 'deny', reason => {}, label => {})",
            "remove_override('ten', {}, label => {})",
            "slow_down('ten', {})",
            "pause('ten', {}, lasting => '1 ms')",
            "define({}, 'token_bucket', 10, '1 day')",
            "key({})",
        ] {
            let asked = call.replace("{}", &format!("('ten' collate {collation})"));
            crate::teller::run(&mut conn, &format!("select tollgate.{asked}")).await;
        }
        world
            .sql(&format!(
                "create table public.named (name text collate {collation});
                 create trigger rows before insert on public.named for each row
                        execute function tollgate.limit_rows('steps', 'name');
                 create trigger statements after insert on public.named referencing new table as inserted
                        for each statement execute function tollgate.limit_inserts('steps', 'name');
                 insert into public.named values ('ada'), ('ADA');
                 drop table public.named"
            ))
            .await;
        let left = "select array[tollgate.balance('steps', 'ada'), tollgate.balance('steps', 'ADA')]::int[]";
        assert_eq!(super::asked::one::<Vec<i32>>(&mut conn, left).await, [18; 2], "{collation}");
        crate::teller::run(&mut conn, "select tollgate.reset('steps', 'ada'), tollgate.reset('steps', 'ADA')").await;
    }
}

/// A session under these settings, where limits of each kind lie, some with numbers and rows at the ends of their
/// range.
async fn laid_out(world: &World, settings: &[&str]) -> PgConnection {
    world.sql(include_str!("errors.sql")).await;
    set(world, settings).await
}

/// The error codes of random statements, counted; the empty text stands for no error. A decision that neither grants
/// nor refuses, and any other answer that is null, counts as a division by zero.
async fn tally(conn: &mut PgConnection, statements: usize) -> BTreeMap<String, usize> {
    let named = named();
    let seed = super::seed();
    let functions = functions(conn).await;
    let (mut dice, mut tally) = (Rng::with_seed(seed), BTreeMap::new());
    for _ in 0..statements.div_ceil(BATCH) {
        let batch: Vec<_> = (0..BATCH).map(|_| functions[dice.usize(..functions.len())].statement(&mut dice)).collect();
        let told = sqlx::query("select code, message from public.tried($1)").bind(&batch).fetch_all(&mut *conn).await;
        for (statement, row) in batch.iter().zip(told.unwrap()) {
            let (code, message): (String, String) = (row.get(0), row.get(1));
            assert!(code.is_empty() || named.contains(&code), "{code} {message}: {statement} (seed {seed})");
            *tally.entry(code).or_default() += 1;
        }
    }
    tally
}

/// The codes of the guide's table.
fn named() -> BTreeSet<String> {
    let table =
        include_str!("../../../docs/sql.md").split("| SQLSTATE |").nth(1).unwrap().split("\n\n").next().unwrap();
    let codes = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    codes.flat_map(|codes| codes.split(", ")).map(|code| code.trim_matches('`').to_owned()).collect()
}

/// A function that callers call.
struct Function {
    name: String,
    result: String,
    /// The name and the type of each parameter.
    parameters: Vec<(String, String)>,
    defaults: usize,
    is_variadic: bool,
}

async fn functions(conn: &mut PgConnection) -> Vec<Function> {
    let sql =
        "select p.proname::text, r.typname::text, p.pronargdefaults, p.provariadic <> 0, p.proargnames[: p.pronargs],
                      array(select t.typname::text from unnest(p.proargtypes) with ordinality a (type, place)
                              join pg_type t on t.oid = a.type order by a.place)
                 from pg_proc p
                 join pg_type r on r.oid = p.prorettype
                where p.pronamespace = 'tollgate'::regnamespace and p.proname !~ '^_|^hold_shard$' and r.typname <> 'trigger'
                order by p.oid";
    let rows = sqlx::query(sql).fetch_all(conn).await.unwrap();
    let function = |row: &sqlx::postgres::PgRow| Function {
        name: row.get(0),
        result: row.get(1),
        parameters: row.get::<Vec<String>, _>(4).into_iter().zip(row.get::<Vec<String>, _>(5)).collect(),
        defaults: usize::try_from(row.get::<i16, _>(2)).unwrap(),
        is_variadic: row.get(3),
    };
    rows.iter().map(function).collect()
}

impl Function {
    fn statement(&self, dice: &mut Rng) -> String {
        let said = self.parameters.len() - if dice.bool() { dice.usize(..=self.defaults) } else { 0 };
        let mut arguments: Vec<_> = self.parameters[..said].iter().map(|(name, of)| argument(dice, name, of)).collect();
        if let Some(last) = arguments.last_mut().filter(|_| self.is_variadic) {
            *last = format!("variadic {last}");
        }
        let call = format!("tollgate.{}({})", self.name, arguments.join(", "));
        match &*self.result {
            "decision" => {
                format!("select 1 / ((d).granted is not null)::int from (select {call} as d offset 0) x")
            }
            "numeric" | "bool" => format!("select 1 / (({call}) is not null)::int"),
            _ => format!("select {call}"),
        }
    }
}

/// A value of a type; mostly a usual one, where the parameter of this name has one.
fn argument(dice: &mut Rng, name: &str, of: &str) -> String {
    let usual = dice.u32(..10) < 8;
    match (name, of) {
        (_, "_request") => match dice.u32(..12) {
            0 => "null".to_owned(),
            1 => "'{}'".to_owned(),
            2 => format!("array[array[{0}], array[{0}]]", request(dice)),
            3 => format!("array_prepend(null, array[{}])", request(dice)),
            _ => format!("array[{}]", (0..dice.usize(1..4)).map(|_| request(dice)).collect::<Vec<_>>().join(", ")),
        },
        (_, "decision") => decision(dice),
        (_, "_text") => one_of(dice, TEXT_ARRAYS),
        ("limit_name" | "name", _) if usual => one_of(dice, LIMITS),
        ("key", _) if usual => one_of(dice, KEYS),
        ("kind", _) if usual => one_of(dice, KINDS),
        ("effect", _) if usual => one_of(dice, EFFECTS),
        ("storage", _) if usual => one_of(dice, STORAGES),
        ("up_to" | "leaving" | "ends_at" | "lasting" | "set_by", _) if usual => "null".to_owned(),
        ("every_key", _) if usual => "false".to_owned(),
        ("cost" | "amount" | "charged" | "actual", _) if usual => one_of(dice, COSTS),
        (_, "numeric") => one_of(dice, NUMBERS),
        (_, "text") => one_of(dice, TEXTS),
        (_, "timestamptz") => one_of(dice, INSTANTS),
        (_, "tstzrange") if usual => "null".to_owned(),
        (_, "tstzrange") => one_of(dice, PERIODS),
        (_, "interval") => one_of(dice, SPANS),
        (_, "bool") => one_of(dice, &["null", "true", "false"]),
        (_, "int4") => one_of(dice, INTEGERS),
        (name, of) => panic!("no values of {of}, the type of {name}"),
    }
}

fn request(dice: &mut Rng) -> String {
    let (limit, key, cost) =
        (argument(dice, "limit_name", "text"), argument(dice, "key", "text"), argument(dice, "cost", "numeric"));
    match dice.u32(..8) {
        0 => "null::tollgate.request".to_owned(),
        1 => {
            let [everybody, period] = ["bool", "tstzrange"].map(|of| argument(dice, "", of));
            format!("row({limit}, {key}, {cost}, {everybody}, {period})::tollgate.request")
        }
        2 => format!("tollgate.request_global({limit}, {cost})"),
        _ => format!("tollgate.request({limit}, {key}, {cost})"),
    }
}

/// A decision that somebody has made up, or has got.
fn decision(dice: &mut Rng) -> String {
    match dice.u32(..5) {
        0 => "null".to_owned(),
        1 => "tollgate.check('ten', 'k')".to_owned(),
        2 => "tollgate.check('denied', 'k')".to_owned(),
        _ => {
            let given = format!(
                "{{\"granted\": {}, \"remaining\": \"{}\", \"retry_at\": \"{}\", \
                 \"retry_after\": \"{}\", \"refused_by\": {}}}",
                dice.choice(["null", "true", "false"]).unwrap(),
                dice.choice(["NaN", "1", "Infinity"]).unwrap(),
                dice.choice(["infinity", "-infinity", "2030-01-01"]).unwrap(),
                dice.choice(["0", "-1 year", "178000000 years"]).unwrap(),
                dice.choice(["null", "\"ten\"", "\"a%s\""]).unwrap()
            );
            format!("jsonb_populate_record(null::tollgate.decision, '{given}')")
        }
    }
}

fn one_of(dice: &mut Rng, values: &[&str]) -> String {
    (*dice.choice(values).unwrap()).to_owned()
}

const LIMITS: &[&str] = &[
    "'ten'",
    "'owing'",
    "'bounded'",
    "'window'",
    "'monthly'",
    "'billing'",
    "'owing_window'",
    "'steps'",
    "'money'",
    "'overdrawn'",
    "'denied'",
    "'free'",
    "'huge'",
    "'slow'",
    "'tiny'",
    "'slow_window'",
    "'short'",
    "'sliding'",
    "'running'",
    "'sharded'",
    "'quick'",
];
const KEYS: &[&str] = &["'k'", "'min'", "'max'", "'far'", "'past'", "'listed'", "chr(233) || '|a'"];
const KINDS: &[&str] = &[
    "'token_bucket'",
    "'fixed_window'",
    "'stepped_bucket'",
    "'sliding_window'",
    "'concurrency'",
    "'wallet'",
    "'meter'",
    "'monthly'",
    "'billing'",
];
const EFFECTS: &[&str] = &["'numbers'", "'numbers'", "'deny'", "'unlimited'"];
const STORAGES: &[&str] = &["'durable'", "'ephemeral'"];
const COSTS: &[&str] = &["0", "1", "2", "5.5", "10", "11", "4611686018427.387904", "9223372036854.775807"];
const TEXTS: &[&str] = &[
    "null",
    "''",
    "'x'",
    "'%s %L'",
    "repeat('x', 255)",
    "repeat('x', 256)",
    "repeat('x', 501)",
    "repeat('x', 512)",
    "repeat('x', 513)",
    "repeat('x', 5000)",
    "repeat(chr(233), 200)",
    "chr(92) || 'x'",
    "'1'",
];
const TEXT_ARRAYS: &[&str] = &[
    "null",
    "'{}'",
    "array['a', null]",
    "array[null]::text[]",
    "array['a|b', chr(92)]",
    "array[['a', 'b'], ['c', null]]",
    "array[repeat('x', 5000)]",
];
const NUMBERS: &[&str] = &[
    "null",
    "0",
    "-0.0",
    "1",
    "-1",
    "0.000001",
    "0.0000001",
    "1e-400",
    "1e30",
    "1e1000",
    "9223372036854.775807",
    "9223372036854.775808",
    "-9223372036854.775808",
    "'NaN'",
    "'Infinity'",
    "'-Infinity'",
];
const INSTANTS: &[&str] = &[
    "null",
    "now()",
    "'epoch'",
    "'infinity'",
    "'-infinity'",
    "'4714-11-24 00:00:00+00 BC'",
    "'294276-12-31 23:59:59.999999+00'",
    "'262142-12-31 00:00:00+00'",
    "'262143-01-01 00:00:00+00'",
    "now() + interval '1 day'",
    "now() - interval '1 day'",
];
const PERIODS: &[&str] = &[
    "tstzrange(now(), now() + '30 days')",
    "tstzrange(now() - interval '31 days', now() - interval '1 day')",
    "tstzrange('2026-12-01', '2027-01-01')",
    "tstzrange(now(), now() + '30 days', '()')",
    "tstzrange(now(), now() + '30 days', '[]')",
    "tstzrange(now(), now() + '1 millisecond')",
    "tstzrange(null, now())",
    "tstzrange('-infinity', 'infinity')",
    "tstzrange('4714-11-24 00:00:00+00 BC', '4713-01-01 00:00:00+00 BC')",
    "tstzrange('262142-01-01', '294276-12-31')",
    "'empty'",
];
const SPANS: &[&str] = &[
    "null",
    "'0'",
    "'1s'",
    "'-1s'",
    "'1 day'",
    "'1 month'",
    "'1 year'",
    "'0.0000001s'",
    "'178000000 years'",
    "'-178000000 years'",
    "'2147483647 months'",
    "'2147483647 days'",
    "'-2147483648 days'",
    "'1 month -30 days'",
    "'365000 days'",
    "'365001 days'",
    "'2147483647 days 2562047788:00:54.775807'",
    "'-2147483648 months -2147483648 days -2562047788:00:54.775807'",
];
const INTEGERS: &[&str] = &["null", "0", "1", "-1", "2", "64", "65", "32768", "2147483647", "-2147483648"];
