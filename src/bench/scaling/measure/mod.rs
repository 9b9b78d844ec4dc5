mod callers;
mod fleet;
mod joined;
mod plan;
mod tables;

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{Figures, Measurements, Point, Quantity, Subject};
use crate::bench::error::BenchError;
use crate::bench::machine::Machine;
use crate::bench::rows;
use crate::bench::scene::USERS;
use crate::embedded::Server;
use crate::migrate;
use plan::{CALLERS, MANY_KEYS, TABLES};

/// Measures how one server scales: all points by turns, in rounds.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// How often all points have their turn. The median of the quieter half counts.
    pub rounds: usize,
    /// How long the callers are timed in each turn.
    pub turn: Duration,
    /// Points with more callers than that are left out.
    pub most_callers: u32,
    /// A divisor of the tables' sizes, to see that it works.
    pub divisor: u32,
}

impl Scaling {
    /// One short round over small tables: to see that it works, not to quote.
    #[must_use]
    pub fn quick() -> Self {
        Self { rounds: 1, turn: Duration::from_millis(50), most_callers: 16, divisor: 100 }
    }

    /// How many turns a run has.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.rounds * (self.callers().count() + TABLES.len())
    }

    fn callers(&self) -> impl Iterator<Item = Subject> {
        let few = |subject: &Subject| match subject {
            Subject::Gate { callers: many, .. } | Subject::Joined { clients: many, .. } => *many <= self.most_callers,
            _ => true,
        };
        CALLERS.into_iter().filter(few)
    }

    /// Measures everything on a private server of [`bench::server`](crate::bench::server), and says before each turn what it
    /// is about.
    ///
    /// # Errors
    ///
    /// The first error ends the run, and so does a wrong answer.
    pub async fn run(&self, server: &Server, mut before_turn: impl FnMut(Subject)) -> Result<Measurements, BenchError> {
        let mut conn = PgConnection::connect(server.url()).await.map_err(BenchError::Connect)?;
        for sql in ["alter system set track_wal_io_timing = on", "select pg_reload_conf()"] {
            sqlx::raw_sql(sql).execute(&mut conn).await?;
        }
        conn.close().await?;
        let (mut small, small_url) = prepare(server, "scaling").await?;
        rows::fill(&small_url).await?;
        let (mut large, large_url) = prepare(server, "scaling_many_keys").await?;
        sqlx::query(FILL_MANY).bind(i64::from(MANY_KEYS / self.divisor)).execute(&mut large).await?;
        let (_, tables_url) = prepare(server, "scaling_tables").await?;
        let mut measured: BTreeMap<usize, Vec<Figures>> = BTreeMap::new();
        let mut subjects = Vec::new();
        let mut note = |subject: Subject, figures| {
            let place = subjects.iter().position(|known| *known == subject).unwrap_or_else(|| {
                subjects.push(subject);
                subjects.len() - 1
            });
            measured.entry(place).or_default().push(figures);
        };
        for _ in 0..self.rounds {
            for subject in self.callers() {
                before_turn(subject);
                let is_large = matches!(subject, Subject::Gate { keys, .. } if keys != USERS);
                let (conn, url) = if is_large { (&mut large, &large_url) } else { (&mut small, &small_url) };
                if let Some(figures) = callers::turn(conn, url, subject, self.turn).await? {
                    note(subject, figures);
                }
            }
            for (keys, rows) in TABLES {
                before_turn(Subject::Rows { keys, rows });
                for (subject, figures) in tables::measure(&tables_url, keys, rows / self.divisor).await? {
                    note(subject, figures);
                }
            }
        }
        let point = |(place, rounds): (usize, Vec<Figures>)| {
            let subject = subjects[place];
            Point { subject, measured: typical(rounds) }
        };
        let machine = Machine::read(&mut small).await?;
        Ok(Measurements {
            rounds: self.rounds,
            seconds: self.turn.as_secs_f64(),
            machine,
            points: measured.into_iter().map(point).collect(),
        })
    }
}

impl Default for Scaling {
    /// Five rounds, of turns of a second: about eight minutes.
    fn default() -> Self {
        Self { rounds: 5, turn: Duration::from_secs(1), most_callers: u32::MAX, divisor: 1 }
    }
}

/// A database of its own, with the tables.
async fn prepare(server: &Server, name: &str) -> Result<(PgConnection, String), BenchError> {
    let mut conn = PgConnection::connect(server.url()).await.map_err(BenchError::Connect)?;
    sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&mut conn).await?;
    let url = server.database_url(name);
    let mut conn = PgConnection::connect(&url).await.map_err(BenchError::Connect)?;
    migrate::run(&mut conn).await?;
    let _ = sqlx::query("create extension pg_stat_statements").execute(&mut conn).await;
    Ok((conn, url))
}

/// The figures of one round, which belong together: of those rounds in which others on the machine had least, half of
/// all, the one whose rate is the median.
fn typical(mut rounds: Vec<Figures>) -> Figures {
    let of = |round: &Figures, quantity| round.get(&quantity).copied().unwrap_or_default();
    for quantity in [Quantity::Others, Quantity::PerSecond] {
        rounds.sort_by(|one, other| of(one, quantity).total_cmp(&of(other, quantity)));
        if quantity == Quantity::Others {
            rounds.truncate(rounds.len().div_ceil(2));
        }
    }
    let middle = rounds.len() / 2;
    rounds.into_iter().nth(middle).unwrap_or_default()
}

/// The users of many keys, in both tables, in the order of their numbers.
const FILL_MANY: &str = "
    insert into tollgate.rate_limits (name, key, shard, value, ts, full_at)
    select 'bench_per_user', (n - 1)::text, 0, 1000000000000000, clock_timestamp(), clock_timestamp()
      from generate_series(1, $1) as n (n)";
