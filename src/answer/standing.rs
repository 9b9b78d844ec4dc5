use chrono::{DateTime, Utc};
use serde::Deserialize;

use crate::key::Key;
use crate::limit::{Limit, LimitKind};
use crate::tokens::Tokens;
use crate::values::lean::lean;

/// Where a limit stands after a decision: how many tokens remain for a key, and when there will be more.
///
/// The package `tollgate-http` writes it into header fields for clients.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[non_exhaustive]
pub struct Standing {
    /// The limit, with the numbers that counted.
    pub limit: Limit,
    /// The key that it applies to.
    pub key: Key,
    /// The tokens that the call asked for. With [`up_to`](crate::Request::up_to): the tokens that it got, or after a
    /// refusal the least part.
    pub cost: Tokens,
    /// The balance; after a grant, without the tokens that were taken. Negative for a debt.
    pub remaining: Tokens,
    /// The first microsecond at which one more whole token is there, if nobody spends. `None` where the limit cannot
    /// hold one more.
    ///
    /// For a limit that refused, this is no later than the instant at which it would grant the call.
    pub more_at: Option<DateTime<Utc>>,
    /// When all tokens are back, if nobody spends; for a [wallet](crate::Limit::wallet), when it is empty and
    /// forgotten. `None` for never. While an operator denies, this is the end of the deny.
    #[serde(default)]
    pub full_at: Option<DateTime<Utc>>,
    /// The balance before the grant; `None` where this call took nothing.
    #[serde(default)]
    pub(crate) before: Option<Tokens>,
    /// Whether an override applies. Then [`limit`](Self::limit) has the override's numbers, or the override denies, or
    /// a pause that is over brings the bucket nothing for its span.
    #[serde(default)]
    pub overridden: bool,
    /// The label of the override that applies: the one that denies or makes unlimited, else the one that slows down,
    /// else the one with the numbers, else a pause that is over.
    #[serde(default)]
    pub override_label: String,
}

lean!(Standing { limit, key, cost, remaining, more_at, full_at } and { before, overridden, override_label });

impl Standing {
    /// The whole tokens that remain; 0 for a debt.
    #[must_use]
    pub fn whole(&self) -> u64 {
        u64::try_from(self.remaining.whole()).unwrap_or_default()
    }

    /// Whether this grant took the balance below a share of the capacity, from at or above it. `crossed(0.2)` is true
    /// for the grant that brings the use above four fifths.
    ///
    /// The grants of a row come one after another. So each time a grant makes the balance fall below the share, exactly
    /// one caller sees it, in whatever process, if all have one definition. That caller can put an alert into its
    /// outbox in the transaction of the grant. A balance that hovers about the share falls below it often: name the
    /// window in the outbox's key, or the day. After a debit ask [`Balance::crossed`](crate::Balance::crossed), and
    /// after a settlement [`Settlement::crossed`](crate::Settlement::crossed). After a refusal, a check and a repeat
    /// under an [id](crate::Call::once) the answer is always false.
    ///
    /// # Errors
    ///
    /// [`CrossedError`] for a limit with shards, for a wallet and a meter, and for a share that is not above 0
    /// and at most 1.
    ///
    /// # Example
    ///
    /// ```
    /// use tollgate::{DAY, Limit, Limiter};
    ///
    /// const MAILS: Limit = Limit::fixed_window("mails", 1_000, DAY);
    ///
    /// async fn send(pool: &sqlx::PgPool, tenant: i64) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut tx = pool.begin().await?;
    ///     let grant = Limiter::new().consume(&mut tx, MAILS.key(tenant)).await?.granted()?;
    ///     if grant.standings[0].crossed(0.2)? {
    ///         let alert = "insert into outbox (tenant, what, day) values ($1, 'mails: 80 % used', current_date)";
    ///         sqlx::query(alert).bind(tenant).execute(&mut *tx).await?;
    ///     }
    ///     tx.commit().await?;
    ///     Ok(())
    /// }
    /// # let _ = send;
    /// ```
    pub fn crossed(&self, share: f64) -> Result<bool, CrossedError> {
        fell_below(&self.limit, share, self.before.map(|before| (before, self.remaining)))
    }
}

/// Why a limit has no threshold.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CrossedError {
    /// The share is not above 0 and at most 1.
    #[error("a threshold is a share of the capacity, above 0 and up to 1")]
    Share,
    /// The limit has shards, and no call sees all its rows change.
    #[error("the rows of a limit with shards are charged apart, so nobody sees their sum cross a threshold")]
    Shards,
    /// The limit is a wallet.
    #[error("a wallet has no capacity to have a share of (compare its balance)")]
    Wallet,
    /// The limit is a meter.
    #[error("a meter has no capacity to have a share of (ask the limit that is charged beside it)")]
    Meter,
}

/// Whether a balance fell from at or above a share of the capacity to below it.
///
/// A grant knows the balance before it, and grants of a row come one after another. So each fall belongs to one grant,
/// and nothing has to be remembered. The balance before is that of the decision, refilled and cut. Debits and overages
/// report their falls, too, or no caller would see these.
pub(crate) fn fell_below(limit: &Limit, share: f64, fall: Option<(Tokens, Tokens)>) -> Result<bool, CrossedError> {
    match limit.kind {
        LimitKind::Wallet => return Err(CrossedError::Wallet),
        LimitKind::Meter => return Err(CrossedError::Meter),
        _ => {}
    }
    if limit.shards > 1 {
        return Err(CrossedError::Shards);
    }
    let millionths = (share * 1e6).round();
    if !(1.0..=1e6).contains(&millionths) {
        return Err(CrossedError::Share);
    }
    #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million")]
    let edge = i128::from(millionths as i64) * i128::from(limit.most().micros());
    let scaled = |tokens: Tokens| i128::from(tokens.micros()) * 1_000_000;
    Ok(fall.is_some_and(|(before, after)| scaled(after) < edge && edge <= scaled(before)))
}

/// Where the limits of one call stand after it, in the order asked.
///
/// Empty in answers that were given without the database, unless they were counted in memory.
pub type Standings = Box<[Standing]>;
