//! Arguments of any bytes, as a driver sends them: a function accepts just those that the library accepts, and leaves
//! the same row. The cases in `bytes/` are replayed, and others are drawn; more of them: `TOLLGATE_TEST_STEPS=100000`.

use std::fs;

use fastrand::Rng;
use sqlx::{AssertSqlSafe, PgConnection};
use tollgate::{BegunByHand, Error, FitError, Key, Limit, Limiter, Tokens};

use super::{define, owner};
use crate::gate::stage::EVER;
use crate::teller::run;
use crate::world::World;

const DRAWN: usize = 300;
const VERBS: [&str; 5] = ["check", "consume", "credit", "debit", "reserve"];

#[tokio::test]
async fn a_function_takes_the_arguments_that_the_library_takes() {
    let world = World::new().await;
    let mut conn = owner(&world).await;
    for limit in limits() {
        define(&mut conn, &limit).await;
    }
    run(&mut conn, "begin").await;
    let seed = super::seed();
    let drawn = std::env::var("TOLLGATE_TEST_STEPS").map_or(DRAWN, |steps| steps.parse().unwrap());
    let mut dice = Rng::with_seed(seed);
    let drawn = (0..drawn).map(|_| Case::drawn(&mut dice)).collect();
    for case in [corpus(), drawn].concat() {
        for verb in VERBS {
            let (by_library, by_function) = (case.ask_library(&mut conn, verb).await, case.ask(&mut conn, verb).await);
            assert_eq!(by_function, by_library, "{verb} {case:?} (seed {seed})");
        }
        assert_eq!(case.key_by_function(&mut conn).await, case.key_by_library(), "{case:?} (seed {seed})");
    }
}

fn limits() -> [Limit; 3] {
    let named = Limit::token_bucket("ten", 10, EVER).spec().named(r#"'é|\%s""#);
    [Limit::token_bucket("ten", 10, EVER), named.try_into().unwrap(), Limit::wallet("money").overdraft(5)]
}

#[derive(Clone, Debug)]
struct Case {
    limit: String,
    key: String,
    cost: String,
}

/// Each file has a limit, a key and a cost in lines. A key may have several.
fn corpus() -> Vec<Case> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/postgres/functions/bytes");
    let files = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let cases = files.map(|text| {
        let (limit, rest) = text.split_once('\n').unwrap();
        let (key, cost) = rest.rsplit_once('\n').unwrap();
        Case { limit: limit.to_owned(), key: key.to_owned(), cost: cost.to_owned() }
    });
    let cases: Vec<_> = cases.collect();
    assert!(cases.len() > 20);
    cases
}

/// The answer, and the rows by key and value. Or the code of an error.
type Told = Result<(String, Vec<(String, i64)>), String>;

impl Case {
    fn drawn(dice: &mut Rng) -> Self {
        let limit = match dice.u32(..8) {
            0 => text(dice, LETTERS, 4),
            place => limits()[place as usize % 3].name().to_owned(),
        };
        let key = match dice.u32(..8) {
            0 => text(dice, LETTERS, 600),
            _ => text(dice, LETTERS, 8),
        };
        let cost = match dice.u32(..4) {
            0 => dice.choice(NUMBERS).unwrap().to_string(),
            _ => text(dice, DIGITS, 9),
        };
        Self { limit, key, cost }
    }

    /// The cost, as PostgreSQL reads and writes numbers.
    async fn amount(&self, conn: &mut PgConnection) -> Result<Tokens, String> {
        run(conn, "savepoint amount").await;
        let read = sqlx::query_scalar("select $1::text::numeric::text").bind(&self.cost).fetch_one(&mut *conn).await;
        run(conn, "rollback to amount").await;
        let tokens = read
            .map_err(|error| code(&error))
            .and_then(|text: String| text.parse::<Tokens>().map_err(|_| "TG002".to_owned()))?;
        if tokens.is_negative() { Err("TG002".to_owned()) } else { Ok(tokens) }
    }

    async fn ask_library(&self, conn: &mut PgConnection, verb: &str) -> Told {
        let amount = self.amount(conn).await;
        // No text of PostgreSQL holds a NUL, so this error comes before any other.
        if [&self.limit, &self.key, &self.cost].iter().any(|text| text.contains('\0')) {
            return Err("22021".to_owned());
        }
        let amount = match amount {
            Err(code) if code != "TG002" => return Err(code),
            amount => amount,
        };
        let key = Key::try_from(self.key.clone()).ok().filter(|key| !key.is_global());
        let (Ok(amount), Some(key), false) = (amount, key, self.limit.is_empty()) else { return Err("TG002".into()) };
        let Some(limit) = limits().into_iter().find(|limit| limit.name() == self.limit) else {
            return Err("TG001".to_owned());
        };
        let request = limit.key(&key).cost(amount);
        run(conn, "savepoint library").await;
        let (limiter, tx) = (Limiter::new(), &mut BegunByHand(conn));
        let told = match verb {
            "check" => limiter.check(tx.0, request).await.map(|decision| decision.is_granted().to_string()),
            "consume" => limiter.consume(tx, request).await.map(|decision| decision.is_granted().to_string()),
            "credit" => limiter.credit(tx, request).await.map(|balance| balance.remaining.to_string()),
            "debit" => limiter.debit(tx, request).await.map(|balance| balance.remaining.to_string()),
            _ => limiter.reserve(tx, request).await.map(|decision| decision.is_granted().to_string()),
        };
        let told = match told {
            Ok(told) => Ok((told, rows(conn).await)),
            Err(error) => Err(error_code(&error).to_owned()),
        };
        run(conn, "rollback to library").await;
        told
    }

    async fn ask(&self, conn: &mut PgConnection, verb: &str) -> Told {
        let told = match verb {
            "credit" | "debit" => format!("trim_scale(tollgate.{verb}($1, $2, $3::text::numeric))::text"),
            _ => format!("(tollgate.{verb}($1, $2, $3::text::numeric)).granted::text"),
        };
        run(conn, "savepoint function").await;
        let asked = sqlx::query_scalar(AssertSqlSafe(format!("select {told}")));
        let asked = asked.bind(&self.limit).bind(&self.key).bind(&self.cost).fetch_one(&mut *conn).await;
        let told = match asked {
            Ok(told) => Ok((told, rows(conn).await)),
            Err(error) => Err(code(&error)),
        };
        run(conn, "rollback to function").await;
        told
    }

    /// The function that makes a key of a limit's name and a text.
    async fn key_by_function(&self, conn: &mut PgConnection) -> Result<String, String> {
        run(conn, "savepoint key").await;
        let asked = sqlx::query_scalar("select tollgate.key($1, $2)").bind(&self.limit).bind(&self.key);
        let told = asked.fetch_one(&mut *conn).await.map_err(|error| code(&error));
        run(conn, "rollback to key").await;
        told
    }

    fn key_by_library(&self) -> Result<String, String> {
        let key = Key::text((&self.limit, &self.key));
        if key.contains('\0') { Err("22021".to_owned()) } else { Ok(key) }
    }
}

async fn rows(conn: &mut PgConnection) -> Vec<(String, i64)> {
    sqlx::query_as("select key, value from tollgate.durable").fetch_all(conn).await.unwrap()
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().unwrap_or_else(|| panic!("{error}")).code().unwrap().into_owned()
}

/// The code of the function's error.
fn error_code(error: &Error) -> &'static str {
    match error {
        Error::CostExceedsCapacity { .. } => "TG004",
        Error::DoesNotFit { source: FitError::DebtTooDeep, .. } => "TG003",
        Error::DoesNotFit { source: FitError::BalanceTooLarge, .. } => "TG007",
        other => panic!("{other}"),
    }
}

fn text(dice: &mut Rng, letters: &[&str], most: usize) -> String {
    (0..dice.usize(..=most)).map(|_| *dice.choice(letters).unwrap()).collect()
}

const DIGITS: &[&str] = &["0", "1", "5", "9", "9", "00", ".", "e", "E", "-", "+", "_", " ", "0x", "\t", "٣", "\u{0}"];
const LETTERS: &[&str] = &[
    "a",
    "Z",
    "0",
    "|",
    "\\",
    "'",
    "\"",
    "%s",
    "$1",
    ";",
    "--",
    " ",
    "\n",
    "\r",
    "\u{1}",
    "\u{7f}",
    "é",
    "e\u{301}",
    "🦀",
    "\u{202e}",
    "\u{feff}",
    "\u{ffff}",
    "\u{10ffff}",
];
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "10",
    "10.000000",
    "10.0000001",
    "1e1",
    "1E-6",
    "1e-7",
    "0.000001",
    "NaN",
    "nan",
    "inf",
    "-Infinity",
    "9223372036854.775807",
    "9223372036854.775808",
    "1e131071",
    "1e131072",
    "1e-16383",
    "4.9999999999999999999",
    ".5",
    "5.",
    "+5",
];
