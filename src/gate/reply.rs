use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::Error;
use crate::plan::{Answer, CheckedCall};
use crate::text::Text;

/// A call in a queue.
pub(super) struct QueuedCall {
    pub(super) call: CheckedCall,
    pub(super) reply: Reply,
    /// Since when somebody is known to lock a row that it asks for.
    pub(super) blocked_since: Option<Instant>,
}

/// The way back to one caller. A reply that is dropped says what is known by then, so every caller gets an answer.
pub(super) struct Reply {
    sender: Option<oneshot::Sender<Result<Answer, Error>>>,
    limit: Text,
    /// Whether the call may have been carried out.
    begun: bool,
}

impl Reply {
    /// A reply, and where its answer arrives. `limit` names the call in errors.
    pub(super) fn new(limit: Text) -> (Self, oneshot::Receiver<Result<Answer, Error>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender: Some(sender), limit, begun: false }, receiver)
    }

    /// The limit that the call is known by.
    pub(super) fn limit(&self) -> &Text {
        &self.limit
    }

    /// Whether nobody waits any longer.
    pub(super) fn is_abandoned(&self) -> bool {
        self.sender.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// From here on the call counts, whether its caller waits or not.
    pub(super) fn begin(&mut self) {
        self.begun = true;
    }

    /// Nothing was carried out after all.
    pub(super) fn undo(&mut self) {
        self.begun = false;
    }

    /// Answers; an error of many callers names the limit of this one.
    pub(super) fn send(mut self, answer: Result<Answer, Error>) {
        let answer = answer.map_err(|error| error.concerning(&self.limit));
        self.deliver(answer);
    }

    /// Answers that too many wait.
    pub(super) fn refuse(self) {
        let error = self.overloaded();
        self.send(Err(error));
    }

    pub(super) fn overloaded(&self) -> Error {
        Error::Overloaded { limit: self.limit.clone().into() }
    }

    fn deliver(&mut self, answer: Result<Answer, Error>) {
        if let Some(sender) = self.sender.take() {
            // A caller that went away meanwhile was counted: nothing is left to do.
            let _ = sender.send(answer);
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
