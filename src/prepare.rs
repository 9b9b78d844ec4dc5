//! The steps around each decision, for limiter and gate alike: the operation of a verb, with an id and under the
//! overrides of its limits, and the report of its answer.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::algebra::Timestamp;
use crate::call::CallError;
use crate::error::Error;
use crate::meter::{self, By};
use crate::overrides::{OverrideOf, Overrides};
use crate::parts::Parts;
use crate::plan::{Answer, Operation, Under, Verb};
use crate::values::text::Text;

/// The most keys that one call may ask, unless its limiter or gate says otherwise. On a busy machine a call of 2 000
/// keys kept its rows from others for a second, which is how long a gate waits for a lock; one of 20 000 for 7.6
/// seconds.
pub(crate) const MAX_KEYS: usize = 2_000;

/// The operation of a verb over tables with so many parts, under the overrides, if there are any. It asks for the
/// instant only if there are overrides.
pub(crate) fn prepared(
    by: By,
    verb: Verb,
    parts: Parts,
    max_keys: usize,
    overrides: Option<&Overrides>,
    at: impl FnOnce() -> Option<Timestamp>,
) -> Result<Operation, Error> {
    let under = |overrides: Option<&OverrideOf<'_>>| Operation::of(verb, &Under { overrides, parts, draw: &draw_id });
    let made = match overrides {
        Some(overrides) => overrides.each(at(), under),
        None => under(None),
    };
    let prepared = made.and_then(|operation| {
        // A settlement may have more: another bound may have held when the call was granted.
        let keys = if operation.settles() { 0 } else { operation.keys() };
        expect_few(keys, max_keys, operation.limit()).map(|()| operation)
    });
    prepared.inspect_err(|error| meter::wrong(by, error))
}

/// Fails for more keys than are allowed.
pub(crate) fn expect_few(keys: usize, most: usize, limit: &Text) -> Result<(), Error> {
    if keys > most { Err(Error::of_call(limit, CallError::TooManyKeys { keys, most })) } else { Ok(()) }
}

/// The answer to a call that follows from overrides alone.
pub(crate) fn overruled(
    by: By,
    call: &Operation,
    overrides: Option<&Overrides>,
    at: impl FnOnce() -> Option<Timestamp>,
) -> Option<Answer> {
    let overrides = overrides.filter(|_| call.is_overridden())?;
    call.overridden().for_each(|(limit, label)| meter::overridden(limit, label));
    let answer = Ok(call.overruled(at().unwrap_or_else(|| overrides.now()))?);
    tell(by, call.limit(), &answer);
    answer.ok()
}

/// Reports how a call was answered.
pub(crate) fn tell(by: By, limit: &Text, answer: &Result<Answer, Error>) {
    match answer {
        Ok(Answer::Denied(denied)) => meter::refused(by, limit.as_str(), denied),
        Ok(Answer::Granted { grant, .. }) => meter::granted(by, limit.as_str(), grant.source, &grant.standings),
        Ok(answer) => meter::changed(by, limit.as_str(), answer.source()),
        Err(error) => meter::failed(by, limit.as_str(), error),
    }
}

#[expect(clippy::disallowed_methods, reason = "this machine's clock decides nothing here")]
fn draw_id() -> u128 {
    let mut random = [0; 10];
    // Each system that tokio runs on has a random generator, and the standard library's own hash maps panic without it.
    getrandom::fill(&mut random).expect("the system has a random generator");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    id_of(now.as_millis(), random)
}

/// 48 bits of milliseconds, then 80 random bits, much as in a UUID of version 7. So calls of about the same time lie
/// together in their index; random names would be spread over all of its pages, and cost more. A wrong clock costs no
/// more than that.
fn id_of(millis: u128, random: [u8; 10]) -> u128 {
    random.into_iter().fold(millis, |id, byte| id << 8 | u128::from(byte))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::iter::repeat_with;

    use super::*;
    use crate::call::Drawn;

    #[test]
    fn ids_that_are_drawn_lie_in_the_order_of_time_as_texts_and_none_comes_twice() {
        let [low, high] = [[0; 10], [0xFF; 10]];
        let ids = [(9, low), (9, high), (10, low), (1 << 47, low)].map(|(millis, random)| id_of(millis, random));
        assert!(ids.map(|id| Drawn(id).to_string()).is_sorted_by(|one, other| one < other));
        let drawn: HashSet<_> = repeat_with(draw_id).take(100_000).collect();
        assert_eq!(drawn.len(), 100_000);
    }
}
