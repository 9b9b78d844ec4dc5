use super::state::{cut, wide};
use super::terms::Terms;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// Tokens that were charged for calls to come, and were not spent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rest {
    /// How many.
    pub tokens: Tokens,
    /// The row's own instant as the charge left it. For a row that stands in steps it lies before the charge.
    pub stood_at: Timestamp,
    /// From when on nothing of it is given back.
    pub until: Timestamp,
}

impl Rest {
    /// The rest less the tokens that time has brought back: the row gained these in the place of the rest.
    ///
    /// All of it would bank that gain. Of one a second, one that was taken ahead at 0 and given back whole at 1 is
    /// there again, beside the one that the row has gained: two are spent at once. In a model that was over the bound
    /// in each of 300 stories.
    pub(crate) fn owed(&self, terms: &Terms, now: Timestamp) -> Tokens {
        if now >= self.until {
            return Tokens::ZERO;
        }
        let (gained, _) = terms.gained(self.stood_at, now.max(self.stood_at));
        cut((wide(self.tokens) - gained).max(0))
    }
}
