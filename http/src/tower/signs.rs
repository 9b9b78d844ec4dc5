use std::error::Error;
use std::fmt;
use std::io;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::response::Parts;

use crate::Trouble;

/// The signs by which an outgoing layer knows trouble.
#[derive(Clone)]
pub(super) struct Signs {
    pub(super) answers: bool,
    pub(super) errors: bool,
    /// A call that takes longer is trouble.
    pub(super) latency: Duration,
    pub(super) also: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
}

impl Default for Signs {
    fn default() -> Self {
        Self { answers: true, errors: true, latency: Duration::MAX, also: Arc::new(|_| false) }
    }
}

impl Signs {
    pub(super) fn in_answer(&self, answer: &Parts) -> Option<Trouble> {
        #[expect(clippy::disallowed_methods, reason = "the database's clock says nothing of the other service's")]
        let told = Trouble::of(answer.status, &answer.headers, SystemTime::now());
        let is_trouble = told.is_some() && self.answers || (self.also)(answer);
        is_trouble.then(|| told.unwrap_or_default())
    }

    /// An error is trouble where the other side did not take the call, or ended it. A name that is not found or a
    /// network that is down may be a fault of this machine alone, which must not slow down the others.
    pub(super) fn in_error(&self, error: &(dyn Error + 'static)) -> Option<Trouble> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, TimedOut};
        let mut causes =
            iter::successors(Some(error), |&error| error.source()).filter_map(|cause| cause.downcast_ref());
        let is_theirs = causes.any(|cause: &io::Error| {
            matches!(cause.kind(), BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | TimedOut)
        });
        (self.errors && is_theirs).then(Trouble::default)
    }
}

impl fmt::Debug for Signs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answers, errors, latency, also: _ } = self;
        f.debug_struct("Signs").field("answers", answers).field("errors", errors).field("latency", latency).finish()
    }
}
