use sqlx::PgConnection;

use super::fleet::Fleet;
use super::joined::Joined;
use crate::bench::counters::Counters;
use crate::bench::error::BenchError;
use crate::bench::machine::cores;
use crate::bench::processors::Meter;
use crate::bench::rows;
use crate::bench::scaling::{Figures, Quantity, Subject};
use crate::bench::scene::{Scene, USERS};
use crate::bench::turn::{Entrant, Turn};
use crate::bench::users::Users;
use crate::bench::workload::Workload;
use crate::limit::Storage;

/// A turn of callers.
pub(super) async fn turn(
    conn: &mut PgConnection,
    url: &str,
    subject: Subject,
    timed: std::time::Duration,
) -> Result<Option<Figures>, BenchError> {
    let (entrant, scene, users): (Box<dyn Entrant>, _, _) = match subject {
        Subject::Gate { workload, storage, callers, keys, gates } => {
            let users = if keys == USERS { Users::of(workload) } else { Users::Even(keys) };
            (Box::new(Fleet { url: url.to_owned(), gates }), scene(workload, storage, callers), users)
        }
        Subject::Joined { storage, clients, shards, work_us } => {
            let entrant = Joined { url: url.to_owned(), shards, work_us };
            let workload = if shards.is_none() { Workload::Uniform } else { Workload::Hot };
            (Box::new(entrant), scene(workload, storage, clients), Users::of(workload))
        }
        _ => return Ok(None),
    };
    rows::tidy(conn).await?;
    // Whatever the checkpoints before it: each page is logged once as a whole.
    sqlx::raw_sql("checkpoint").execute(&mut *conn).await?;
    let meter = Meter::of_session(sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *conn).await?)?;
    let turn = Turn { scene, users, timed, meter: Some(meter) };
    let before = Counters::read(conn).await?;
    let tally = entrant.take(&turn).await;
    let tally = tally.map_err(|fault| BenchError::Contender { contender: entrant.name(), scene, fault })?;
    let counted = Counters::read(conn).await? - before;
    let spent = tally.spent.unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds are exact in 53 bits")]
    let (all, in_time) = (tally.decisions as f64, tally.latencies.len() as f64);
    let mut figures = Figures::from([
        (Quantity::PerSecond, in_time / timed.as_secs_f64()),
        (Quantity::ServerMicros, spent.server * 1e6 / in_time),
        (Quantity::ClientMicros, spent.client * 1e6 / in_time),
        (Quantity::WalBytes, counted.wal_bytes / all),
    ]);
    if counted.rows_written > 0.0 {
        figures.insert(Quantity::Batch, all / counted.writers);
    }
    if storage_of(subject) == Some(Storage::Durable)
        && let Some((flushes, ms)) = counted.flushes.zip(counted.flush_ms)
    {
        figures.insert(Quantity::Flushes, flushes / all);
        figures.insert(Quantity::FlushMicros, ms * 1e3 / flushes);
    }
    let others = (spent.everybody - spent.client - spent.server) / timed.as_secs_f64() / f64::from(cores());
    figures.insert(Quantity::Others, others.max(0.0));
    Ok(Some(figures))
}

fn scene(workload: Workload, storage: Storage, callers: u32) -> Scene {
    Scene { workload, storage, callers: usize::try_from(callers).unwrap_or(usize::MAX) }
}

fn storage_of(subject: Subject) -> Option<Storage> {
    match subject {
        Subject::Gate { storage, .. } | Subject::Joined { storage, .. } => Some(storage),
        _ => None,
    }
}
