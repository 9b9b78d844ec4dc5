//! Rewrites `sqlx-data.json`, the contract of our statements, from a real database; with `--check`, says whether it is stale.
//!
//! `./dev sqlx [--check]` runs this. It starts a private server, migrates it, and compiles the library against it with two
//! private variables, at which `build.rs` lets sqlx's macros describe each statement into a directory.

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs, process};

use serde_json::{Map, Value, json};
use sqlx::{Connection, PgConnection};
use tollgate::embedded::Server;
use tollgate::migrate;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let fresh = describe()?;
    let is_current = fs::read_to_string(CONTRACT).is_ok_and(|old| old == fresh);
    if is_current {
        println!("{CONTRACT} is up to date");
    } else if env::args().any(|arg| arg == "--check") {
        eprintln!("error: {CONTRACT} is stale (run `./dev sqlx` and commit it)");
        return Ok(ExitCode::FAILURE);
    } else {
        fs::write(CONTRACT, fresh)?;
        println!("{CONTRACT} is rewritten");
    }
    Ok(ExitCode::SUCCESS)
}

/// The contract as the database sees it now.
fn describe() -> Result<String, Box<dyn Error>> {
    let server = Server::start()?;
    migrated(server.url())?;
    // With the process in its name, so that cargo never takes an earlier run for this one.
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
        .args(["check", "--quiet", "--lib", "--no-default-features", "--features", "postgres"])
        .env("TOLLGATE_SQLX_LIVE", url)
        .env("TOLLGATE_SQLX_LIVE_DIR", dir)
        .status()?;
    if status.success() { Ok(()) } else { Err("a statement does not fit the migrated schema (see above)".into()) }
}

/// The macros' files, one for each statement, as one text with sorted keys.
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
