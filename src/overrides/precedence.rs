//! Which overrides of a limit and key count.

use chrono::{DateTime, Utc};

use super::row::Override;
use super::ruling::AppliedOverride;
use crate::algebra::{Pause, Timestamp};
use crate::limit::{Limit, LimitKind};

/// The effect of the overrides on a limit for a key: its own, then those for every key, each group with the latest
/// first. The live ones count, and the last pause for as long again as it lasted. A deny counts before
/// unlimited, and both count before numbers. Numbers that do not apply are passed over. Of slow-downs the smallest
/// share counts, of the numbers that count.
///
/// An override that is set later does not lift a deny. Numbers of a key beat those for every key, whenever they were
/// set; otherwise a campaign for all would end each contract. The ruling and the numbers are found apart, so that under
/// a deny the balance still follows the contract. Numbers of another kind do not apply; otherwise a deploy that changes
/// a kind would be an outage for each customer with numbers of his own. Nothing applies to a meter: it may have been a
/// wallet, and an unlimited one would lose a bill.
pub(super) fn applied<'a, L: Iterator<Item = &'a Override>>(
    limit: &Limit,
    now: DateTime<Utc>,
    all: impl Fn() -> L,
) -> Option<AppliedOverride> {
    if limit.kind == LimitKind::Meter {
        return None;
    }
    let live = || all().filter(|said| said.is_live(now));
    let (ruling, by_ruling) = live().filter_map(|said| Some((said.ruling()?, &said.label))).max().unzip();
    let (numbers, by_numbers) = live().find_map(|said| Some((said.renumbered(limit)?, &said.label))).unzip();
    let (share, by_share) = live().filter_map(|said| Some((said.share(now)?, &said.label))).min().unzip();
    let counts = numbers.as_ref().unwrap_or(limit);
    let slowed = share.and_then(|share| counts.slowed(share));
    let ends_at = || live().filter(|said| said.share(now).is_some()).filter_map(|said| said.ends_at).max();
    let smaller = slowed.as_ref().filter(|slowed| slowed.most() < counts.most());
    let whole = smaller.and_then(|_| Some((counts.clone(), ends_at()?.into())));
    let (share, by_share) = (share.filter(|_| slowed.is_some()), by_share.filter(|_| slowed.is_some()));
    let is_bucket = limit.kind == LimitKind::TokenBucket;
    let pause = if is_bucket { last_pause(now.into(), all) } else { None };
    let by_pause = || pause.map(|_| AppliedOverride::PAUSE);
    let label = by_ruling.or(by_share).or(by_numbers).map(String::as_str).or_else(by_pause)?.to_owned();
    Some(AppliedOverride { numbers: slowed.or(numbers), share, whole, pause, ruling, label })
}

/// The last pause, if it counts at an instant. One of the key and one of every key that overlap are one.
fn last_pause<'a, L: Iterator<Item = &'a Override>>(now: Timestamp, all: impl Fn() -> L) -> Option<Pause> {
    let begun = || all().filter_map(Override::pause).filter(|pause| pause.from <= now);
    let Pause { from, until } = begun().max_by_key(|pause| pause.until)?;
    let from = begun().filter(|pause| pause.until >= from).map(|pause| pause.from).min()?;
    Some(Pause { from, until }).filter(|pause| pause.is_remembered(now))
}
