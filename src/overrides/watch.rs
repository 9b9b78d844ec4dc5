use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::fault::{OverrideError, failed};
use super::known::{Known, LastReading, Map, Snapshot, Stamp};
use super::row::Override;
use super::ruling::{AppliedOverride, OverrideOf};
use super::slowed_rate::SlowedRate;
use super::table;
use crate::algebra::Timestamp;
use crate::error::chain;
use crate::key::Key;
use crate::limit::Limit;
use crate::store::session::{self, Right};
use crate::{SECOND, meter};

/// The overrides of the table `tollgate.overrides`, as this process knows them. Give them to a
/// [`Limiter`](crate::Limiter::overrides) and a [`Gate`](crate::GateBuilder::overrides), which then go by them. Clones
/// share the same overrides.
///
/// # Which one counts
///
/// A key can have several overrides, one for each [label](crate::NewOverride::label). There can also be several
/// overrides for every key of a limit. For a call, those of its key and those for every key count while they are live,
/// in this order:
///
/// 1. A deny counts first. While several deny, nothing is granted before the last of them ends.
/// 2. Then unlimited.
/// 3. Then the key's own numbers, and then the numbers for every key. Of several, the ones that were set last count: by
///    `set_at`, and where that is the same, by the label that sorts last.
/// 4. [Slow-downs](Self::slow_down) leave a share of the rate that then counts. Of several, the smallest share counts.
///
/// Numbers that do not apply to the limit ([`Effect::Numbers`](crate::Effect::Numbers)) are passed over. When an
/// override ends, or is removed, the next one counts. An override with a later start has no effect before it. A row
/// that is [`Unreadable`](crate::Effect::Unreadable) denies, because it may be a deny. An event at `warn` names this
/// row, and `tollgate override list` shows it.
///
/// # Staleness
///
/// A task reads the table each second, over a connection of the pool. So a change to an override counts within a second
/// of its commit, plus the time of a reading. The task asks for a small stamp first, and reads all rows if something
/// has changed, or if it has read none for a minute. While the database is away, the table is locked, or the pool is in
/// full use, the last good reading stays, and each override in it counts until its own end. [`age`](Self::age) returns
/// the age of the reading, and an event at `warn` says that a reading failed. The service's pool may be in full use
/// just when somebody has to be denied: then give the task a pool of its own, of one connection, as a
/// [`Tollgate`](crate::Tollgate) does.
///
/// The SQL functions read the table in each call.
///
/// # Time
///
/// An override starts and ends by the database's clock: its last reading, carried on by the monotonic clock of this
/// process. So an override is never early, and is late by the time of a reading at most. On a machine that was
/// suspended it is late until the next reading. An override without a start has begun when it is set, even if the clock
/// steps back.
///
/// # Cost
///
/// A call looks into a map in memory; while there is no override, it reads one flag.
///
/// # Example
///
/// ```
/// use tollgate::{Gate, Limiter, Overrides};
///
/// async fn start(pool: sqlx::PgPool) -> Result<(Limiter, Gate), tollgate::OverrideError> {
///     let overrides = Overrides::watch(pool.clone()).await?;
///     Ok((Limiter::new().overrides(&overrides), Gate::builder(pool).overrides(&overrides).build()))
/// }
/// # let _ = start;
/// ```
#[derive(Clone)]
pub struct Overrides {
    pub(super) inner: Arc<Known>,
}

impl Overrides {
    /// Reads the table, and then again each second, in a task that ends with the last clone.
    ///
    /// # Errors
    ///
    /// [`OverrideError::Database`] and [`OverrideError::Setup`] where the first reading fails, and
    /// [`OverrideError::Stopped`].
    pub async fn watch(pool: PgPool) -> Result<Self, OverrideError> {
        Handle::try_current().map_err(|_| OverrideError::Stopped)?;
        Self::watched(pool).await.map_err(failed("read"))
    }

    /// The same on a runtime.
    pub(crate) async fn watched(pool: PgPool) -> Result<Self, sqlx::Error> {
        let mut session = session::take(&pool, Right::OVERRIDES).await?;
        let first = first_reading(&mut session, &alone(session::DEFAULTS)).await?;
        session.finished();
        meter::overrides_read(first.now);
        Ok(Self::watching(first, pool))
    }

    /// Knows of no override until the table can be read. On a runtime.
    pub(crate) fn unread(pool: PgPool) -> Self {
        Self::watching(LastReading::new(Map::default(), None, Timestamp::MIN), pool)
    }

    fn watching(known: LastReading, pool: PgPool) -> Self {
        let overrides = Self::new(known, Some(pool.clone()));
        tokio::spawn(again_and_again(Arc::downgrade(&overrides.inner), pool));
        overrides
    }

    /// Reads the table once, for tools and tests.
    ///
    /// # Errors
    ///
    /// [`OverrideError::Database`] and [`OverrideError::Setup`].
    pub async fn read(conn: &mut PgConnection) -> Result<Self, OverrideError> {
        Ok(Self::new(first_reading(conn, "").await.map_err(failed("read"))?, None))
    }

    fn new(known: LastReading, pool: Option<PgPool>) -> Self {
        Self { inner: Arc::new(Known::new(known, pool)) }
    }

    /// The time since the table was last read.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.inner.known(|known| known.read.elapsed())
    }

    /// All overrides in the table, including those that have not begun yet or are over.
    #[must_use]
    pub fn all(&self) -> Vec<Override> {
        let mut all = self.inner.known(|known| known.map.iter().cloned().collect::<Vec<_>>());
        all.sort_by(|one, other| (&one.limit, &one.key, &one.label).cmp(&(&other.limit, &other.key, &other.label)));
        all
    }

    /// The overrides of a limit that are live at an instant: those of the key, and then those for every key.
    #[must_use]
    pub fn live_for(&self, limit: &str, key: &Key, now: DateTime<Utc>) -> Vec<Override> {
        self.inner.known(|known| known.map.set_for(limit, key).filter(|said| said.is_live(now)).cloned().collect())
    }

    /// The effect of the overrides on a limit for a key at present.
    #[cfg(feature = "unstable")]
    #[must_use]
    pub fn applied(&self, limit: &Limit, key: &Key) -> Option<AppliedOverride> {
        self.applied_at(limit, key, None)
    }

    /// The effect of the overrides on a limit for a key, at an instant or at present.
    pub(crate) fn applied_at(&self, limit: &Limit, key: &Key, at: Option<Timestamp>) -> Option<AppliedOverride> {
        self.each(at, |said| said?(limit, key))
    }

    /// Hands out what the overrides make of each limit for a key, at an instant or at present.
    pub(crate) fn each<T>(&self, at: Option<Timestamp>, ask: impl FnOnce(Option<&OverrideOf<'_>>) -> T) -> T {
        if self.inner.is_empty.load(Ordering::Relaxed) {
            return ask(None);
        }
        self.inner.known(|known| {
            let now: DateTime<Utc> = at.unwrap_or_else(|| known.now()).into();
            ask(Some(&|limit, key| known.map.applied(limit, key, now)))
        })
    }

    /// A receiver that hears of each new map.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.inner.changed.subscribe()
    }

    /// The earliest time that the database's clock may show.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.known(LastReading::now)
    }
}

async fn first_reading(conn: &mut PgConnection, before: &str) -> Result<LastReading, sqlx::Error> {
    let Snapshot { now, stamp, map } = table::read(conn, None, before).await?;
    Ok(LastReading::new(map.unwrap_or_default(), Some(stamp), now))
}

/// Reads the table each second, until the last clone of its overrides is dropped, or the pool is closed. It polls,
/// because NOTIFY takes a lock of the whole database at the commit of a caller, and poolers swallow it.
async fn again_and_again(inner: Weak<Known>, pool: PgPool) {
    let (mut is_stale, mut whole, mut slowed) = (false, Instant::now(), BTreeMap::new());
    loop {
        if pool.close_event().do_until(tokio::time::sleep(SECOND)).await.is_err() {
            return;
        }
        let Some(before) = inner.upgrade().map(|inner| inner.known(|known| known.stamp)) else { return };
        // A stamp of another server may be the same by chance.
        let before = before.filter(|_| whole.elapsed() < A_WHILE);
        let began = Instant::now();
        let reading = tokio::time::timeout(PATIENCE, read(&pool, before)).await;
        let Some(inner) = inner.upgrade() else { return };
        match reading.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(reading) => {
                if before.is_none() {
                    whole = Instant::now();
                }
                is_stale = false;
                meter::overrides_read(reading.now);
                inner.swap(reading, began);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_stale, true) {
                    let error = chain(&failed("read")(error));
                    tracing::warn!(error, "overrides are not read: those of before count, until each ends");
                }
            }
        }
        show(inner.known(|known| known.map.shares(known.now().into())), &mut slowed);
    }
}

/// Shows the shares of slow-downs, and that they are over.
fn show(shares: BTreeMap<String, u32>, before: &mut BTreeMap<String, u32>) {
    for limit in before.keys().filter(|limit| !shares.contains_key(*limit)) {
        meter::rate_share(limit, SlowedRate::WHOLE);
    }
    for (limit, share) in &shares {
        meter::rate_share(limit, *share);
    }
    *before = shares;
}

async fn read(pool: &PgPool, before: Option<Stamp>) -> Result<Snapshot, sqlx::Error> {
    let mut session = session::take(pool, Right::OVERRIDES).await?;
    let read = table::read(&mut session, before, &alone(BRIEFLY)).await?;
    session.finished();
    Ok(read)
}

/// The statements before a reading over a connection of the pool.
fn alone(settings: &str) -> String {
    session::alone(&format!("{settings} {}", Right::OVERRIDES.own_role()))
}

/// Shows the number of overrides, and no keys.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.inner.known(|known| known.map.iter().count());
        f.debug_struct("Overrides").field("len", &len).finish_non_exhaustive()
    }
}

/// A reading does not wait long for a change of the table: it would keep a connection from the service, and the next
/// reading would take another.
const BRIEFLY: &str = "set local statement_timeout to default; set local lock_timeout = '2s';";

/// How long a reading may take. The driver closes a connection that is left in the middle of an answer, or reads it to
/// its end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How often all rows are read, whatever the stamp says.
const A_WHILE: Duration = Duration::from_mins(1);
