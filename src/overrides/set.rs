use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row};

use super::fault::{OverrideError, failed, rejected};
use super::row::Override;
use super::table::{self, micros};
use crate::algebra::Timestamp;
use crate::key::{Key, KeyError, ToKey};
use crate::limit::{Limit, LimitKind};

/// An override to be set. Only a role with the right to may set it (`tollgate migrate up --grant-operator ROLE`).
///
/// A key of a limit has one override for each [label](Self::label): a new one takes the place of the one with the same
/// label, and those with other labels stay. [`Overrides`](super::Overrides) says which one counts. An override counts
/// for all processes within about a second of the commit, and at once for the SQL functions.
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
    limit: Limit,
    effect: &'static str,
    key: Result<Option<Key>, KeyError>,
    label: String,
    starts_at: Option<DateTime<Utc>>,
    ends_at: Option<DateTime<Utc>>,
    lasting: Option<Duration>,
    reason: String,
    set_by: Option<String>,
}

impl NewOverride {
    /// Denies all calls, for every key unless a [key](Self::key) is named.
    pub fn deny(limit: &Limit) -> Self {
        Self::new(limit, "deny")
    }

    /// Grants all calls, and charges nothing.
    pub fn unlimited(limit: &Limit) -> Self {
        Self::new(limit, "unlimited")
    }

    /// Replaces the numbers of a limit by those of this one: rate, period, capacity and `max_reserved`. This one must
    /// have the name and the kind of the limit that is overridden. Its other settings do not count.
    pub fn numbers(limit: &Limit) -> Self {
        Self::new(limit, "numbers")
    }

    fn new(limit: &Limit, effect: &'static str) -> Self {
        Self {
            limit: limit.clone(),
            effect,
            key: Ok(None),
            label: String::new(),
            starts_at: None,
            ends_at: None,
            lasting: None,
            reason: String::new(),
            set_by: None,
        }
    }

    /// Only for this key. If the value is no key, [`set`](Self::set) reports it.
    pub fn key(mut self, key: impl ToKey) -> Self {
        self.key = Key::new(key).map(Some);
        self
    }

    /// Only for this key, which is already made.
    pub fn of_key(mut self, key: Key) -> Self {
        self.key = Ok(Some(key));
        self
    }

    /// Distinguishes it from other overrides of the same key, such as `"contract"` from an operator's: each is set and
    /// [removed](Self::remove) by its label. Up to 255 bytes; empty unless named.
    ///
    /// A label is a name and no right: a role that may set overrides may set them under any label. To restrict a role
    /// to one label, do not grant it `set_override`, but a function of yours that names the label (the guide
    /// `operating.md` has one).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Starts at this instant of the database's clock, instead of at once. One that starts at once has begun, even if
    /// the clock steps back.
    pub fn from(mut self, at: DateTime<Utc>) -> Self {
        self.starts_at = Some(at);
        self
    }

    /// Ends at this instant of the database's clock. Without an end it counts until it is removed.
    pub fn until(mut self, at: DateTime<Utc>) -> Self {
        self.ends_at = Some(at);
        self
    }

    /// Ends so long after its start.
    pub fn lasting(mut self, span: Duration) -> Self {
        self.lasting = Some(span);
        self
    }

    /// The reason, for people who find the override: 1 to 500 bytes. It is required.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// The name of the person or program that sets it, instead of the role of the session.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.set_by = Some(who.into());
        self
    }

    /// Sets the override, in the caller's transaction if there is one. Waits for another transaction that sets the same
    /// label of this key. Locks the row of the override, and no row of a limit.
    ///
    /// # Errors
    ///
    /// [`OverrideError`]. An override that [begins later](Self::from) cannot replace one that is live
    /// ([`OverrideError::Rejected`]): it would end that one now.
    pub async fn set(self, conn: &mut PgConnection) -> Result<OverrideSet, OverrideError> {
        let Self { limit, effect, key, label, starts_at, ends_at, lasting, reason, set_by } = self;
        let named = || limit.name().to_owned();
        if limit.kind == LimitKind::Meter {
            return Err(OverrideError::Meter { limit: named() });
        }
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
        let numbers = (effect == "numbers").then_some(&limit);
        let kind = numbers.and_then(|limit| serde_json::to_value(limit.kind).ok());
        let set = sqlx::query(concat!(include_str!("set.sql"), include_str!("row.sql")))
            .persistent(false)
            .bind(limit.name())
            .bind(key.as_ref().map(Key::as_str))
            .bind(effect)
            .bind(kind.as_ref().and_then(serde_json::Value::as_str))
            .bind(numbers.map(|limit| limit.rate.micros()))
            .bind(numbers.map(|limit| micros(limit.period)))
            .bind(numbers.map(|limit| limit.most().micros()))
            .bind(numbers.map(|limit| limit.max_reserved.micros()))
            .bind(starts_at.map(Timestamp::from))
            .bind(ends_at.map(Timestamp::from))
            .bind(lasting.map(micros))
            .bind(&reason)
            .bind(&set_by)
            .bind(&label);
        let rows = set.fetch_all(conn).await.map_err(|source| rejected(limit.name(), "set", source))?;
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

    /// Removes the override with this label of a limit for a key, or for every key. Returns whether there was one.
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
    /// The override that had the same label, even if it was over.
    pub replaced: Option<Override>,
    /// The other live overrides: those of the key, and then those for every key.
    pub others: Vec<Override>,
}
