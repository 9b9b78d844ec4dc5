use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::{Charge, Lease};

pin_project! {
    /// The body of a response behind a [`TollgateLayer`](super::TollgateLayer), or of an answer to an
    /// [`OutgoingLayer`](super::OutgoingLayer). It keeps the request's tokens of
    /// concurrency limits until it is sent, or dropped, or nobody has asked for its next frame for three times the
    /// length of a lease.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        inner: B,
        held: Option<Held>,
    }
}

/// A lease, and for how long it waits for a reader.
#[derive(Debug)]
struct Held {
    lease: Lease,
    patience: Duration,
}

impl<B> Body<B> {
    pub(super) fn new(inner: B, lease: Option<Lease>) -> Self {
        Self { inner, held: lease.map(Held::new) }
    }
}

impl Held {
    fn new(lease: Lease) -> Self {
        let grant = lease.grant();
        let length = |charge: &Charge| (charge.lease_ends_at()? - grant.observed_at).to_std().ok();
        let shortest = grant.receipt.charges.iter().filter_map(length).min();
        let patience = shortest.map_or(Duration::MAX, |length| length.saturating_mul(PATIENCE));
        let held = Self { lease, patience };
        held.await_reader();
        held
    }

    /// The reader has all that there is.
    fn await_reader(&self) {
        self.lease.keep_for(self.patience);
    }

    /// The reader waits for the service, which may take its time.
    fn await_service(&self) {
        self.lease.keep_for(Duration::MAX);
    }
}

impl<B: http_body::Body> http_body::Body for Body<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(context);
        match (&frame, &this.held) {
            // The lease is released with the last byte, and not when the connection is done with the response.
            (Poll::Ready(None | Some(Err(_))), _) => drop(this.held.take()),
            (Poll::Ready(Some(Ok(_))), Some(held)) => held.await_reader(),
            (Poll::Pending, Some(held)) => held.await_service(),
            (_, None) => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// In lengths of a lease. A server asks for more only when a good part of its buffers is sent, which takes a slow
/// reader more than a moment.
const PATIENCE: u32 = 3;
