use std::time::Duration;

use crate::{MINUTE, SECOND};

/// How far a report of trouble slows a limit down, and how fast its rate grows back. See
/// [`Overrides::slow_down`](crate::Overrides::slow_down).
///
/// The method is additive increase and multiplicative decrease, as in congestion control. Chiu and Jain, "Analysis of
/// the Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989.
///
/// # Example
///
/// ```
/// use tollgate::{MINUTE, SlowDown};
///
/// /// Half of the rate after each report, and never less than a tenth. A lost half grows back in five minutes.
/// const THEIRS: SlowDown = SlowDown::new().percent(50).least_percent(10).recovers(MINUTE.saturating_mul(10));
/// # let _ = THEIRS;
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a slow-down slows nothing down until it is reported"]
pub struct SlowDown {
    pub(crate) percent: u8,
    pub(crate) least_percent: u8,
    pub(crate) recovers: Duration,
    pub(crate) cool_down: Duration,
    pub(super) forgets: Option<Duration>,
}

impl SlowDown {
    /// Each report leaves 65 % of the rate, and all of them leave 5 %. The rate would grow from nothing to the whole in
    /// a minute. Reports within two seconds of a cut change nothing. Three of a hundred calls of the limit may fail.
    pub const fn new() -> Self {
        Self { percent: 65, least_percent: 5, recovers: MINUTE, cool_down: SECOND.saturating_mul(2), forgets: None }
    }

    /// The percentage of the present rate that a report leaves, from 1 to 99.
    pub const fn percent(mut self, percent: u8) -> Self {
        self.percent = percent;
        self
    }

    /// The percentage of the whole rate that all reports together leave, from 1 to 99.
    pub const fn least_percent(mut self, percent: u8) -> Self {
        self.least_percent = percent;
        self
    }

    /// The time in which the rate would grow from nothing to the whole, from a second to a day. A rate of 65 % is whole
    /// again after 35 % of it.
    pub const fn recovers(mut self, span: Duration) -> Self {
        self.recovers = span;
        self
    }

    /// The time after a cut in which reports change nothing, up to a day. It should be longer than calls that are under
    /// way take, because they still go by the old rate.
    pub const fn cool_down(mut self, span: Duration) -> Self {
        self.cool_down = span;
        self
    }

    /// The time in which a report is forgotten, up to a day: as many calls may fail without slowing the limit down. It
    /// tolerates three reports more, and as many as it forgets in half a second. With zero, each report counts.
    ///
    /// Unless you name it, it is that of three in a hundred calls at the whole rate, where each costs as much as the
    /// request that is reported. A concurrency limit is taken to have `n` calls a second: name it, if yours are
    /// shorter or longer. While the limit is slowed down, reports are forgotten as much more slowly.
    pub const fn forgets(mut self, span: Duration) -> Self {
        self.forgets = Some(span);
        self
    }
}

impl Default for SlowDown {
    fn default() -> Self {
        Self::new()
    }
}
