use crate::call::Request;
use crate::gate::{Gate, GateInner};
use crate::tokens::Tokens;

/// # Operating a gate
impl Gate {
    /// The tokens of a limit and key that lie in this process's memory, taken ahead; see
    /// [`GateBuilder::prefetch`](crate::GateBuilder::prefetch). Zero for a request that is wrong.
    #[must_use]
    pub fn prefetched(&self, request: &Request) -> Tokens {
        let held = |(limit, key, _): (&_, &_, _)| self.inner.shared.memories.prefetch.held(limit, key);
        request.asked().map_or(Tokens::ZERO, held)
    }

    /// Ends the gate's work, so that the process can end and leave nothing open. It gives back tokens that were [taken
    /// ahead](crate::GateBuilder::prefetch), releases each [`Lease`](crate::Lease), and settles each
    /// [`Stream`](crate::Stream) that was dropped.
    ///
    /// Callers that [wait](Self::wait) are refused, and nothing is taken for them. From then on `wait`,
    /// `acquire_within` and calls for a lease fail with [`Error::Stopped`](crate::Error::Stopped), and only the
    /// database answers other calls. This method returns when all of that is done, whether callers poll their futures
    /// or not. If the database does not answer, or another transaction keeps a row locked, it returns when the timeouts
    /// of the gate have passed. Then leases lapse, and tokens that were taken ahead or streamed stay charged.
    pub async fn close(&self) {
        let GateInner { shared, nodes, .. } = &*self.inner;
        shared.closed.send_replace(true);
        shared.waiters.close();
        // A slice that is still being charged is given back in the second round.
        for _ in 0..2 {
            shared.memories.prefetch.give_back_all().into_iter().for_each(|call| drop(nodes.submit(call)));
            shared.closed.closed().await;
        }
    }
}
