//! Processor time as the kernel counts it, which is steadier than rates on a machine that others use too.

use std::ops::Sub;

use sqlx::PgConnection;
use tokio::time::{Instant, sleep_until};

use super::Fault;

/// Measures the processor time of this process, and of a server on this machine with all its child processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    server: Option<i32>,
}

/// Seconds of processor time, since a process began or between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) client: f64,
    pub(crate) server: f64,
}

impl Meter {
    pub(crate) const fn of(server: Option<i32>) -> Self {
        Self { server }
    }

    /// The processor time that is spent between two instants to come. None where the server's process is not known, or
    /// on systems other than Linux.
    pub(crate) async fn between(self, from: Instant, until: Instant) -> Result<Option<Spent>, Fault> {
        let Some(server) = self.server.filter(|_| cfg!(target_os = "linux")) else { return Ok(None) };
        sleep_until(from).await;
        let before = read(server)?;
        sleep_until(until).await;
        Ok(Some(read(server)? - before))
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { client: self.client - before.client, server: self.server - before.server }
    }
}

/// The process of the server that a superuser's connection leads to.
pub(crate) async fn postmaster(conn: &mut PgConnection) -> Result<i32, Fault> {
    let sql = "select split_part(pg_read_file('postmaster.pid'), chr(10), 1)::int4";
    Ok(sqlx::query_scalar(sql).fetch_one(conn).await?)
}

/// The processor time that this process and a server have spent since they began.
#[cfg(target_os = "linux")]
pub(crate) fn read(server: i32) -> Result<Spent, Fault> {
    use procfs::process::{Process, Stat, all_processes};

    #[expect(clippy::cast_precision_loss, reason = "hundredths of a second")]
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    let own = |stat: &Stat| stat.utime + stat.stime;
    let mut ticks = 0;
    for process in all_processes()? {
        // A child that ends meanwhile is counted with its parent the next time.
        let Ok(stat) = process.and_then(|process| process.stat()) else { continue };
        if stat.pid == server {
            ticks += own(&stat) + stat.cutime.unsigned_abs() + stat.cstime.unsigned_abs();
        } else if stat.ppid == server {
            ticks += own(&stat);
        }
    }
    Ok(Spent { client: seconds(own(&Process::myself()?.stat()?)), server: seconds(ticks) })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read(_server: i32) -> Result<Spent, Fault> {
    Err("processor time is only read on Linux".into())
}
