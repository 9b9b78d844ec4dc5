//! Reports of how the other side fares. They are overrides that a reporter sets, each under a label of its own.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, Postgres};
use sqlx::query::Query;

use super::fault::{OverrideError, SlowDownFault, failed, rejected};
use super::row::Override;
use super::ruling::AppliedOverride;
use super::slow_down::SlowDown;
use super::slowed_rate::SlowedRate;
use super::table::{self, micros};
use super::watch::{Overrides, PATIENCE};
use crate::DAY;
use crate::algebra::Timestamp;
use crate::call::Request;
use crate::key::Key;
use crate::limit::{Limit, LimitKind};
use crate::store::session::{self, Right};

/// # Following the other side
///
/// The rate of calls to another service follows that service. A process that hears of its trouble reports it, and all
/// processes slow down. Each report is an override that ends by itself, in a short transaction of its own over a
/// connection of the pool. It waits for a lock for at most 0.9 seconds. This process goes by it at once, and the others
/// within about a second.
///
/// A role that is no operator needs the right to report: `tollgate migrate up --grant-reporter ROLE`. A reporter that
/// lies can slow a limit down to a hundredth of its rate, and pause it for a day at a time.
impl Overrides {
    /// Reports a call that failed, such as an answer 429 or 503. Few that fail are [tolerated](SlowDown::forgets); one
    /// more is trouble, and so is one of a limit that is paused. Then the limit keeps a share of its present rate for
    /// the request's key, and grows back by itself. The capacity stays. A sliding window and a concurrency limit get a
    /// smaller `n`; that of a concurrency limit is rounded down to whole tokens, at least one. Leases that callers hold
    /// stay, also above the smaller `n`. A call that costs more than the smaller `n` is refused until the slow-down
    /// ends. A request for all callers ([`Limit::global`]) slows down every key.
    ///
    /// However many processes report, the rate is cut once in a [cool-down](SlowDown::cool_down). A report within it
    /// asks the database nothing if this process knows of the cut. At no later instant does a report leave a larger
    /// share than there would have been. Returns the slow-down that counts, with its [share](Override::share).
    ///
    /// In every span a key gets at most its capacity and what the largest share in the span brings back. So it may
    /// still spend its capacity at once after a cut: keep the capacity small against the rate.
    ///
    /// # Errors
    ///
    /// [`OverrideError::SlowDown`] for a number out of its range, and for a wallet, a monthly and a billing limit;
    /// [`OverrideError::Meter`]. Both come before any SQL. [`OverrideError::Key`], [`OverrideError::NotWatched`],
    /// [`OverrideError::TooManyReports`], and the database's errors.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{Limit, Overrides, SECOND, SlowDown};
    ///
    /// const THEIR_SERVICE: Limit = Limit::token_bucket("their_service", 1_000, SECOND).capacity(200);
    ///
    /// async fn heard(overrides: &Overrides, status: u16) -> Result<(), tollgate::OverrideError> {
    ///     if status == 429 || status == 503 {
    ///         overrides.slow_down(THEIR_SERVICE.global(), &SlowDown::new()).await?;
    ///     }
    ///     Ok(())
    /// }
    /// # let _ = heard;
    /// ```
    pub async fn slow_down(&self, request: Request, how: &SlowDown) -> Result<Override, OverrideError> {
        let (limit, key) = asked(&request)?;
        if let Some(fault) = SlowDownFault::of(how, limit) {
            return Err(OverrideError::SlowDown { limit: limit.name().to_owned(), fault });
        }
        let cools_down = |said: &Override, now: DateTime<Utc>| {
            said.slowed().is_some_and(|slowed| slowed.is_cooling_down(how, now.into()))
        };
        if let Some(known) = self.reported(limit, key, AppliedOverride::SLOW_DOWN, cools_down) {
            return Ok(known);
        }
        let sql = sqlx::query(concat!(include_str!("slow_down.sql"), include_str!("row.sql")))
            .bind(limit.name())
            .bind(key.as_str())
            .bind(i32::from(how.percent))
            .bind(i32::from(how.least_percent))
            .bind(micros(how.recovers))
            .bind(micros(how.cool_down))
            .bind(micros(SlowedRate::forgets(how, limit, request.cost)));
        let slowed = self.report(limit, sql).await?;
        slowed.ok_or_else(|| failed("report trouble to")(sqlx::Error::RowNotFound))
    }

    /// Reports until when the other side asks callers to wait: nothing is granted before, to the request's key or to
    /// every key. An end later than a day counts as a day, and is rounded up to a whole second. A pause that ends
    /// later stays. A pause brings a bucket nothing, so no burst follows it. A rate that was slowed down grows back
    /// from the end of the pause. Returns the pause that counts; `None` if the instant has passed and there is none.
    ///
    /// # Errors
    ///
    /// [`OverrideError::Meter`], [`OverrideError::Key`], [`OverrideError::NotWatched`],
    /// [`OverrideError::TooManyReports`], and the database's errors.
    pub async fn pause_until(&self, request: Request, at: DateTime<Utc>) -> Result<Option<Override>, OverrideError> {
        self.pause(request, at, None, false).await
    }

    /// Reports for how long the other side asks callers to wait, as `Retry-After` does; otherwise as
    /// [`pause_until`](Self::pause_until).
    ///
    /// # Errors
    ///
    /// Those of [`pause_until`](Self::pause_until).
    pub async fn pause_for(&self, request: Request, span: Duration) -> Result<Option<Override>, OverrideError> {
        self.pause_lasting(request, span.min(DAY), false).await
    }

    /// Reports for how long an answer asks callers to wait, as [`pause_for`](Self::pause_for) does. Other answers may
    /// correct it: one that names less than half of what is left ends the pause then. It must come from the same role.
    /// A pause that was also reported otherwise stays.
    ///
    /// # Errors
    ///
    /// Those of [`pause_until`](Self::pause_until).
    pub async fn pause_as_told(&self, request: Request, span: Duration) -> Result<Option<Override>, OverrideError> {
        self.pause_lasting(request, span.min(DAY), true).await
    }

    async fn pause_lasting(
        &self,
        request: Request,
        span: Duration,
        as_told: bool,
    ) -> Result<Option<Override>, OverrideError> {
        self.pause(request, self.now().plus(span).into(), Some(span), as_told).await
    }

    /// Pauses it until an instant; by the database's clock for so long, if `lasting` says so.
    async fn pause(
        &self,
        request: Request,
        until: DateTime<Utc>,
        lasting: Option<Duration>,
        as_told: bool,
    ) -> Result<Option<Override>, OverrideError> {
        let (limit, key) = asked(&request)?;
        let is_enough = |said: &Override, now| {
            let Some(end) = said.ends_at else { return true };
            let (was_told, is_corrected) = (said.reason == TOLD, end - until > until - now);
            end >= until && !(was_told && (is_corrected || !as_told))
        };
        if let Some(known) = self.reported(limit, key, AppliedOverride::PAUSE, is_enough) {
            return Ok(Some(known));
        }
        let sql = sqlx::query(concat!(include_str!("pause.sql"), include_str!("row.sql")))
            .bind(limit.name())
            .bind(key.as_str())
            .bind(lasting.is_none().then(|| Timestamp::from(until)))
            .bind(lasting.map(micros))
            .bind(as_told);
        self.report(limit, sql).await
    }

    /// The live report of a label on exactly this key, if this process knows of one that is enough now.
    fn reported(
        &self,
        limit: &Limit,
        key: &Key,
        label: &str,
        is_enough: impl Fn(&Override, DateTime<Utc>) -> bool,
    ) -> Option<Override> {
        self.inner.known(|known| {
            let now = known.now().into();
            let is_of_key = |said: &Override| said.key.as_ref().unwrap_or(&Key::GLOBAL) == key && said.label == label;
            let mut set = known.map.set_for(limit.name(), key);
            set.find(|said| is_of_key(said) && said.is_live(now) && is_enough(said, now)).cloned()
        })
    }

    /// Reports, and goes by the answer at once.
    async fn report(
        &self,
        limit: &Limit,
        sql: Query<'_, Postgres, PgArguments>,
    ) -> Result<Option<Override>, OverrideError> {
        let pool = self.inner.pool.as_ref().ok_or(OverrideError::NotWatched)?;
        let settings = format!("read write; {} {BRIEFLY} {}", session::DEFAULTS, Right::OVERRIDES.own_role());
        let said = async {
            let mut session = session::take(pool, Right::OVERRIDES).await?;
            let mut tx = session::begin(&mut session, &settings).await?;
            let row = sql.persistent(false).fetch_one(&mut *tx).await?;
            tx.commit().await?;
            session.finished();
            table::said(&row)
        };
        let said = tokio::time::timeout(PATIENCE, said).await.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        let said = said.map_err(|source| rejected(limit.name(), "report trouble to", source))?;
        if let Some(said) = &said {
            self.inner.note(said.clone());
        }
        Ok(said)
    }
}

/// The reason of a pause that answers may correct (`tollgate.pause`).
const TOLD: &str = "an answer asked callers to wait";

/// A report does not wait long for another one: then its trouble is old. A layer waits for a second, which is longer,
/// so that its connection is not closed.
const BRIEFLY: &str = "set local lock_timeout = '900ms';";

fn asked(request: &Request) -> Result<(&Limit, &Key), OverrideError> {
    let (limit, named) = (request.limit(), || request.limit().name().to_owned());
    if limit.kind == LimitKind::Meter {
        return Err(OverrideError::Meter { limit: named() });
    }
    request.target().map_err(|source| OverrideError::Key { limit: named(), source })
}
