//! Splits `sqlx-data.json`, the contract of our statements, into one file for each statement, which is what sqlx's
//! macros read, and pins the macros to these files. A user's `DATABASE_URL`, `SQLX_OFFLINE` or `.env` never affects
//! this build.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

use serde_json::{Map, Value, json};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // A new migration is embedded only if the crate is recompiled.
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed={CONTRACT}");
    println!("cargo:rerun-if-env-changed={LIVE_URL}");
    println!("cargo:rerun-if-env-changed={LIVE_DIR}");
    if env::var_os("CARGO_FEATURE_POSTGRES").is_none() {
        return Ok(());
    }
    match (env::var(LIVE_URL), env::var(LIVE_DIR)) {
        (Ok(url), Ok(dir)) => ask_the_database(&url, &dir),
        _ => split_the_contract()?,
    }
    Ok(())
}

/// For `./dev sqlx`: the macros ask a real database to describe each statement, and write the answers to `dir`.
fn ask_the_database(url: &str, dir: &str) {
    println!("cargo:rustc-env=DATABASE_URL={url}");
    println!("cargo:rustc-env=SQLX_OFFLINE=false");
    println!("cargo:rustc-env=SQLX_OFFLINE_DIR={dir}");
}

/// `{"db": …, "<hash>": {"describe": …, "query": …}, …}` becomes `query-<hash>.json` for each hash.
fn split_the_contract() -> Result<(), Box<dyn error::Error>> {
    let contract: Map<String, Value> = serde_json::from_str(&fs::read_to_string(CONTRACT)?)?;
    let dir = PathBuf::from(env::var("OUT_DIR")?).join("sqlx");
    fs::create_dir_all(&dir)?;
    let db = contract.get("db").ok_or("sqlx-data.json names no database")?;
    for (hash, statement) in contract.iter().filter(|(key, _)| *key != "db") {
        let whole = json!({
            "db_name": db,
            "describe": statement["describe"],
            "hash": hash,
            "query": statement["query"],
        });
        write_if_changed(&dir.join(format!("query-{hash}.json")), &whole.to_string())?;
    }
    println!("cargo:rustc-env=SQLX_OFFLINE=true");
    println!("cargo:rustc-env=SQLX_OFFLINE_DIR={}", dir.display());
    Ok(())
}

fn write_if_changed(path: &Path, text: &str) -> std::io::Result<()> {
    match fs::read_to_string(path) {
        Ok(old) if old == text => Ok(()),
        _ => fs::write(path, text),
    }
}

const CONTRACT: &str = "sqlx-data.json";

/// Private names, so that a user's own variables do not change this build.
const LIVE_URL: &str = "TOLLGATE_SQLX_LIVE";
const LIVE_DIR: &str = "TOLLGATE_SQLX_LIVE_DIR";
