use std::time::{Duration, Instant};

use crate::algebra::Timestamp;

/// The observations of a sweeper about the database's clock and the sweepers' lock, over all of its passes.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The readings of the database's clock and of our monotonic clock when the comparison began.
    since: Option<(Timestamp, Instant)>,
    doubts: bool,
    /// How many statements in a row found the lock taken.
    refused: u32,
}

impl Watch {
    /// Compares a reading of the database's clock with the monotonic clock, and the first reading with this machine's
    /// clock. Returns whether to trust the reading. Once the clocks have run apart, they have to agree for a margin.
    pub(super) fn trusts(&mut self, now: Timestamp, at: Instant, shown: Timestamp, margin: Duration) -> bool {
        let (then, began) = self.since.unwrap_or((shown, at));
        let passed = at.saturating_duration_since(began);
        let apart = Duration::from_micros(now.micros().abs_diff(then.plus(passed).micros()));
        let ran_away = apart > TOLERANCE;
        if ran_away {
            tracing::warn!(
                ?apart,
                ?margin,
                "the database's clock ran away: nothing is swept until it keeps step again"
            );
        }
        // The comparison also restarts after a margin without a fault, so that a clock that is slewed for days raises
        // no alarm.
        if self.since.is_none() || ran_away || passed >= margin {
            (self.since, self.doubts) = (Some((now, at)), ran_away);
        }
        !self.doubts
    }

    /// Notes whether a statement got the sweepers' lock. Returns whether so many in a row failed to get it that the
    /// holder is hardly a sweeper.
    pub(super) fn is_shut_out(&mut self, alone: bool) -> bool {
        self.refused = if alone { 0 } else { self.refused.saturating_add(1) };
        if self.refused == MOST_REFUSED {
            tracing::warn!(
                "another session keeps the lock of the sweepers: nothing is swept (find it with: select pid from \
                 pg_locks join pg_stat_activity using (pid) where datname = current_database() and granted \
                 and locktype = 'advisory' and objid = '1684300900')"
            );
        }
        self.refused >= MOST_REFUSED
    }
}

/// A sweeper holds the lock for milliseconds at a time, and for a share of the time, so it is very unlikely that
/// sweepers meet ten times in a row. A lock for a whole pass would be a session's, which poolers lose, or a
/// transaction's, which would stay open for minutes.
const MOST_REFUSED: u32 = 10;

/// This is longer than an answer takes on its way, and far less than the default margin.
const TOLERANCE: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARGIN: Duration = Duration::from_mins(10);

    /// The verdicts of a watch on readings: seconds on the database's clock, and on the monotonic one, with which the
    /// clock of the machine keeps step.
    #[expect(clippy::disallowed_methods, reason = "only from here on do the readings count")]
    fn trusted(margin: Duration, readings: impl IntoIterator<Item = (i64, u64)>) -> Vec<bool> {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let mut trusts = |(now, passed): (i64, u64)| {
            let [now, shown] = [now, passed.cast_signed()].map(|seconds| Timestamp::from_micros(seconds * 1_000_000));
            watch.trusts(now, start + Duration::from_secs(passed), shown, margin)
        };
        readings.into_iter().map(&mut trusts).collect()
    }

    #[test]
    fn a_clock_that_ran_away_is_trusted_once_it_has_kept_step_for_a_margin() {
        let readings = [(0, 0), (61, 60), (121 + 7200, 120), (720 + 7200, 719), (721 + 7200, 720), (722 + 7200, 721)];
        assert_eq!(trusted(MARGIN, readings), [true, true, false, false, true, true]);
        // The clock also went back: it ran away twice.
        let readings = [(0, 0), (7260, 60), (120, 120), (719, 719), (720, 720)];
        assert_eq!(trusted(MARGIN, readings), [true, false, false, false, true]);
        assert_eq!(trusted(Duration::ZERO, [(0, 0), (7200, 0), (7200, 0)]), [true, false, true]);
        // The clock had run away before the first reading.
        assert_eq!(trusted(MARGIN, [(7200, 0), (7799, 599), (7800, 600)]), [false, false, true]);
        assert_eq!(trusted(MARGIN, [(60, 0)]), [true]);
    }

    #[test]
    fn a_clock_that_is_slewed_for_days_is_trusted() {
        // Half a second in a thousand is the most that the kernels slew by.
        let days = (0_i64..3 * 24 * 60).map(|minute| (minute * 60 + minute * 3 / 100, 60 * minute.unsigned_abs()));
        assert!(trusted(MARGIN, days).into_iter().all(|trusted| trusted));
    }

    proptest! {
        /// This holds wherever the clock steps to, and whenever it is read.
        #[test]
        fn nothing_is_trusted_within_a_margin_of_a_step_of_more_than_a_minute(
            pauses in prop::collection::vec(0_u64..200, 1..40),
            at in 0_usize..40,
            step in prop_oneof![-9_000_i64..-60, 61_i64..9_000],
        ) {
            let at = 1 + at % pauses.len();
            let passed: Vec<_> = pauses.iter().scan(0, |sum, pause| { *sum += pause; Some(*sum) }).collect();
            let readings = passed.iter().enumerate();
            let stepped = |nth| if nth < at { 0 } else { step };
            let readings = readings.map(|(nth, passed)| (passed.cast_signed() + stepped(nth), *passed));
            for (nth, trusted) in trusted(MARGIN, readings).into_iter().enumerate() {
                prop_assert_eq!(trusted, nth < at || passed[nth] - passed[at] >= MARGIN.as_secs(), "reading {}", nth);
            }
        }
    }
}
