mod lease;
mod reaping;
mod stream;

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::plan::Settlement;
pub use lease::Lease;
pub(super) use reaping::Reaping;
pub use stream::Stream;

/// Makes the call with which a guard ends. Tries again after an error that is worth it, until an instant. Once the gate
/// is closed, it tries once more; without a listener nothing waits for it.
async fn end<F: Future<Output = Result<Settlement, Error>>>(
    call: impl Fn() -> F,
    is_worth_it: impl Fn(&Error) -> bool,
    until: Instant,
    mut closed: Option<watch::Receiver<bool>>,
) -> Result<(), Error> {
    let (mut pause, mut may_be_done) = (FIRST_PAUSE, false);
    loop {
        let is_last = closed.as_ref().is_some_and(|closed| *closed.borrow());
        let error = match call().await {
            Ok(_) => return Ok(()),
            // The try whose answer was lost has used the receipt.
            Err(Error::ReceiptUsed { .. }) if may_be_done => return Ok(()),
            Err(error) => error,
        };
        if !is_worth_it(&error) || is_last || Instant::now() + pause >= until {
            return Err(error);
        }
        may_be_done |= matches!(error, Error::OutcomeUnknown { .. });
        match &mut closed {
            Some(closed) => drop(timeout(pause, closed.wait_for(|is_closed| *is_closed)).await),
            None => sleep(pause).await,
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// The first and the longest pause before it is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);
