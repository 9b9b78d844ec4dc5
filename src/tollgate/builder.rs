use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool, Row};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::{StartError, Tasks, Tollgate, definitions};
use crate::MINUTE;
use crate::error::{SetupFault, chain};
use crate::gate::{Gate, GateBuilder};
use crate::limit::{self, Limit};
use crate::limiter::Limiter;
use crate::overrides::Overrides;
use crate::parts::Parts;
use crate::store::session::{self, Right};
use crate::sweeper::Sweeper;
use crate::values::schema;

/// The settings of a [`Tollgate`]; made by [`Tollgate::builder`]. Every setting has a default that suits most services.
#[derive(Debug)]
#[must_use = "nothing is started until `start` is called"]
pub struct TollgateBuilder {
    pool: PgPool,
    limiter: Limiter,
    gate: GateBuilder,
    sweeper: Sweeper,
    sweep_every: Option<Duration>,
    has_clock: bool,
    parts: Parts,
    starts_in_outage: bool,
    limits: Vec<Limit>,
}

impl TollgateBuilder {
    pub(super) fn new(pool: PgPool) -> Self {
        Self {
            limiter: Limiter::new(),
            gate: Gate::builder(pool.clone()),
            pool,
            sweeper: Sweeper::new(),
            sweep_every: Some(MINUTE),
            has_clock: false,
            parts: Parts::new(0),
            starts_in_outage: false,
            limits: Vec::new(),
        }
    }

    /// Makes the service's definitions known to the command and the SQL functions, which read the table
    /// `tollgate.limits`: `limits([&SEND_MESSAGE, &SIGN_UPS])`.
    ///
    /// The start inserts those that the table lacks, if the role may (`grant insert on tollgate.limits`). It never
    /// overwrites one: an event at `warn` says how it differs from the service's own, by which the service decides.
    /// `tollgate limits push` changes the table, such as by a file that [`Limits::to_toml`](crate::Limits) wrote.
    pub fn limits<'l>(mut self, limits: impl IntoIterator<Item = &'l Limit>) -> Self {
        self.limits.extend(limits.into_iter().cloned());
        self
    }

    /// Changes settings of the gate: `gate(|gate| gate.prefetch(SECOND).on_failure(OnFailure::Open))`. The start
    /// sets the overrides and the number of parts.
    pub fn gate(mut self, change: impl FnOnce(GateBuilder) -> GateBuilder) -> Self {
        self.gate = change(self.gate);
        self
    }

    /// Changes settings of the limiter: `limiter(|limiter| limiter.lock_timeout(SECOND))`. The start sets the
    /// overrides and the number of parts.
    pub fn limiter(mut self, change: impl FnOnce(Limiter) -> Limiter) -> Self {
        self.limiter = change(self.limiter);
        self
    }

    /// Changes settings of the sweeper: `sweeper(|sweeper| sweeper.margin(HOUR))`. The start sets the number of parts.
    pub fn sweeper(mut self, change: impl FnOnce(Sweeper) -> Sweeper) -> Self {
        self.sweeper = change(self.sweeper);
        self
    }

    /// Sets how often it sweeps; once a minute by default. With `None` it does not sweep, and of what lapses only
    /// the gate gives back the calls of its own: then run `tollgate sweep --every 1s` beside the service.
    pub fn sweep_every(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.sweep_every = every.into();
        self
    }

    /// Says [`unnamed_statements`](Limiter::unnamed_statements) to limiter, gate and sweeper.
    pub fn unnamed_statements(self) -> Self {
        self.limiter(Limiter::unnamed_statements)
            .gate(GateBuilder::unnamed_statements)
            .sweeper(Sweeper::unnamed_statements)
    }

    /// Takes this clock instead of the database's, for tests and replays: limiter and gate both go by it, and so do
    /// overrides. It does not sweep then, because a row that is full by one clock need not be so by the other.
    pub fn clock(mut self, clock: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        let clock = Arc::new(clock);
        let same = Arc::clone(&clock);
        self.has_clock = true;
        self.limiter(move |limiter| limiter.clock(move || clock())).gate(move |gate| gate.clock(move || same()))
    }

    /// Starts even while the database does not answer: without overrides, which it hears within seconds once the
    /// database is back, and without a look at the tables. A wrong set-up still is an error.
    ///
    /// A gate then answers by its [`OnFailure`](crate::OnFailure) at once. On Citus say the number of
    /// [parts](Self::parts), too.
    pub fn start_in_outage(mut self) -> Self {
        self.starts_in_outage = true;
        self
    }

    /// Sets the number of parts for a [start in an outage](Self::start_in_outage). In any other start it is read from
    /// the tables.
    ///
    /// # Panics
    ///
    /// As [`Limiter::parts`].
    #[track_caller]
    pub fn parts(mut self, parts: u16) -> Self {
        self.parts = Parts::new(parts);
        self
    }

    /// Looks at the tables, inserts [definitions](Self::limits) that are missing, reads the overrides, and starts the
    /// tasks.
    ///
    /// # Errors
    ///
    /// [`StartError::Setup`] where the tables are missing or too old, or the role lacks a right.
    /// [`StartError::TwoDefinitions`] for two limits of one name. [`StartError::Database`] where the database does not
    /// answer within the pool's `acquire_timeout`, unless the handle may [start in an outage](Self::start_in_outage).
    /// [`StartError::Stopped`] outside of a tokio runtime.
    pub async fn start(self) -> Result<Tollgate, StartError> {
        Handle::try_current().map_err(|_| StartError::Stopped)?;
        limit::by_name(&self.limits).map_err(|limit| StartError::TwoDefinitions { limit })?;
        let options = self.pool.options().clone().min_connections(0).max_connections(CONNECTIONS);
        let patience = options.get_acquire_timeout();
        let pool = options.connect_lazy_with((*self.pool.connect_options()).clone());
        let read = timeout(patience, read(&pool, &self.limits))
            .await
            .unwrap_or_else(|_| Err(sqlx::Error::PoolTimedOut.into()));
        let (parts, overrides) = match read {
            Err(error) if self.starts_in_outage && !error.is_setup() => {
                let error = chain(&error);
                tracing::warn!(error, "started without the database: no override counts until it answers");
                (self.parts, Overrides::unread(pool.clone()))
            }
            read => read?,
        };
        let parts = parts.count();
        let sweeping = self.sweep_every.filter(|_| !self.has_clock);
        let sweeping = sweeping.map(|every| self.sweeper.parts(parts).spawn(pool.clone(), every));
        Ok(Tollgate {
            limiter: self.limiter.parts(parts).overrides(&overrides),
            gate: self.gate.parts(parts).overrides(&overrides).build(),
            overrides,
            tasks: Arc::new(Tasks { pool, sweeping: Mutex::new(sweeping) }),
        })
    }
}

/// Looks at the tables, publishes the definitions, and reads the overrides for the first time.
async fn read(pool: &PgPool, limits: &[Limit]) -> Result<(Parts, Overrides), StartError> {
    let mut session = session::take(pool, Right::OVERRIDES).await?;
    let parts = parts(&mut session).await?;
    if !limits.is_empty() {
        definitions::publish(&mut session, limits).await;
    }
    session.finished();
    drop(session);
    Ok((parts, Overrides::watched(pool.clone()).await?))
}

/// Fails if the tables lack a column. Returns the number of their parts. The service may not read their history. By the
/// simple protocol, which no pooler takes apart.
async fn parts(conn: &mut PgConnection) -> Result<Parts, StartError> {
    let columns = sqlx::raw_sql(schema::PRESENT).fetch_all(&mut *conn).await?;
    let columns = columns.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)));
    let columns = columns.collect::<Result<Vec<_>, sqlx::Error>>()?;
    if let Some((table, column)) = schema::missing(&columns) {
        let source = sqlx::Error::ColumnNotFound(format!("tollgate.{table}.{column}"));
        return Err(StartError::Setup { fault: SetupFault::Schema, source: source.into() });
    }
    let parts = sqlx::raw_sql(include_str!("../store/sql/parts.sql")).fetch_one(conn).await?;
    let parts: i32 = parts.try_get(0)?;
    Parts::read(parts).ok_or_else(|| {
        let source = sqlx::Error::Configuration(format!("they have {parts} parts").into());
        StartError::Setup { fault: SetupFault::WrongParts, source: source.into() }
    })
}

/// One for the reading of overrides, one for the sweep, and one for what lapses: none waits for another.
const CONNECTIONS: u32 = 3;
