use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate::Lease;

pin_project! {
    /// The body of a response behind a [`TollgateLayer`](super::TollgateLayer). It keeps the request's tokens of
    /// concurrency limits until it is sent, or dropped.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        inner: B,
        lease: Option<Lease>,
    }
}

impl<B> Body<B> {
    pub(super) fn new(inner: B, lease: Option<Lease>) -> Self {
        Self { inner, lease }
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
        if let Poll::Ready(None | Some(Err(_))) = frame {
            // The lease is released with the last byte, and not when the connection is done with the response.
            drop(this.lease.take());
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
