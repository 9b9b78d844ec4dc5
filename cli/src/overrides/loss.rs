//! Overrides that take tokens away, perhaps from somebody whom they were meant to help.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use tollgate::{Effect, Key, Limit, LimitKind, LimitSpec, Override, Overrides};

use super::SetArgs;
use super::words::{quantities, whom, words};
use crate::confirm::{confirmed, expect_terminal};
use crate::database::{begin, clock};
use crate::error::CommandError;
use crate::output::{CAUTION, printable, styled, tell};

/// Warns of numbers that are lower than those that count when the override starts, and asks whether they are meant.
pub(super) async fn expect_meant(
    args: &SetArgs,
    key: Option<&Key>,
    limit: &Limit,
    numbers: &Limit,
    conn: &mut PgConnection,
) -> Result<(), CommandError> {
    let mut tx = begin(conn).await?;
    let now = clock(&mut tx).await?.into();
    let overrides = Overrides::read(&mut tx).await?;
    tx.rollback().await?;
    let mut live =
        overrides.live_for(&args.name, key.unwrap_or(&Key::GLOBAL), args.from.map_or(now, |from| now.max(from)));
    live.retain(|said| key.is_some() || said.key.is_none());
    let is_replaced = |said: &Override| said.key.as_ref() == key && said.label == args.label;
    let Some(before) = lowered(&live, limit, numbers, is_replaced, now) else { return Ok(()) };
    let (warning, name, whom) = (styled(CAUTION, "warning"), printable(&args.name), whom(key));
    tell(format!("{warning}: this lowers {name} for {whom}, from {before}"));
    if args.yes {
        return Ok(());
    }
    expect_terminal("nothing was set")?;
    if confirmed("Set it all the same?")? { Ok(()) } else { Err(CommandError::bare("nothing was set")) }
}

/// The numbers that count before an override with these, in words, if they are more. The latest of the live overrides
/// comes first.
fn lowered(
    live: &[Override],
    limit: &Limit,
    numbers: &Limit,
    is_replaced: impl Fn(&Override) -> bool,
    now: DateTime<Utc>,
) -> Option<String> {
    let mut unlimited = live.iter().filter(|said| said.effect == Effect::Unlimited);
    if unlimited.clone().any(|said| !is_replaced(said)) {
        return None;
    }
    if let Some(said) = unlimited.next() {
        return Some(words(said, now));
    }
    match live.iter().find_map(|said| Some((said.renumbered(limit)?, said))) {
        Some((before, said)) => is_less(&numbers.spec(), &before.spec()).then(|| words(said, now)),
        None => {
            is_less(&numbers.spec(), &limit.spec()).then(|| format!("{} (its definition)", quantities(&limit.spec())))
        }
    }
}

/// Whether less comes back in the same time, or less can be held at once, or owed.
fn is_less(new: &LimitSpec, before: &LimitSpec) -> bool {
    let product = |rate: &LimitSpec, period: &LimitSpec| {
        u128::from(rate.rate.micros().unsigned_abs()).saturating_mul(period.period.as_micros().max(1))
    };
    // The period of a concurrency limit is its lease.
    let is_slower = new.kind != LimitKind::Concurrency && product(new, before) < product(before, new);
    is_slower || new.most() < before.most() || new.max_reserved < before.max_reserved
}
