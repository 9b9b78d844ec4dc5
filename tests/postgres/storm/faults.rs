//! The faults of a storm. Each strikes for a moment, and all is as before when it is over.

use std::time::Duration;

use chrono::{DateTime, Utc};
use fastrand::Rng;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

use super::Storm;
use super::place::{Place, disk, fail_over, fill_disk, signal};
use super::rates::{self, MAX_AGE};
use crate::world::soon;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Fault {
    AnswerLost,
    BackendEnded,
    BackendKilled,
    ClientKilled,
    ClientStopped,
    ClockMoved,
    DiskFull,
    NumbersLowered,
    ServerCrashed,
    ServerStopped,
    StandbyPromoted,
    TableRewritten,
    WireCut,
    WireHalfOpen,
    WireSilent,
    WireSlow,
}

use Fault::{
    AnswerLost, BackendEnded, BackendKilled, ClientKilled, ClientStopped, ClockMoved, DiskFull, NumbersLowered,
    ServerCrashed, ServerStopped, StandbyPromoted, TableRewritten, WireCut, WireHalfOpen, WireSilent, WireSlow,
};

/// A drawn order of faults. A lost answer is cheap, and a crash is not. Only every third deck has what takes seconds.
pub(super) fn deck(place: &Place, nth: usize, dice: &mut Rng) -> Vec<Fault> {
    let anywhere = [(AnswerLost, 20), (ClientKilled, 3), (ClientStopped, 2), (ServerCrashed, 1), (WireCut, 2)];
    let on_wires = [(WireHalfOpen, 1), (WireSilent, 1), (WireSlow, 1)];
    let on_servers = [(BackendEnded, 3), (BackendKilled, 1), (ServerStopped, 1), (TableRewritten, 2)];
    let is_due = disk().is_some() && nth.is_multiple_of(3);
    let has_backups = matches!(place, Place::Server(server) if server.programs().join("pg_basebackup").exists());
    let [clocks, disks, standbys] = [clock().is_some(), is_due, is_due && has_backups].map(usize::from);
    let of_operators = [(NumbersLowered, 2), (ClockMoved, 2 * clocks), (DiskFull, disks), (StandbyPromoted, standbys)];
    let mut all: Vec<_> = anywhere.into_iter().chain(on_wires).collect();
    if matches!(place, Place::Server(_)) {
        all.extend(on_servers.into_iter().chain(of_operators));
    }
    let mut deck: Vec<_> = all.into_iter().flat_map(|(fault, many)| std::iter::repeat_n(fault, many)).collect();
    dice.shuffle(&mut deck);
    deck
}

impl Storm {
    pub(super) async fn strike(&mut self, fault: Fault) {
        let place = self.dice.usize(..self.clients.len());
        match fault {
            // So few that it happens before the next, on a busy machine, too.
            AnswerLost => self.proxy.cut_after(self.dice.u64(1..8)),
            BackendEnded => drop(self.any_backend("pg_terminate_backend(pid)::text").await),
            BackendKilled => {
                let before = self.started().await;
                let Some(pid) = self.any_backend("pid::text").await else { return };
                signal("KILL", &[pid.parse().unwrap()]);
                self.note_crash(before).await;
            }
            ClientKilled => {
                self.clients[place].kill();
                let seed = self.dice.u64(..);
                self.clients[place] = self.client(seed);
            }
            ClientStopped => {
                self.clients[place].signal("STOP");
                sleep(MAX_AGE * 3 / 2).await;
                self.clients[place].signal("CONT");
            }
            ClockMoved => self.move_clock().await,
            DiskFull => {
                let before = self.started().await;
                let Place::Server(server) = &mut self.place else { unreachable!() };
                fill_disk(server).await;
                let after = self.started().await;
                self.crashes.extend((after != before).then_some(after));
            }
            NumbersLowered => rates::lower(&mut self.admin().await, &mut self.dice).await,
            ServerCrashed => {
                let before = self.started().await;
                self.place.crash().await;
                if matches!(self.place, Place::Server(_)) {
                    self.note_crash(before).await;
                }
            }
            ServerStopped => {
                let sql = "select pid from pg_stat_activity
                            union select split_part(pg_read_file('postmaster.pid'), chr(10), 1)::int";
                let pids: Vec<i32> = sqlx::query_scalar(sql).fetch_all(&mut self.admin().await).await.unwrap();
                signal("STOP", &pids);
                sleep(MAX_AGE).await;
                signal("CONT", &pids);
            }
            StandbyPromoted => {
                self.place.look();
                let Place::Server(server) = &mut self.place else { unreachable!() };
                self.crashes.push(fail_over(server).await);
                self.proxy.lead_to(&self.place.url());
                self.proxy.cut().await;
            }
            TableRewritten => {
                let table = self.dice.choice(["durable", "ephemeral", "calls"]).unwrap();
                let sql = AssertSqlSafe(format!("vacuum full tollgate.{table}"));
                // The server process may be ended meanwhile by nobody but us.
                sqlx::raw_sql(sql).execute(&mut self.admin().await).await.unwrap();
            }
            WireCut => self.proxy.cut().await,
            WireHalfOpen => {
                self.proxy.strand();
                sleep(MAX_AGE).await;
                self.proxy.cut().await;
            }
            WireSilent => {
                self.proxy.swallow();
                sleep(MAX_AGE).await;
                self.proxy.pass_on();
                self.proxy.cut().await;
            }
            WireSlow => {
                self.proxy.slow_down(Duration::from_millis(self.dice.u64(5..50)));
                sleep(MAX_AGE).await;
                self.proxy.slow_down(Duration::ZERO);
            }
        }
    }

    pub(super) async fn admin(&self) -> PgConnection {
        PgConnection::connect(&self.place.url()).await.unwrap()
    }

    /// Something of the server process of any client.
    async fn any_backend(&mut self, what: &str) -> Option<String> {
        let sql = format!(
            "select {what} from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()
              offset $1 limit 1"
        );
        let nth = self.dice.i64(0..20);
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(nth).fetch_optional(&mut self.admin().await).await.unwrap()
    }

    /// Returns once the server is up. Its checkpointer was started between the last session before a crash and the
    /// first one after.
    async fn started(&self) -> i64 {
        let url = self.place.url();
        let started = async || -> Result<DateTime<Utc>, sqlx::Error> {
            let mut conn = PgConnection::connect(&url).await?;
            let sql = "select backend_start from pg_stat_activity where backend_type = 'checkpointer'";
            sqlx::query_scalar(sql).fetch_one(&mut conn).await
        };
        soon(async {
            loop {
                match started().await {
                    Ok(started) => break started.timestamp_micros(),
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            }
        })
        .await
    }

    /// Returns once the server, which was started `before`, is back from a crash.
    async fn note_crash(&mut self, before: i64) {
        let after = async {
            loop {
                match self.started().await {
                    after if after == before => sleep(Duration::from_millis(20)).await,
                    after => break after,
                }
            }
        };
        let after = soon(Box::pin(after)).await;
        self.crashes.push(after);
    }

    /// Moves the server's clock back for a moment, and then to a little later than it was: where the server crashes,
    /// rows that are lost are older than those after.
    async fn move_clock(&mut self) {
        let set = |millis: u64, sign| {
            let clock = clock().unwrap();
            // In one step: servers read it all the time.
            std::fs::write(clock.clone() + ".next", format!("{sign}{}.{:03}", millis / 1_000, millis % 1_000)).unwrap();
            std::fs::rename(clock.clone() + ".next", clock).unwrap();
        };
        let back = self.dice.u64(1..900);
        if back > self.ahead {
            set(back - self.ahead, '-');
        } else {
            set(self.ahead - back, '+');
        }
        sleep(MAX_AGE).await;
        self.ahead += self.dice.u64(..900);
        set(self.ahead, '+');
    }
}

/// The file by which libfaketime moves the server's clock, if it is there.
fn clock() -> Option<String> {
    std::env::var("TOLLGATE_STORM_CLOCK").ok()
}
