use sqlx::{FromRow, PgConnection};

use super::finding::Finding;
use crate::error::CommandError;
use crate::output::counted;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, CommandError> {
    let server: Server = sqlx::query_as(include_str!("sql/server.sql")).persistent(false).fetch_one(conn).await?;
    let findings = [
        server.version(),
        server.standby(),
        server.read_only(),
        server.isolation(),
        server.synchronous_commit(),
        server.risky_settings(),
        server.unlogged_rows(),
    ];
    Ok(findings.into_iter().flatten().collect())
}

#[derive(FromRow)]
struct Server {
    version: i32,
    version_text: String,
    synchronous_commit: String,
    fsync: String,
    full_page_writes: String,
    isolation: String,
    read_only: String,
    is_standby: bool,
    standbys: i64,
}

impl Server {
    fn version(&self) -> Option<Finding> {
        (self.version < 140_000).then(|| {
            Finding::error("version", format!("PostgreSQL {} is older than 14", self.version_text))
                .means("Statements of this release may fail.")
                .remedy("Upgrade the server to 14 or newer.")
        })
    }

    fn standby(&self) -> Option<Finding> {
        self.is_standby.then(|| {
            Finding::error("standby", "this server is a standby")
                .means("No decision can be made on it: every one writes.")
                .remedy("Give services the address of the primary.")
        })
    }

    fn read_only(&self) -> Option<Finding> {
        (self.read_only == "on" && !self.is_standby).then(|| {
            Finding::error("read_only", "transactions are read-only unless they say otherwise")
                .means("A limiter inside a transaction of its caller fails as soon as it grants.")
                .remedy("Set default_transaction_read_only = off for the role or the database.")
        })
    }

    fn isolation(&self) -> Option<Finding> {
        (self.isolation != "read committed").then(|| {
            Finding::warning("isolation", format!("transactions are {} unless they say otherwise", self.isolation))
                .means(
                    "Callers of one key who meet get serialization failures (40001) instead of waiting for each other.",
                )
                .remedy("Set default_transaction_isolation = 'read committed' for the service's role, or retry.")
        })
    }

    fn synchronous_commit(&self) -> Option<Finding> {
        (self.synchronous_commit == "off").then(|| {
            Finding::warning("synchronous_commit", "synchronous_commit is off")
                .means("A crash forgets the grants and reservations of the last moments, also of durable limits.")
                .remedy("Set synchronous_commit = on for the service's role, unless such a loss is fine.")
        })
    }

    fn risky_settings(&self) -> Option<Finding> {
        let off = [("fsync", &self.fsync), ("full_page_writes", &self.full_page_writes)];
        let off: Vec<_> = off.into_iter().filter(|(_, value)| *value == "off").map(|(name, _)| name).collect();
        (!off.is_empty()).then(|| {
            Finding::warning(
                "durability",
                format!("{} {} off", off.join(" and "), if off.len() > 1 { "are" } else { "is" }),
            )
            .means("A crash of the machine may destroy the whole database, limits and all else.")
            .remedy(format!("Set {} = on, unless all data here may be lost.", off.join(" = on and ")))
        })
    }

    fn unlogged_rows(&self) -> Option<Finding> {
        (self.standbys > 0).then(|| {
            Finding::warning("failover", format!("{} of this server", counted(self.standbys, "standby server")))
                .means("They do not have the rows of ephemeral limits: after a failover all of those are full again.")
                .remedy("Keep limits durable whose count must survive a failover (storage = \"durable\").")
        })
    }
}
