use serde::{Deserialize, Serialize};

use crate::call_error::CallError;

/// Where a request stands in its call.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Position {
    /// The alternative that it belongs to, from 0; `None` for a call that has none.
    pub(crate) alternative: Option<usize>,
    /// The place of the request in its split, from 0, if it is in one.
    pub(crate) split: Option<usize>,
}

impl Position {
    /// Fails if no request may stand at this place, behind the one at `last` or as the first.
    pub(crate) fn expect_behind(self, last: Option<Self>) -> Result<(), CallError> {
        let in_order = match (last.map(|last| last.alternative), self.alternative) {
            (None, next) => next.unwrap_or(0) == 0,
            (Some(Some(last)), Some(next)) => matches!(next.checked_sub(last), Some(0 | 1)),
            (Some(last), next) => last == next,
        };
        let in_split = self.split.is_none_or(|place| {
            let before = last.filter(|last| last.alternative == self.alternative).and_then(|last| last.split);
            place.checked_sub(1).is_none_or(|previous| before == Some(previous))
        });
        match (in_order, in_split) {
            (false, _) => Err(CallError::AlternativesApart),
            (true, false) => Err(CallError::SplitApart),
            (true, true) => Ok(()),
        }
    }
}
