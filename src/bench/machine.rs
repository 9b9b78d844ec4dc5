use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// Where it was measured. Absolute figures mean nothing without it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// Processors that this program may use; a private server uses the same ones.
    pub cores: u32,
    /// The processor's name, where the system tells it.
    pub cpu: Option<String>,
    /// The kernel, where the system tells it.
    pub kernel: Option<String>,
    /// The version of this library.
    pub tollgate: String,
    /// Whether this program was compiled with optimisation; figures are worthless if not.
    pub optimised: bool,
    /// The server's version.
    pub postgresql: String,
    /// The server's settings that matter most.
    pub settings: BTreeMap<String, String>,
}

impl Machine {
    pub(super) async fn read(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let settings: Vec<(String, String)> =
            sqlx::query_as(SETTINGS).bind(&SETTINGS_READ[..]).fetch_all(&mut *conn).await?;
        Ok(Self {
            cores: cores(),
            cpu: cpu(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|release| release.trim().to_owned()),
            tollgate: env!("CARGO_PKG_VERSION").to_owned(),
            optimised: !cfg!(debug_assertions),
            postgresql: sqlx::query_scalar("show server_version").fetch_one(conn).await?,
            settings: settings.into_iter().collect(),
        })
    }
}

/// One, where the system does not tell.
pub(super) fn cores() -> u32 {
    available_parallelism().ok().and_then(|cores| cores.get().try_into().ok()).unwrap_or(1)
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

const SETTINGS: &str = "select name, current_setting(name) from pg_settings where name = any($1)";
const SETTINGS_READ: [&str; 8] = [
    "autovacuum",
    "fsync",
    "full_page_writes",
    "max_wal_size",
    "shared_buffers",
    "synchronous_commit",
    "wal_level",
    "wal_sync_method",
];
