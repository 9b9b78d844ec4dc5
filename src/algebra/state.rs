use super::holds::Holds;
use super::timestamp::Timestamp;
use crate::tokens::Tokens;

/// What a row holds: a balance, the instant at which the balance was that, and what may come back to it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct State {
    /// The balance, after all holds were taken from it; negative for a debt.
    pub value: Tokens,
    /// When the balance was that: the last write of a continuous refill, the last grid step of a stepped one.
    pub ts: Timestamp,
    /// What may come back.
    pub holds: Holds,
}

impl State {
    /// A row without holds.
    #[must_use]
    pub const fn new(value: Tokens, ts: Timestamp) -> Self {
        Self { value, ts, holds: Holds::NONE }
    }

    /// Adds tokens, up to a capacity, to the value and to each sum of the value and the first holds.
    ///
    /// A sum is what the row would hold if these holds came back, and it stops at the capacity like any balance. What
    /// a refill has brought meanwhile, a hold brings no second time. A sum above the capacity is cut or stays.
    pub(super) fn fill(&mut self, gained: i128, capacity: i64, cuts: bool) {
        let capacity = i128::from(capacity);
        let fill = |sum: i128| {
            let filled = (sum + gained).min(capacity);
            if cuts { filled } else { filled.max(sum) }
        };
        let mut sum = wide(self.value);
        let mut filled = fill(sum);
        self.value = cut(filled);
        for hold in self.holds.iter_mut() {
            sum += wide(hold.amount);
            let before = filled;
            filled = fill(sum);
            hold.amount = cut(filled - before);
        }
    }

    /// Ends the holds that have lapsed: those that give back do so. No sum changes.
    pub(super) fn lapse(&mut self, now: Timestamp) {
        if !self.holds.is_empty() {
            let back = self.holds.lapse(now);
            self.value = cut(wide(self.value) + back);
        }
    }
}

pub(super) fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}

/// The nearest amount.
pub(super) fn cut(micros: i128) -> Tokens {
    let cut = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Tokens::from_micros(i64::try_from(cut).expect("the line above cuts it to the range of i64"))
}
