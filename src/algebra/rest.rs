use super::state::{State, saturate, wide};
use super::terms::Terms;
use crate::tokens::Tokens;
use crate::values::timestamp::Timestamp;

/// Tokens that were charged for calls to come, and were not spent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rest {
    /// The number of tokens.
    pub tokens: Tokens,
    /// The row's own instant after the charge. For a row with steps it lies before the instant of the charge.
    pub stood_at: Timestamp,
    /// The instant from which on no tokens are given back.
    pub until: Timestamp,
}

impl Rest {
    /// The rest less the tokens that time has brought back: the row has gained these in place of the rest.
    ///
    /// To give back all of it would bank that gain. Say the rate is one a second. A token is taken ahead at 0 and given
    /// back in full at 1, when the row has gained another: two can be spent at once.
    pub(crate) fn owed(&self, terms: &Terms, now: Timestamp) -> Tokens {
        if now >= self.until {
            return Tokens::ZERO;
        }
        let row = State::new(Tokens::ZERO, self.stood_at);
        let row = terms.stood_still(&row, now).unwrap_or(row);
        let (gained, _) = terms.gained(&row, now.max(row.ts));
        saturate((wide(self.tokens) - gained).max(0))
    }
}
