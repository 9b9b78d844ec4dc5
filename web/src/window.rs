use std::collections::VecDeque;

use tollgate::algebra::Timestamp;
use tollgate::{Limit, LimitKind, Tokens};

/// The amount that promise 1 bounds, for one row: the tokens that were granted in the last period, are held, or were
/// spent. Tokens that have come back are subtracted, as the promise has it.
#[derive(Debug)]
pub(crate) struct Window {
    counts: Counts,
    start: Timestamp,
    pub(crate) bound: i128,
    used: i128,
    /// Amounts that still count, and until when.
    counted: VecDeque<(i64, i128)>,
    /// Instants since the start, and what counts there, in turn.
    pub(crate) points: Vec<f64>,
}

/// In microseconds. Months turn once in it.
const SHORTEST_MONTH: i64 = 28 * 86_400_000_000;

/// Which grants count at an instant.
#[derive(Clone, Copy, Debug)]
enum Counts {
    /// Those of the last so many microseconds, each less what came back of it.
    Kept(i64),
    /// Those of the last so many microseconds, less what came back in these, also of a grant before them: a bucket
    /// grants again what comes back, whenever it was granted.
    Net(i64),
    /// Grants that hold something: the capacity less the balance.
    Held,
    /// All.
    Ever,
}

impl Window {
    pub(crate) fn of(limit: &Limit, funds: Tokens, start: Timestamp) -> Self {
        let [rate, reserved, funds] = [limit.rate, limit.max_reserved, funds].map(wide);
        let capacity = limit.capacity.map_or(rate, wide);
        let period = i64::try_from(limit.period.as_micros()).expect("a period is at most a thousand years");
        let (counts, bound) = match limit.kind {
            // In a period: the tokens that were there, those that may be owed, and those that were refilled.
            LimitKind::TokenBucket | LimitKind::SteppedBucket => (Counts::Net(period), capacity + reserved + rate),
            LimitKind::FixedWindow => (Counts::Kept(period), capacity + reserved + rate),
            LimitKind::SlidingWindow => (Counts::Kept(period), rate),
            LimitKind::Concurrency => (Counts::Held, rate),
            LimitKind::Monthly => (Counts::Kept(SHORTEST_MONTH), capacity + reserved + rate),
            LimitKind::Meter => (Counts::Ever, i64::MAX.into()),
            LimitKind::Wallet => (Counts::Ever, funds + reserved),
            // Nothing is granted of a billing limit: the page's calls name no period.
            _ => (Counts::Ever, 0),
        };
        let mut window = Self { counts, start, bound, used: 0, counted: VecDeque::new(), points: Vec::new() };
        window.point(start.micros());
        window
    }

    /// Notes what a call was granted.
    pub(crate) fn granted(&mut self, at: Timestamp, cost: Tokens) {
        self.pass(at);
        match self.counts {
            Counts::Held => {}
            Counts::Ever => self.step(at.micros(), wide(cost)),
            Counts::Kept(period) | Counts::Net(period) => self.count(at.micros(), period, wide(cost)),
        }
    }

    /// Notes what came back at an instant of a call that was granted at another.
    pub(crate) fn returned(&mut self, granted_at: Timestamp, at: Timestamp, amount: Tokens) {
        self.pass(at);
        match self.counts {
            Counts::Held => {}
            Counts::Ever => self.step(at.micros(), -wide(amount)),
            Counts::Net(period) => self.count(at.micros(), period, -wide(amount)),
            Counts::Kept(period) => {
                let leaves = granted_at.micros() + period;
                if let Ok(place) = self.counted.binary_search_by_key(&leaves, |(at, _)| *at) {
                    self.counted[place].1 -= wide(amount);
                    self.step(at.micros(), -wide(amount));
                }
            }
        }
    }

    /// Counts an amount for a period; what leaves at one instant leaves together.
    fn count(&mut self, at: i64, period: i64, amount: i128) {
        self.step(at, amount);
        match self.counted.back_mut() {
            Some((leaves, counted)) if *leaves == at + period => *counted += amount,
            _ => self.counted.push_back((at + period, amount)),
        }
    }

    /// Notes a balance.
    pub(crate) fn balance(&mut self, at: Timestamp, balance: Tokens) {
        if let Counts::Held = self.counts {
            let held = self.bound - wide(balance);
            self.step(at.micros(), held - self.used);
        }
    }

    /// Goes on to an instant.
    pub(crate) fn pass(&mut self, to: Timestamp) {
        while let Some((at, cost)) = self.counted.pop_front_if(|(at, _)| *at <= to.micros()) {
            self.step(at, -cost);
        }
    }

    fn step(&mut self, at: i64, by: i128) {
        if by != 0 {
            self.point(at);
            self.used += by;
            self.point(at);
        }
    }

    /// Notes what counts at an instant.
    #[expect(clippy::cast_precision_loss, reason = "it is drawn")]
    pub(crate) fn point(&mut self, at: i64) {
        self.points.extend([(at - self.start.micros()) as f64, self.used as f64]);
    }
}

fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}
