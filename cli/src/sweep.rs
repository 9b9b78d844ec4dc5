//! `tollgate sweep`: gives back the charges of calls that lapsed, and deletes rows that are full again, once or again
//! and again.

use std::io;
use std::time::Duration;

use serde::Serialize;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate::{Storage, Sweeper, Swept, migrate};

use crate::at_least;
use crate::database::{DatabaseArgs, begin_from};
use crate::error::CommandError;
use crate::output::{OutputArgs, counted, print, tell};
use crate::parts::Away;
use crate::storage;

/// Delete rows that are full again, in small batches, while callers go on.
///
/// First the command gives back the charges of calls that have lapsed. Then it deletes the rows that have been full for
/// `--margin`. Last it forgets ids of calls, `--margin` after nobody needs them any more. A dry run counts rows only.
///
/// SIGINT (Ctrl-C) or SIGTERM ends the command after the current batch. It then prints what it did, and succeeds. With
/// --json, it prints one document for each pass, on a line of its own.
///
/// The command goes by the database's clock. If that clock differs from this machine's by more than a minute, the
/// command deletes nothing and fails. With --every it does not fail, but waits until the two have agreed for the
/// margin. On Citus, where rows lie on other servers, it compares no clocks.
///
/// Exit status: 0 done or ended by a signal, 1 failed, 130 ended at once by a second signal.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    /// Sweep again and again until SIGINT or SIGTERM, and pause for about this long in between ("1m", "1h"). Without
    /// this option, the command makes one pass.
    #[arg(long, value_name = "SPAN", value_parser = at_least(Duration::from_secs(1)))]
    every: Option<Duration>,

    /// The most rows that one statement deletes.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Work for this share of the time, in percent, and rest for the remainder.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,

    /// How long a row stays once it is full. The database's clock may step back by so much without harm.
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    margin: Duration,

    /// Sweep even if the database's clock differs from this machine's.
    #[arg(long)]
    force: bool,

    /// Delete nothing, and print how many rows would be deleted.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: SweepArgs) -> Result<(), CommandError> {
    let sweeper = sweeper(&args);
    let pool = args.database.pool(1).await?;
    let mut stop = listen()?;
    let parts = migrate::parts(&mut *begin_from(&pool).await?).await?;
    loop {
        let (report, swept) = if parts > 0 {
            sweep_parts(&args, parts, &pool, &stop).await
        } else {
            sweep(&args, &sweeper, &pool, &stop).await
        };
        if swept.is_ok() || report.swept.pages > 0 {
            print(&if args.output.json { serde_json::to_string(&report)? } else { report.text() })?;
        }
        let hindrance = match swept {
            Ok(()) => report.hindrance(),
            Err(error) if args.every.is_some() && error.is_retryable() => Some(error.into()),
            Err(error) => return Err(error.into()),
        };
        match hindrance {
            // A sweep that runs all day outlasts a restart of the server, and a session that keeps the lock.
            Some(hindrance) if args.every.is_some() => tell(format_args!("error: {hindrance}")),
            Some(hindrance) => return Err(hindrance),
            None => {}
        }
        let Some(every) = args.every.filter(|_| !*stop.borrow()) else { return Ok(()) };
        // Up to a tenth earlier or later: many that were started together do not sweep together.
        let pause = (every / 10 * 9).saturating_add((every / 5).mul_f64(fastrand::f64()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.changed() => return Ok(()),
        }
    }
}

fn sweeper(args: &SweepArgs) -> Sweeper {
    let sweeper = Sweeper::new().unnamed_statements().batch(args.batch).share(args.share).margin(args.margin);
    let sweeper = if args.force { sweeper.trusting_the_clock() } else { sweeper };
    if args.dry_run { sweeper.dry_run() } else { sweeper }
}

/// Makes one pass, until its end, an error, or a signal. The report is about what it did until then.
async fn sweep(
    args: &SweepArgs,
    sweeper: &Sweeper,
    pool: &PgPool,
    stop: &watch::Receiver<bool>,
) -> (Report, Result<(), tollgate::Error>) {
    let began = Instant::now();
    let (mut pass, mut more) = (sweeper.pass(pool), Ok(true));
    while matches!(more, Ok(true)) && !*stop.borrow() {
        more = pass.step().await;
        let Swept { pages, yielded, shut_out, .. } = pass.swept();
        if more.is_ok() && yielded && pages == 0 && !shut_out {
            // Another sweeper has the lock for a moment. A session that has it ten times in a row keeps it.
            tokio::time::sleep(A_MOMENT).await;
            (pass, more) = (sweeper.pass(pool), Ok(true));
        }
    }
    let swept = pass.swept();
    let complete = matches!(more, Ok(false)) && !swept.yielded && !swept.clock_stepped;
    (Report { swept, complete, ..Report::new(args, began) }, more.map(drop))
}

/// The same where Citus keeps the rows on other servers.
async fn sweep_parts(
    args: &SweepArgs,
    parts: u16,
    pool: &PgPool,
    stop: &watch::Receiver<bool>,
) -> (Report, Result<(), tollgate::Error>) {
    let (began, mut swept, mut away) = (Instant::now(), Swept::default(), Away::of(parts));
    let mut ended = Ok(());
    let reaped = if args.dry_run { Ok(0) } else { Sweeper::new().unnamed_statements().parts(parts).reap(pool).await };
    for part in away.parts() {
        let tables = [
            (storage::table(Storage::Ephemeral), FULL, &mut swept.ephemeral),
            (storage::table(Storage::Durable), FULL, &mut swept.durable),
            ("tollgate.calls", FORGOTTEN, &mut swept.calls),
        ];
        // A dry run counts no calls, as elsewhere.
        for (table, condition, rows) in tables.into_iter().take(if args.dry_run { 2 } else { 3 }) {
            let answer = sweep_part(args, pool, [table, condition], part, rows, stop).await;
            if let Err(error) = away.answer(part, answer) {
                let failed =
                    tollgate::Error::Database { step: tollgate::Step::Sweep(table), limit: None, source: error.into() };
                ended = ended.and(Err(failed));
            }
        }
    }
    let away = away.check().err();
    match reaped {
        Ok(calls) => swept.lapsed = calls,
        // The report already says that a part is away.
        Err(_) if away.is_some() => {}
        Err(error) => ended = ended.and(Err(error)),
    }
    let complete = ended.is_ok() && away.is_none() && !*stop.borrow();
    (Report { swept, complete, away, ..Report::new(args, began) }, ended)
}

/// Deletes the rows of a table that go, in one part, a batch at a time, and counts them. A dry run only counts them.
async fn sweep_part(
    args: &SweepArgs,
    pool: &PgPool,
    [table, condition]: [&str; 2],
    part: i16,
    rows: &mut u64,
    stop: &watch::Receiver<bool>,
) -> Result<(), sqlx::Error> {
    let going = format!("from {table} r where r.part = $1 and {condition} limit $3");
    let sql = if args.dry_run {
        format!("select {going}")
    } else {
        format!(
            "delete from {table} where part = $1 and ctid = any (array(select ctid {going} for update skip locked))"
        )
    };
    let most = if args.dry_run { i64::MAX } else { args.batch.into() };
    while !*stop.borrow() {
        let began = Instant::now();
        let query = sqlx::query(AssertSqlSafe(&*sql)).bind(part).bind(args.margin.as_secs_f64()).bind(most);
        // A transaction keeps a pooler from sending a statement's parts to different servers.
        let mut tx = begin_from(pool).await?;
        let done = query.persistent(false).execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        *rows += done;
        if done < u64::from(args.batch) || args.dry_run {
            break;
        }
        tokio::time::sleep(began.elapsed() * u32::from(100 - args.share) / u32::from(args.share)).await;
    }
    Ok(())
}

/// Takes SIGINT and SIGTERM over from here on: the first ends a sweep after the current batch, the second ends it at
/// once.
fn listen() -> io::Result<watch::Receiver<bool>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        for is_first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            stop.send_replace(true);
            if is_first {
                tell("ending after the current batch; a second signal ends it at once");
            }
        }
        std::process::exit(KILLED_BY_INTERRUPT);
    });
    Ok(stopped)
}

/// The result of one pass.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    swept: Swept,
    /// Whether the pass came to its end.
    complete: bool,
    dry_run: bool,
    seconds: f64,
    /// Which parts do not answer.
    #[serde(skip)]
    away: Option<CommandError>,
}

impl Report {
    fn new(args: &SweepArgs, began: Instant) -> Self {
        let seconds = began.elapsed().as_secs_f64();
        Self { swept: Swept::default(), complete: false, dry_run: args.dry_run, seconds, away: None }
    }

    fn text(&self) -> String {
        let Swept { ephemeral, durable, calls, lapsed, missed, pages, yielded, shut_out, .. } = self.swept;
        let verb = if self.dry_run { "would delete" } else { "deleted" };
        let mut parts = vec![format!("{verb} {durable} durable and {ephemeral} ephemeral rows")];
        if lapsed > 0 {
            parts.push(format!("gave {} back that had lapsed", counted(lapsed, "call")));
        }
        if calls > 0 {
            parts.push(format!("forgot {}", counted(calls, "call")));
        }
        parts.push(format!("looked at {} in {:.1} s", counted(pages, "page"), self.seconds));
        if missed > 0 {
            parts.push(format!("left {} in use", counted(missed, "row")));
        }
        if yielded && !shut_out {
            parts.push("another sweeper is at work, and has the rest".to_owned());
        } else if !self.complete {
            parts.push("ended early".to_owned());
        }
        parts.join("; ")
    }

    /// An error that kept the pass from its work.
    fn hindrance(self) -> Option<CommandError> {
        if self.swept.clock_stepped {
            return Some(CommandError::new(
                "the clocks of the database and of this machine differ by more than a minute, or did within the margin",
                "set the wrong one: a sweep under a clock that is ahead forgives debts; --force if this machine's is \
                 wrong",
            ));
        }
        let holder = "select pid from pg_locks join pg_stat_activity using (pid) where datname = current_database() \
                      and granted and locktype = 'advisory' and objid = '1684300900'";
        let kept =
            || CommandError::new("another session keeps the lock of the sweepers", format!("find it with: {holder}"));
        self.away.or_else(|| self.swept.shut_out.then(kept))
    }
}

/// The conditions for rows of a limit that go, and for calls that go, where the command deletes by SQL: after a margin
/// of $2 seconds.
const FULL: &str = "full_at <= now() - make_interval(secs => $2) and full_at >= ts";
const FORGOTTEN: &str = "lapses_at is null and kept_until <= now() - make_interval(secs => $2)";

/// How long a sweeper's statement may have the lock: many times as long as it usually takes.
const A_MOMENT: Duration = Duration::from_millis(100);

/// As shells report it.
const KILLED_BY_INTERRUPT: i32 = 130;
