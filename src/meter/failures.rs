//! Which errors are logged: each kind once a minute. So a fault that every call meets is seen, and floods no log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::{Discriminant, discriminant};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::values::lock::lock;

/// The kinds of errors that this process has met.
#[derive(Default)]
pub(crate) struct Failures(Mutex<HashMap<Kind, Logged>>);

/// A variant, and PostgreSQL's code (SQLSTATE).
type Kind = (Discriminant<Error>, Option<String>);

/// When a kind was logged last, and how many errors of the kind came since then.
struct Logged {
    at: Instant,
    others: u64,
}

impl Failures {
    /// Counts an error. If its kind is to be logged now, returns how many errors of the kind were not logged.
    pub(crate) fn note(&self, error: &Error, now: Instant) -> Option<u64> {
        let kind = (discriminant(error), error.sqlstate().map(Into::into));
        match lock(&self.0).entry(kind) {
            Entry::Vacant(place) => {
                place.insert(Logged { at: now, others: 0 });
                Some(0)
            }
            Entry::Occupied(place) => {
                let logged = place.into_mut();
                if now.saturating_duration_since(logged.at) < PAUSE {
                    logged.others += 1;
                    return None;
                }
                logged.at = now;
                Some(std::mem::take(&mut logged.others))
            }
        }
    }
}

const PAUSE: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Step;
    use crate::store::database;

    fn locked(name: &'static str) -> Error {
        Error::Locked { limit: name.into() }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "only from here on do the instants count")]
    fn each_kind_is_logged_once_a_minute_with_the_count_of_the_others() {
        let (failures, start) = (Failures::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let gone = || database(Step::Read, "one", sqlx::Error::WorkerCrashed);
        assert_eq!(failures.note(&locked("one"), at(0)), Some(0));
        assert_eq!(failures.note(&locked("another"), at(59)), None, "a kind is no limit");
        assert_eq!(failures.note(&gone(), at(59)), Some(0), "another kind");
        assert_eq!(failures.note(&locked("one"), at(59)), None);
        assert_eq!(failures.note(&locked("one"), at(60)), Some(2));
        assert_eq!(failures.note(&locked("one"), at(119)), None);
        assert_eq!(failures.note(&gone(), at(120)), Some(0), "it was the first since its line");
        assert_eq!(failures.note(&locked("one"), at(500)), Some(1));
        assert_eq!(failures.note(&locked("one"), start), None, "a clock that goes back logs nothing");
    }
}
