//! Which numbers of a limit would have been right for recorded calls.

mod caller;
mod caveats;
mod search;
mod share;

use std::collections::HashSet;
use std::time::Duration;

use tollgate::{Key, Limit, LimitKind};

use crate::arrival::Arrival;
use caller::Caller;
use search::{Found, Search};
pub use share::Share;

/// Asks for the smallest numbers of a limit that would have refused at most a share of the calls, and had at most that
/// share of the keys a call refused.
///
/// ```
/// use tollgate::{LimitKind, MINUTE};
/// use tollgate_simulation::{Arrivals, Question, Traffic};
///
/// let traffic: Vec<Traffic> = vec!["burst size=20 every=1m for=1h clients=3".parse()?];
/// let question = Question {
///     name: "api".to_owned(),
///     kind: LimitKind::TokenBucket,
///     per: MINUTE,
///     refuse_at_most: "0.1%".parse()?,
///     is_global: false,
/// };
/// let suggestion = question.answer(Arrivals::new(&traffic, 1))?;
/// let limit = &suggestion.chosen().limit;
/// assert_eq!((limit.rate.whole(), limit.most().whole()), (20, 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Question {
    /// The name of the limit. Windows of one key start at other instants under another name.
    pub name: String,
    /// A token bucket, a fixed window or a sliding window.
    pub kind: LimitKind,
    /// The period.
    pub per: Duration,
    /// The share of calls, and of keys.
    pub refuse_at_most: Share,
    /// Whether all callers share one row. Then the share is that of calls alone.
    pub is_global: bool,
}

/// The numbers that would have been right.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// How many calls there were.
    pub calls: usize,
    /// How many keys.
    pub keys: usize,
    /// From the first call to the last.
    pub span: Duration,
    /// How many calls may be refused.
    pub allowed_calls: usize,
    /// How many keys may have a call refused.
    pub allowed_keys: usize,
    /// For a token bucket some rates, and the smallest capacity of each; for a window several sizes.
    pub choices: Vec<Choice>,
    /// The place of the answer among them.
    ///
    /// A window is the smallest that is within the share. A token bucket is the one that grants a key the least in any
    /// one period: rate and capacity add up to the least, to within one per cent.
    pub choice: usize,
    /// Reasons to doubt the answer, in words.
    pub caveats: Vec<String>,
}

/// A limit, and what it would have refused.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The limit.
    pub limit: Limit,
    /// How many calls it refuses.
    pub refused_calls: usize,
    /// How many keys have a call refused.
    pub refused_keys: usize,
}

impl Question {
    /// Tries limits on the calls, which come in any order; those of one instant stay in theirs.
    ///
    /// # Errors
    ///
    /// If there is no call, the limit is none that this searches for, or costs add up to more than a number holds.
    pub fn answer(&self, calls: impl IntoIterator<Item = Arrival>) -> Result<Suggestion, String> {
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_by_key(|call| call.at);
        let (Some(first), Some(last)) = (calls.first(), calls.last()) else {
            return Err("there is no call".to_owned());
        };
        let span = Duration::from_micros(last.at.micros().abs_diff(first.at.micros()));
        let costs_differ = calls.iter().any(|call| call.cost != first.cost);
        let (count, keys) = (calls.len(), calls.iter().map(|call| &call.key).collect::<HashSet<_>>().len());
        if self.is_global {
            for call in &mut calls {
                call.key = Key::GLOBAL;
            }
        }
        let callers = Caller::all(calls)?;

        let allowed_calls = self.refuse_at_most.of(count);
        let allowed_keys = if self.is_global { keys } else { self.refuse_at_most.of(keys) };
        let search = Search { question: self, allowed_calls, allowed_keys };
        let Found { choices, chosen: choice, is_by_calls } = match self.kind {
            LimitKind::TokenBucket => search.bucket(&callers)?,
            LimitKind::FixedWindow | LimitKind::SlidingWindow => search.window(&callers)?,
            kind => return Err(format!("no trace tells the numbers of a {kind} (use a token bucket or a window)")),
        };
        let mut suggestion =
            Suggestion { calls: count, keys, span, allowed_calls, allowed_keys, choices, choice, caveats: Vec::new() };
        suggestion.caveats = suggestion.doubts(self, costs_differ && is_by_calls);
        Ok(suggestion)
    }
}

impl Suggestion {
    /// The answer.
    #[must_use]
    pub fn chosen(&self) -> &Choice {
        &self.choices[self.choice]
    }
}

#[cfg(test)]
mod tests;
