//! Turns of pgbench, which prepares statements and spends little on them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs, process};

use tollgate_embedded::Server;

use super::Fault;

/// Runs a script again and again, and returns how often it ran each second.
pub(crate) fn per_second(server: &Server, script: &str, clients: u32, turn: Duration) -> Result<f64, Fault> {
    let file = env::temp_dir().join(format!("tollgate-bench-{}.sql", process::id()));
    fs::write(&file, script)?;
    let output = Command::new(server.programs().join("pgbench"))
        .args(["--no-vacuum", "--protocol", "prepared", "--jobs", &clients.min(2).to_string()])
        .args(["--client", &clients.to_string(), "--time", &turn.as_secs().to_string(), "--file"])
        .args([&file, Path::new(server.url())])
        .output()?;
    fs::remove_file(&file)?;
    let text = String::from_utf8(output.stdout)?;
    let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    tps.filter(|_| output.status.success())
        .ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)).into())
}

/// The transaction of a joined caller, by the limiter's own statements, on the rows of the limit `bench`.
pub(crate) fn joined(storage: &str, keys: u32) -> Result<String, Fault> {
    let lock = bound(
        &statement(storage, "lock_one")?,
        &["0::int2", "'bench'", "(:key)::text", "0::int2", "1000000", "1e15", "3600", "false", "null", "null"],
    );
    let save = bound(
        &statement(storage, "save_one")?,
        &["0::int2", "'bench'", "(:key)::text", "0::int2", ":value::int8 - 1", ":ts", ":ts", ":xid", "null"],
    );
    let mut script = format!("\\set key random(0, {})\nbegin;\n", keys - 1);
    write!(script, "{lock}\n\\gset\n{save};\ncommit;\n")?;
    Ok(script)
}

/// A statement of the library.
pub(crate) fn statement(storage: &str, name: &str) -> Result<String, Fault> {
    let folder = if storage == "ephemeral" { "ephemeral/" } else { "" };
    Ok(fs::read_to_string(format!("{}/../src/store/sql/{folder}{name}.sql", env!("CARGO_MANIFEST_DIR")))?)
}

/// A statement with its placeholders filled in, its comments left out, and its columns named as variables can be.
fn bound(sql: &str, values: &[&str]) -> String {
    let lines: Vec<_> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    let mut sql = lines.join("\n");
    for (place, value) in values.iter().enumerate().rev() {
        sql = sql.replace(&format!("${}", place + 1), value);
    }
    for (annotated, plain) in [("!: Timestamp", ""), ("?: Timestamp", ""), ("!\"", "\""), ("?\"", "\"")] {
        sql = sql.replace(annotated, plain);
    }
    sql
}
