//! Processor time, as the kernel counts it: steadier than rates, which others on the machine take part in.

use std::ops::Sub;
use std::time::Instant;

/// Tells the processor time of this process, of a server on the same machine, and of everybody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    /// The server's first process, the parent of its sessions.
    postmaster: i32,
}

/// Processor time in seconds, so far or between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// By this process,
    pub(super) client: f64,
    /// by the server with all its sessions, past ones too,
    pub(super) server: f64,
    /// and by everybody on the machine.
    pub(super) everybody: f64,
}

impl Meter {
    /// What is spent between two instants to come.
    pub(super) async fn between(self, from: Instant, until: Instant) -> Result<Spent, UnknownTime> {
        tokio::time::sleep_until(from.into()).await;
        let before = self.read()?;
        tokio::time::sleep_until(until.into()).await;
        Ok(self.read()? - before)
    }
}

#[cfg(target_os = "linux")]
impl Meter {
    /// For the server that a session with this process identifier is of.
    pub(super) fn of_session(pid: i32) -> Result<Self, UnknownTime> {
        Ok(Self { postmaster: procfs::process::Process::new(pid)?.stat()?.ppid })
    }

    pub(super) fn read(self) -> Result<Spent, UnknownTime> {
        use procfs::CurrentSI;
        use procfs::process::{Process, all_processes};

        let client = Process::myself()?.stat()?;
        let mut server = 0;
        for process in all_processes()? {
            // One that ends meanwhile is counted with its parent the next time.
            let Ok(stat) = process.and_then(|process| process.stat()) else { continue };
            if stat.pid == self.postmaster {
                server += own(&stat) + stat.cutime.unsigned_abs() + stat.cstime.unsigned_abs();
            } else if stat.ppid == self.postmaster {
                server += own(&stat);
            }
        }
        let total = procfs::KernelStats::current()?.total;
        let everybody = total.user + total.nice + total.system + total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        Ok(Spent { client: seconds(own(&client)), server: seconds(server), everybody: seconds(everybody) })
    }
}

#[cfg(target_os = "linux")]
fn own(stat: &procfs::process::Stat) -> u64 {
    stat.utime + stat.stime
}

#[cfg(target_os = "linux")]
#[expect(clippy::cast_precision_loss, reason = "hundredths of a second")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

#[cfg(not(target_os = "linux"))]
impl Meter {
    pub(super) fn of_session(_pid: i32) -> Result<Self, UnknownTime> {
        Err(UnknownTime)
    }

    pub(super) fn read(self) -> Result<Spent, UnknownTime> {
        Err(UnknownTime)
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            client: self.client - before.client,
            server: self.server - before.server,
            everybody: self.everybody - before.everybody,
        }
    }
}

/// The kernel does not tell.
#[cfg(target_os = "linux")]
pub(super) type UnknownTime = procfs::ProcError;

/// No kernel but Linux is asked.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, thiserror::Error)]
#[error("processor time is only read on Linux (run it there)")]
pub(super) struct UnknownTime;
