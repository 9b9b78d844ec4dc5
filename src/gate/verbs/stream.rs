use super::runtime;
use crate::answer::decision::Decision;
use crate::call::{Call, CallId};
use crate::error::{Error, Step};
use crate::gate::connection::{Connection, within};
use crate::gate::{Gate, Stream};
use crate::meter::{self, By};
use crate::plan::Verb;
use crate::tokens::Tokens;

/// # Streaming
impl Gate {
    /// Takes an estimate from every limit, or from none, for a call whose cost is known only when it has ended. The
    /// [`Stream`] counts the use, and settles the call at it when the stream is dropped.
    ///
    /// # Errors
    ///
    /// [`CallError::MixedCosts`](crate::CallError::MixedCosts) for counted requests with different costs; those of
    /// [`consume`](Self::consume).
    pub async fn stream(&self, call: impl Into<Call>) -> Result<Decision<Stream>, Error> {
        // The settlement needs a runtime.
        let (runtime, call) = (runtime()?, call.into());
        // Different costs are an error now, because after the answer was streamed it is too late.
        let checked = self.prepared(Verb::consume(call.clone()))?;
        checked.expect_one_cost().inspect_err(|error| meter::wrong(By::Gate, error))?;
        Ok(self.consume(call).await?.map(|grant| Stream::new(self, grant, runtime)))
    }

    /// Stores the tokens of a stored call that are used so far.
    pub(crate) async fn report(&self, call: &CallId, used: Tokens) -> Result<(), Error> {
        let shared = &self.inner.shared;
        let call = CallId { part: shared.settings.backend.parts.of(call.key()), ..call.clone() };
        let mut connection = Connection::acquire_sound(shared, &shared.entry, call.name()).await?;
        let reporting = async { shared.store(&mut connection).report_call(&call, used).await };
        let reported = within(shared.settings.statement_timeout, Step::Save, call.name(), reporting).await;
        if reported.as_ref().err().is_none_or(Error::leaves_connection) {
            connection.finished();
            connection.give_back(shared).await;
        }
        reported
    }
}
