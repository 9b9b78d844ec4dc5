//! Generates the files that follow from the statements in `src/store/sql`; with `--check`, says whether they are stale.
//!
//! A statement about one table is written once, for `tollgate.durable`. Its twin for `tollgate.ephemeral` is
//! generated into `src/store/sql/ephemeral/`. Then `sqlx-data.json`, the contract of all statements, is made from a
//! real database.
//!
//! `./dev sqlx [--check]` runs this. It starts a private server, migrates it, and compiles the library against it with
//! two private variables. If they are set, `build.rs` lets sqlx's macros describe each statement into a directory.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, process};

use serde_json::{Map, Value, json};
use sqlx::{Connection, PgConnection};
use tollgate::migrate;
use tollgate_embedded::Server;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let check = env::args().any(|arg| arg == "--check");
    // The twins first: they are statements of the contract.
    let mut is_current = true;
    for (path, twin) in twins()? {
        is_current &= keep(&path, &twin, check)?;
    }
    is_current &= keep(Path::new(CONTRACT), &describe()?, check)?;
    Ok(if is_current { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes what a file should hold; if it is only to be checked, says whether it holds that.
fn keep(path: &Path, fresh: &str, check: bool) -> Result<bool, Box<dyn Error>> {
    if fs::read_to_string(path).is_ok_and(|old| old == fresh) {
        return Ok(true);
    }
    let path_name = path.display();
    if check {
        eprintln!("error: {path_name} is stale (run `./dev sqlx` and commit it)");
        return Ok(false);
    }
    fs::write(path, fresh)?;
    println!("{path_name} is rewritten");
    Ok(true)
}

/// The statements about durable rows alone, as statements about ephemeral rows: where each goes, and its text.
fn twins() -> Result<Vec<(PathBuf, String)>, Box<dyn Error>> {
    let mut twins = Vec::new();
    for entry in fs::read_dir(STATEMENTS)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        if text.contains(DURABLE) && !text.contains(EPHEMERAL) {
            let name = path.file_name().ok_or("a statement without a name")?;
            let twin = format!("-- Generated from ../{} by `./dev sqlx`.\n{}", name.display(), statement(&text));
            twins.push((Path::new(STATEMENTS).join("ephemeral").join(name), twin));
        }
    }
    Ok(twins)
}

/// A statement without its comments, about the other table.
fn statement(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    lines.map(|line| line.replace(DURABLE, EPHEMERAL) + "\n").collect()
}

/// The contract according to the database.
fn describe() -> Result<String, Box<dyn Error>> {
    let server = Server::start()?;
    migrated(server.url())?;
    // The name contains the process number, so that cargo never reuses an earlier run.
    let dir = env::temp_dir().join(format!("tollgate-sqlx-{}", process::id()));
    fs::create_dir_all(&dir)?;
    let compiled = compile(server.url(), &dir);
    let contract = compiled.and_then(|()| merged(&dir));
    fs::remove_dir_all(&dir)?;
    contract
}

fn migrated(url: &str) -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut conn = PgConnection::connect(url).await?;
        migrate::run(&mut conn).await?;
        Ok(())
    })
}

fn compile(url: &str, dir: &Path) -> Result<(), Box<dyn Error>> {
    let status = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["check", "--quiet", "--package", "tollgate", "--lib", "--no-default-features", "--features", "postgres"])
        .env("TOLLGATE_SQLX_LIVE", url)
        .env("TOLLGATE_SQLX_LIVE_DIR", dir)
        .status()?;
    if status.success() { Ok(()) } else { Err("a statement does not match the migrated schema (see above)".into()) }
}

/// Merges the macros' files into one text with sorted keys.
fn merged(dir: &Path) -> Result<String, Box<dyn Error>> {
    let mut contract = Map::new();
    contract.insert("db".to_owned(), json!("PostgreSQL"));
    for entry in fs::read_dir(dir)? {
        let statement: Value = serde_json::from_str(&fs::read_to_string(entry?.path())?)?;
        let hash = statement["hash"].as_str().ok_or("a statement without a hash")?.to_owned();
        contract.insert(hash, json!({ "describe": statement["describe"], "query": statement["query"] }));
    }
    contract.sort_keys();
    Ok(serde_json::to_string_pretty(&contract)? + "\n")
}

const CONTRACT: &str = "sqlx-data.json";
const STATEMENTS: &str = "src/store/sql";
const DURABLE: &str = "tollgate.durable";
const EPHEMERAL: &str = "tollgate.ephemeral";
