//! `tollgate sweep`: rows that are full again go, once or again and again.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use sqlx::PgPool;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate::algebra::Timestamp;
use tollgate::{Sweeper, Swept, migrate};

use crate::at_least;
use crate::database::{DatabaseArgs, clock};
use crate::error::{CommandError, in_one_line};
use crate::limits_file::{self, LimitsArgs};
use crate::output::{OutputArgs, counted, instant, print, tell};

/// Delete rows that are full again, in small batches beside those who decide.
///
/// A row goes when it has been full for a margin, by its own word and by the limits files. SIGINT (Ctrl-C) and SIGTERM
/// end it after the current batch; it then says what it did, and that is no failure. With --json there is one document
/// for each pass, on a line of its own.
///
/// It goes by the database's clock. If that differs from this machine's by more than a minute, it deletes nothing and
/// fails; the same where Citus keeps the rows on other servers.
///
/// Exit status: 0 done or ended by a signal, 1 failed, 130 ended at once by a second signal.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// The limits file of a release that is still live beside the one of --limits: a row goes when it is full under
    /// both.
    #[arg(long, value_name = "FILE")]
    old_limits: Option<PathBuf>,

    /// Sweep again and again, about so often ("1m", "1h"), until SIGINT or SIGTERM.
    #[arg(long, value_name = "SPAN", value_parser = at_least(Duration::from_secs(1)))]
    every: Option<Duration>,

    /// How many rows one statement deletes at most.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// Which share of the time to work, in percent; it rests in between.
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    share: u8,

    /// How long a row stays once it is full. It absorbs steps of the database's clock back, and for limits that are in
    /// no limits file a definition that takes so much longer to fill up.
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    margin: Duration,

    /// Sweep although the database's clock differs from this machine's.
    #[arg(long)]
    force: bool,

    /// Delete nothing, and say what would be deleted.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: SweepArgs) -> Result<(), CommandError> {
    let sweeper = sweeper(&args)?;
    let pool = args.database.pool(1).await?;
    let mut stop = listen()?;
    expect_sound(&pool, args.force).await?;
    loop {
        let (report, swept) = sweep(&args, &sweeper, &pool, &stop).await;
        if swept.is_ok() || report.swept.pages > 0 {
            print(&if args.output.json { serde_json::to_string(&report)? } else { report.text() })?;
        }
        match swept {
            // A sweep that runs all day outlasts a server that is restarted.
            Err(error) if args.every.is_some() && error.is_retryable() => {
                tell(format_args!("error: {}", in_one_line(&error)));
            }
            swept => swept?,
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

fn sweeper(args: &SweepArgs) -> Result<Sweeper, CommandError> {
    let mut sweeper = Sweeper::new().unnamed_statements().batch(args.batch).share(args.share).margin(args.margin);
    let old = args.old_limits.as_deref().map(limits_file::read).transpose()?;
    for limits in args.limits.load()?.iter().chain(&old) {
        sweeper = sweeper.knows(limits.iter().cloned());
    }
    Ok(if args.dry_run { sweeper.dry_run() } else { sweeper })
}

/// Fails where a sweep would find nothing, or could delete too much.
async fn expect_sound(pool: &PgPool, force: bool) -> Result<(), CommandError> {
    // A transaction keeps a pooler from sending a statement's parts to different servers.
    let mut tx = pool.begin().await?;
    let parts = migrate::parts(&mut tx).await?;
    if parts > 0 {
        return Err(CommandError::new(
            format!("a sweep walks the pages of one server, and the tables lie in {parts} parts on the nodes of Citus"),
            "on the coordinator, for tollgate.ephemeral and tollgate.durable: delete from … where full_at < \
             now() - interval '10 minutes'",
        ));
    }
    let before = this_machine();
    let now = clock(&mut tx).await?;
    let after = this_machine();
    if !force && (now.plus(NEAR) < before || after.plus(NEAR) < now) {
        let (now, after) = (instant(now), instant(after));
        return Err(CommandError::new(
            format!("the database's clock shows {now}, and this machine's {after}"),
            "set the wrong one: a sweep under a clock that is ahead forgives debts; --force if this machine's is wrong",
        ));
    }
    Ok(())
}

/// What this machine's clock shows.
#[expect(clippy::disallowed_methods, reason = "only to find out whether the database's clock is far off")]
fn this_machine() -> Timestamp {
    Timestamp::from_micros(0).plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Makes one pass, until its end, an error, or a signal. The report is about what it did until then.
async fn sweep(
    args: &SweepArgs,
    sweeper: &Sweeper,
    pool: &PgPool,
    stop: &watch::Receiver<bool>,
) -> (Report, Result<(), tollgate::Error>) {
    let began = Instant::now();
    let mut pass = sweeper.pass(pool);
    let mut more = Ok(true);
    while matches!(more, Ok(true)) && !*stop.borrow() {
        more = pass.step().await;
    }
    let swept = pass.swept();
    let complete = matches!(more, Ok(false)) && !swept.yielded && !swept.clock_stepped;
    let report = Report { swept, complete, dry_run: args.dry_run, seconds: began.elapsed().as_secs_f64() };
    (report, more.map(drop))
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

/// What one pass did.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    swept: Swept,
    /// Whether it came to its end.
    complete: bool,
    dry_run: bool,
    seconds: f64,
}

impl Report {
    fn text(&self) -> String {
        let Swept { ephemeral, durable, kept, missed, pages, yielded, clock_stepped, shut_out, .. } = self.swept;
        let verb = if self.dry_run { "would delete" } else { "deleted" };
        let mut parts = vec![format!("{verb} {durable} durable and {ephemeral} ephemeral rows")];
        parts.push(format!("looked at {} in {:.1} s", counted(pages, "page"), self.seconds));
        if kept > 0 {
            parts.push(format!("kept {}, not full for the margin by the limits file", counted(kept, "row")));
        }
        if missed > 0 {
            parts.push(format!("left {} in use", counted(missed, "row")));
        }
        if clock_stepped {
            parts.push(
                "the database's clock ran away, and nothing goes until it has kept step for the margin".to_owned(),
            );
        } else if shut_out {
            let holder = "select pid from pg_locks join pg_stat_activity using (pid) where datname = current_database() \
                          and granted and locktype = 'advisory' and objid = '1684300900'";
            parts.push(format!("another session keeps the lock of the sweepers (find it with: {holder})"));
        } else if yielded {
            parts.push("another sweeper is at work, and has the rest".to_owned());
        } else if !self.complete {
            parts.push("ended early".to_owned());
        }
        parts.join("; ")
    }
}

/// So far the database's clock may be from this machine's.
const NEAR: Duration = Duration::from_mins(1);

/// As shells report it.
const KILLED_BY_INTERRUPT: i32 = 130;
