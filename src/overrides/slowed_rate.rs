use std::time::Duration;

use super::ruling::AppliedOverride;
use super::slow_down::SlowDown;
use crate::algebra::Timestamp;
use crate::limit::{Limit, LimitKind};
use crate::tokens::Tokens;
use crate::{DAY, SECOND};

/// A rate that a report of trouble slowed down. It grows back evenly, in steps of a second, until it is whole.
///
/// `tollgate.slow_down` computes the same in SQL. It also knows the share of every key, and tolerates nothing while a
/// pause is live.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlowedRate {
    /// The share of the rate at the start, in millionths.
    pub share: u32,
    /// When the last report was made.
    pub reported_at: Timestamp,
    /// When the share begins to grow. It lies after the report if the limit is paused until then.
    pub starts_at: Timestamp,
    /// When it is whole again.
    pub ends_at: Timestamp,
    /// When the last report that was tolerated is forgotten.
    pub forgotten_at: Option<Timestamp>,
}

impl SlowedRate {
    /// The share of a rate that is not slowed down.
    pub const WHOLE: u32 = 1_000_000;

    /// The rate after a report, if this one counted last. Within the cool-down that is the same, and so it is while the
    /// report is tolerated. At no later instant is the share larger than without the report.
    #[must_use]
    pub fn reported(last: Option<Self>, how: &SlowDown, forgets: Duration, now: Timestamp) -> Self {
        let tolerated_until = last.and_then(|last| last.forgotten_at).map_or(now, |at| at.max(now));
        let last = last.and_then(|last| Some((last, last.share_at(now)?)));
        // A slow-down that was reported has begun, even if the clock steps back.
        let (present, starts_at, whole_at) = match last {
            Some((last, _)) if last.is_cooling_down(how, now) => return last,
            // Shares grow at whole seconds, so the end is a second later.
            Some((last, share)) => (share, last.starts_at.max(now), last.ends_at.plus(SECOND)),
            None => (Self::WHOLE, now, now),
        };
        // A slower rate forgets less. It tolerates three reports, and as many as it forgets in half a second.
        let each = forgets.as_micros() * u128::from(Self::WHOLE) / u128::from(present);
        let each = span(each).min(DAY);
        let forgotten_at = tolerated_until.plus(each);
        if !each.is_zero() && forgotten_at <= now.plus(SECOND / 2 + 3 * each) {
            let (share, ends_at, forgotten_at) = (Self::WHOLE, forgotten_at, Some(forgotten_at));
            let whole = Self { share, reported_at: now, starts_at: now, ends_at, forgotten_at };
            return last.map_or(whole, |(last, _)| Self { forgotten_at, ..last });
        }
        let left = present * u32::from(how.percent) / 100;
        // A reporter with a higher least share does not speed the limit up.
        let share = left.max(u32::from(how.least_percent) * 10_000).min(present).max(1);
        let recovers = span(how.recovers.as_micros() * u128::from(Self::WHOLE - share) / u128::from(Self::WHOLE));
        // A line that begins no higher, and grows and ends no sooner, lies nowhere above the one before.
        let ends_at = starts_at.plus(recovers).max(whole_at);
        Self { share, reported_at: now, starts_at, ends_at, forgotten_at: None }
    }

    /// The time in which the whole rate of a limit forgets the report of a call that costs so much. Unless it is named,
    /// it is as long as a hundred thirds of such calls take.
    #[must_use]
    pub fn forgets(how: &SlowDown, limit: &Limit, cost: Tokens) -> Duration {
        how.forgets.unwrap_or_else(|| {
            let period = if limit.kind == LimitKind::Concurrency { SECOND } else { limit.period };
            let [cost, rate] = [cost, limit.rate].map(|tokens| u128::from(tokens.micros().unsigned_abs()));
            span(period.as_micros() * cost * 100 / (rate * 3).max(1)).min(DAY)
        })
    }

    /// The share of the rate that is left at an instant, in millionths, rounded down. It is `None` from its end on, and
    /// if reports were tolerated alone.
    #[must_use]
    pub fn share_at(self, now: Timestamp) -> Option<u32> {
        if self.share == Self::WHOLE || self.ends_at <= now {
            return None;
        }
        let since = |at: Timestamp| i128::from(at.micros()) - i128::from(self.starts_at.micros());
        // Whole seconds: all processes agree on the share, and a batch has one.
        let grown = since(now).max(0) / 1_000_000 * 1_000_000;
        let grown = i128::from(Self::WHOLE.saturating_sub(self.share)) * grown / since(self.ends_at);
        Some(self.share.saturating_add(u32::try_from(grown).ok()?).min(Self::WHOLE))
    }

    /// Whether reports at an instant change nothing, because this one is so young. A clock that has stepped back may
    /// show an earlier instant.
    pub(crate) fn is_cooling_down(self, how: &SlowDown, now: Timestamp) -> bool {
        now < self.reported_at.plus(how.cool_down) && self.reported_at < now.plus(how.cool_down)
    }

    /// A limit at this rate; `None` if it has no rate, or is not slowed down at this instant.
    #[must_use]
    pub fn applied(self, limit: &Limit, now: Timestamp) -> Option<AppliedOverride> {
        let share = self.share_at(now)?;
        let slowed = limit.slowed(share)?;
        let whole = (slowed.most() < limit.most()).then(|| (limit.clone(), self.ends_at));
        let (numbers, label) = (Some(slowed), AppliedOverride::SLOW_DOWN.to_owned());
        Some(AppliedOverride { numbers, share: Some(share), whole, label, ..AppliedOverride::default() })
    }
}

fn span(micros: u128) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
