//! The verbs of a gate, one module for each purpose. This module has the path that all of them share.

// The documentation shows their methods in this order.
mod take;

mod look;

mod give;

mod hold;

mod wait;

mod operate;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::Instrument;

use super::reply::{QueuedCall, Reply};
use super::shared::Shared;
use super::{Gate, GateInner};
use crate::answer::decision::Decision;
use crate::error::Error;
use crate::meter::{self, By};
use crate::plan::{Answer, Operation, Verb};
use crate::prepare::{overruled, prepared, tell};
use crate::values::text::Text;

impl Gate {
    /// Decides by overrides, else from memory, else by the database, else by the failure policy.
    async fn decide(&self, call: Operation) -> Result<Decision, Error> {
        let Shared { memories, fallback, .. } = &*self.inner.shared;
        let remembered = memories.refuse(&call);
        if let Some(answer) = self.overruled(&call) {
            Ok(answer.grant())
        } else if let Some(denied) = remembered {
            meter::refused(By::Gate, call.limit().as_str(), &denied);
            Ok(Decision::Denied(denied))
        } else {
            let kept = fallback.as_ref().map(|fallback| (fallback, call.clone()));
            match (self.ask(call).await, kept) {
                (Ok(answer), _) => Ok(answer.grant()),
                (Err(error), Some((fallback, call))) => fallback.answer(call, error),
                (Err(error), None) => Err(error),
            }
        }
    }

    async fn change(&self, verb: Verb) -> Result<Answer, Error> {
        self.ask(self.prepared(verb)?).await
    }

    fn prepared(&self, verb: Verb) -> Result<Operation, Error> {
        let Shared { settings, overrides, .. } = &*self.inner.shared;
        prepared(By::Gate, verb, settings.backend.parts, settings.max_keys, overrides.as_ref(), || settings.clock.at())
    }

    /// The answer that follows from overrides alone.
    fn overruled(&self, call: &Operation) -> Option<Answer> {
        let Shared { settings, overrides, .. } = &*self.inner.shared;
        overruled(By::Gate, call, overrides.as_ref(), || settings.clock.at())
    }

    /// Fails once the gate was closed, for calls that would have to be given back later.
    fn expect_open(&self) -> Result<(), Error> {
        if *self.inner.shared.closed.borrow() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Queues a call, and waits for its answer.
    async fn ask(&self, call: Operation) -> Result<Answer, Error> {
        let (limit, lapses) = (call.limit().clone(), call.lapses());
        let span = tracing::debug_span!("tollgate", limit = limit.as_str(), outcome = tracing::field::Empty);
        let GateInner { shared, reaping, .. } = &*self.inner;
        // This is noted before anything is charged: the caller may be gone when the answer comes, and the answer may be
        // lost.
        if let Some(lapses_in) = lapses {
            reaping.note(lapses_in, shared);
        }
        let asked_at = Instant::now();
        let answer = self.queue(call, &limit).instrument(span.clone()).await;
        meter::waited(asked_at.elapsed());
        // A reservation that has to wait lapses later.
        if let (Some(_), Ok(Some(lapses_in))) = (lapses, answer.as_ref().map(Answer::stored_for)) {
            reaping.note(lapses_in, shared);
        }
        span.record("outcome", answer.as_ref().map_or("error", Answer::outcome));
        tell(By::Gate, &limit, &answer);
        answer
    }

    async fn queue(&self, call: Operation, limit: &Text) -> Result<Answer, Error> {
        let (mut reply, answer) = Reply::new(limit.clone());
        if call.is_held() {
            reply.owing = self.inner.shared.owing();
        }
        let queued = QueuedCall { call, reply, blocked_since: None };
        if let Err(error) = self.inner.nodes.submit(queued) {
            if error.is_outage() {
                // A caller that tries again without a pause must not keep the runtime from the task that asks the
                // server.
                tokio::task::yield_now().await;
            }
            return Err(error);
        }
        answer.await.expect("a reply is sent even when it is dropped")
    }
}

/// The runtime of the caller. A verb asks for it first, because only its tasks could give taken tokens back.
fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| Error::Stopped)
}
