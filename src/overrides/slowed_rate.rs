use std::time::Duration;

use super::applied::AppliedOverride;
use super::slow_down::SlowDown;
use crate::SECOND;
use crate::algebra::Timestamp;
use crate::limit::Limit;

/// A rate that a report of trouble slowed down. It grows back evenly, in steps of a second, until it is whole.
///
/// `tollgate.slow_down` computes the same in SQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlowedRate {
    /// The share of the rate at the start, in millionths.
    pub share: u32,
    /// When it was slowed down.
    pub starts_at: Timestamp,
    /// When it is whole again.
    pub ends_at: Timestamp,
}

impl SlowedRate {
    /// The share of a rate that is not slowed down.
    pub const WHOLE: u32 = 1_000_000;

    /// The rate after a report of trouble, if this one counted last. Within the cool-down that is the same. At no later
    /// instant is the share larger than without the report.
    #[must_use]
    pub fn reported(last: Option<Self>, how: &SlowDown, now: Timestamp) -> Self {
        // A slow-down that was reported has begun, even if the clock steps back.
        let (present, whole_at) = match last.and_then(|last| Some((last, last.share_at(now.max(last.starts_at))?))) {
            Some((last, _)) if last.is_cooling_down(how, now) => return last,
            // Shares grow at whole seconds since the report, so the end is a second later.
            Some((last, share)) => (share, last.ends_at.plus(SECOND)),
            None => (Self::WHOLE, now),
        };
        let left = present * u32::from(how.percent) / 100;
        // A reporter with a higher least share does not speed the limit up.
        let share = left.max(u32::from(how.least_percent) * 10_000).min(present).max(1);
        let missing = how.recovers.as_micros() * u128::from(Self::WHOLE - share) / u128::from(Self::WHOLE);
        let recovers = Duration::from_micros(u64::try_from(missing).unwrap_or(u64::MAX));
        // A line that begins no higher and ends no sooner lies nowhere above the one before.
        Self { share, starts_at: now, ends_at: now.plus(recovers).max(whole_at) }
    }

    /// The share of the rate that is left at an instant, in millionths, rounded down. It is `None` before its
    /// start and from its end on.
    #[must_use]
    pub fn share_at(self, now: Timestamp) -> Option<u32> {
        if !(self.starts_at..self.ends_at).contains(&now) {
            return None;
        }
        let since = |at: Timestamp| i128::from(at.micros()) - i128::from(self.starts_at.micros());
        // Whole seconds: all processes agree on the share, and a batch has one.
        let grown = since(now) / 1_000_000 * 1_000_000;
        let grown = i128::from(Self::WHOLE.saturating_sub(self.share)) * grown / since(self.ends_at);
        Some(self.share.saturating_add(u32::try_from(grown).ok()?).min(Self::WHOLE))
    }

    /// Whether reports at an instant change nothing, because this one is so young. A clock that has stepped back may
    /// show an earlier instant.
    pub(crate) fn is_cooling_down(self, how: &SlowDown, now: Timestamp) -> bool {
        now < self.starts_at.plus(how.cool_down) && self.starts_at < now.plus(how.cool_down)
    }

    /// A limit at this rate; `None` if it has no rate, or is not slowed down at this instant.
    #[must_use]
    pub fn applied(self, limit: &Limit, now: Timestamp) -> Option<AppliedOverride> {
        let share = self.share_at(now)?;
        Some(AppliedOverride { numbers: Some(limit.slowed(share)?), share: Some(share), ..AppliedOverride::default() })
    }
}
