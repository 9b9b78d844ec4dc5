use std::time::Instant;

use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::plan::{Answer, Operation};
use crate::values::text::Text;

/// A call in a queue.
pub(super) struct QueuedCall {
    pub(super) call: Operation,
    pub(super) reply: Reply,
    /// Since when another transaction is known to lock a row that it asks for.
    pub(super) blocked_since: Option<Instant>,
}

/// The way back to one caller. If a reply is dropped, it sends an error that says what is known by then, so every
/// caller gets an answer.
pub(super) struct Reply {
    to: Option<To>,
    /// The limit that names the call.
    pub(super) limit: Text,
    /// Whether the call was begun, so that it may have been carried out. From then on it counts, whether its caller
    /// waits or not.
    pub(super) begun: bool,
    /// Closing the gate waits until this is dropped, once the answer is given.
    pub(super) owing: Option<watch::Receiver<bool>>,
}

/// The receiver of the answer.
enum To {
    Caller(oneshot::Sender<Result<Answer, Error>>),
    /// The gate itself.
    Gate(Box<dyn FnOnce(Result<Answer, Error>) + Send>),
}

impl Reply {
    /// A reply, and where its answer arrives. `limit` names the call in errors.
    pub(super) fn new(limit: Text) -> (Self, oneshot::Receiver<Result<Answer, Error>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { to: Some(To::Caller(sender)), limit, begun: false, owing: None }, receiver)
    }

    /// The reply to a call of the gate's own.
    pub(super) fn then(limit: Text, then: impl FnOnce(Result<Answer, Error>) + Send + 'static) -> Self {
        Self { to: Some(To::Gate(Box::new(then))), limit, begun: false, owing: None }
    }

    /// Whether the caller no longer waits.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.to {
            Some(To::Caller(sender)) => sender.is_closed(),
            Some(To::Gate(_)) => false,
            None => true,
        }
    }

    /// Whether it is the reply to a caller, and not to a call of the gate's own.
    pub(super) fn has_caller(&self) -> bool {
        matches!(self.to, Some(To::Caller(_)))
    }

    /// Answers; an error of many callers names the limit of this one.
    pub(super) fn send(mut self, answer: Result<Answer, Error>) {
        let answer = answer.map_err(|error| error.concerning(&self.limit));
        self.deliver(answer);
    }

    /// Answers that too many calls wait.
    pub(super) fn refuse(self) {
        let error = self.overloaded();
        self.send(Err(error));
    }

    pub(super) fn overloaded(&self) -> Error {
        Error::Overloaded { limit: self.limit.clone().into() }
    }

    fn deliver(&mut self, answer: Result<Answer, Error>) {
        match self.to.take() {
            // If the caller has gone away, the call still counts, and nothing is left to do.
            Some(To::Caller(sender)) => drop(sender.send(answer)),
            Some(To::Gate(then)) => then(answer),
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let limit = self.limit.clone().into();
        let unknown = Error::OutcomeUnknown { limit, source: None };
        self.deliver(Err(if self.begun { unknown } else { Error::Stopped }));
    }
}
