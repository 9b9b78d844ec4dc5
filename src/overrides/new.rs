use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::error::DatabaseError;
use sqlx::{PgConnection, Row};

use super::fault::{OverrideError, failed};
use super::row::Override;
use super::table;
use crate::algebra::Timestamp;
use crate::key::{Key, KeyError, ToKey};
use crate::limit::Limit;

/// An override to be set, by whoever may (`tollgate migrate up --grant-operator ROLE`).
///
/// A key of a limit has one override for each [label](Self::label): another of the same label takes its place, and
/// those of other labels stay. [`Overrides`](super::Overrides) says which one counts. It counts for all processes
/// within about a second of the commit, and at once for the SQL functions.
///
/// # Example
///
/// ```
/// use tollgate::{HOUR, Limit, MINUTE, NewOverride, OverrideSet};
///
/// const CALLS: Limit = Limit::token_bucket("calls", 100, MINUTE);
///
/// /// The customer gets more for an hour, if the rest of the transaction is committed.
/// async fn raise(tx: &mut sqlx::PgTransaction<'_>, customer: i64) -> Result<OverrideSet, tollgate::OverrideError> {
///     let more = Limit::token_bucket("calls", 1_000, MINUTE).capacity(5_000);
///     NewOverride::numbers(&more).key(customer).lasting(HOUR).reason("ticket 4711").by("ada").set(tx).await
/// }
///
/// /// Nobody calls for half an hour.
/// async fn pause(conn: &mut sqlx::PgConnection) -> Result<OverrideSet, tollgate::OverrideError> {
///     NewOverride::deny(&CALLS).lasting(HOUR / 2).reason("their API is down").set(conn).await
/// }
/// # let _ = (raise, pause);
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is overridden until `set` is called"]
pub struct NewOverride {
    limit: String,
    effect: &'static str,
    numbers: Option<Limit>,
    key: Result<Option<Key>, KeyError>,
    label: String,
    starts_at: Option<DateTime<Utc>>,
    ends_at: Option<DateTime<Utc>>,
    lasting: Option<Duration>,
    reason: String,
    set_by: Option<String>,
}

impl NewOverride {
    /// Refuses all, for every key unless a [key](Self::key) is named.
    pub fn deny(limit: &Limit) -> Self {
        Self::new(limit.name(), "deny", None)
    }

    /// Grants all, and charges nothing.
    pub fn unlimited(limit: &Limit) -> Self {
        Self::new(limit.name(), "unlimited", None)
    }

    /// The numbers of this limit, which has the name and the kind of the one that they are for: rate, period, capacity
    /// and `max_reserved`. Its other settings do not count.
    pub fn numbers(limit: &Limit) -> Self {
        Self::new(limit.name(), "numbers", Some(limit.clone()))
    }

    fn new(limit: &str, effect: &'static str, numbers: Option<Limit>) -> Self {
        Self {
            limit: limit.to_owned(),
            effect,
            numbers,
            key: Ok(None),
            label: String::new(),
            starts_at: None,
            ends_at: None,
            lasting: None,
            reason: String::new(),
            set_by: None,
        }
    }

    /// Only for this key, which [`set`](Self::set) reports if it is none.
    pub fn key(mut self, key: impl ToKey) -> Self {
        self.key = Key::new(key).map(Some);
        self
    }

    /// For a key that is made already.
    pub fn of_key(mut self, key: Key) -> Self {
        self.key = Ok(Some(key));
        self
    }

    /// Tells it apart from others of the same key, as `"contract"` from what an operator says: each is set and
    /// [removed](Self::remove) by its label. Up to 255 bytes; empty unless named.
    ///
    /// A label is a name and no right: whoever may set an override may set each of them. To hold a role to one label,
    /// grant it a function of yours that names it, and not `set_override` (the guide `operating.md` has one).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// From this instant of the database's clock on, instead of at once.
    pub fn from(mut self, at: DateTime<Utc>) -> Self {
        self.starts_at = Some(at);
        self
    }

    /// Until this instant of the database's clock, and no longer. Without an end it counts until it is removed.
    pub fn until(mut self, at: DateTime<Utc>) -> Self {
        self.ends_at = Some(at);
        self
    }

    /// For so long from its start.
    pub fn lasting(mut self, span: Duration) -> Self {
        self.lasting = Some(span);
        self
    }

    /// Why, in up to 500 bytes, for whoever finds it. There must be a reason.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// The name of the one who sets it, instead of the role of the session.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.set_by = Some(who.into());
        self
    }

    /// Says it, in the caller's transaction if there is one. Waits for whoever sets the same label of this key, and
    /// locks the row of the override, and of no limit.
    ///
    /// # Errors
    ///
    /// [`OverrideError`]. One that [begins later](Self::from) does not replace one that is live
    /// ([`OverrideError::Rejected`]): it would end that one now.
    pub async fn set(self, conn: &mut PgConnection) -> Result<OverrideSet, OverrideError> {
        let Self { limit, effect, numbers, key, label, starts_at, ends_at, lasting, reason, set_by } = self;
        let named = || limit.clone();
        let key = key.map_err(|source| OverrideError::Key { limit: named(), source })?;
        if !(1..=500).contains(&reason.len()) || reason.contains('\0') {
            return Err(OverrideError::Reason { limit: named() });
        }
        if set_by.as_ref().is_some_and(|who| !(1..=255).contains(&who.len()) || who.contains('\0')) {
            return Err(OverrideError::Who { limit: named() });
        }
        if label.len() > 255 || label.contains('\0') {
            return Err(OverrideError::Label { limit: named() });
        }
        let is_backwards = starts_at.zip(ends_at).is_some_and(|(from, until)| until <= from);
        if is_backwards || lasting.is_some_and(|span| span.is_zero() || ends_at.is_some()) {
            return Err(OverrideError::Span { limit: named() });
        }
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        let kind = numbers.as_ref().and_then(|limit| serde_json::to_value(limit.kind).ok());
        let set = sqlx::query(concat!(include_str!("set.sql"), include_str!("row.sql")))
            .persistent(false)
            .bind(&limit)
            .bind(key.as_ref().map(Key::as_str))
            .bind(effect)
            .bind(kind.as_ref().and_then(serde_json::Value::as_str))
            .bind(numbers.as_ref().map(|limit| limit.rate.micros()))
            .bind(numbers.as_ref().map(|limit| micros(limit.period)))
            .bind(numbers.as_ref().map(|limit| limit.most().micros()))
            .bind(numbers.as_ref().map(|limit| limit.max_reserved.micros()))
            .bind(starts_at.map(Timestamp::from))
            .bind(ends_at.map(Timestamp::from))
            .bind(lasting.map(micros))
            .bind(&reason)
            .bind(&set_by)
            .bind(&label);
        let rows = set.fetch_all(conn).await.map_err(|source| rejected(&limit, source))?;
        let mut told = OverrideSet::default();
        for row in rows {
            let Some(said) = table::said(&row).map_err(failed("set"))? else { continue };
            if row.try_get("is_replaced").map_err(failed("set"))? {
                told.replaced = Some(said);
            } else {
                told.others.push(said);
            }
        }
        Ok(told)
    }

    /// Removes the override of a limit for a key, or for every key, that has this label; whether there was one.
    ///
    /// # Errors
    ///
    /// [`OverrideError::Database`].
    pub async fn remove(
        conn: &mut PgConnection,
        limit: &str,
        key: Option<&Key>,
        label: &str,
    ) -> Result<bool, OverrideError> {
        let sql = "select tollgate.remove_override($1::text, $2::text, $2::text is null, $3::text)";
        let removed = sqlx::query_scalar(sql).persistent(false).bind(limit).bind(key.map(Key::as_str)).bind(label);
        removed.fetch_one(conn).await.map_err(failed("remove"))
    }
}

/// The other overrides of the key, as [`NewOverride::set`] found them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct OverrideSet {
    /// The override that had the same label, also if it was over.
    pub replaced: Option<Override>,
    /// The others that are live: those of the key, and then those of every key.
    pub others: Vec<Override>,
}

/// An error of the functions' class says what is wrong with the override.
fn rejected(limit: &str, source: sqlx::Error) -> OverrideError {
    let reported = source
        .as_database_error()
        .filter(|error| error.code().is_some_and(|code| matches!(&*code, "TG001" | "TG002" | "22P02" | "22008")));
    match reported.map(DatabaseError::message) {
        Some(message) => OverrideError::Rejected { limit: limit.to_owned(), message: message.to_owned() },
        None => failed("set")(source),
    }
}
