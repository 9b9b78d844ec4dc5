use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::error::chain;
use crate::gate::shared::Shared;
use crate::gate::worker::Worker;
use crate::reaper::Reaper;
use crate::values::lock::lock;

/// Looks each second for calls that have lapsed, as long as a call of this gate may lapse.
#[derive(Debug, Default)]
pub(crate) struct Reaping {
    /// Until when a task looks.
    until: Arc<Mutex<Option<Instant>>>,
}

impl Reaping {
    /// Notes that a call lapses after so long.
    pub(crate) fn note(&self, lapses_in: Duration, shared: &Arc<Shared>) {
        let Some(until) = Instant::now().checked_add(lapses_in.saturating_add(LATE)) else { return };
        let mut latest = lock(&self.until);
        match (*latest, Handle::try_current()) {
            (Some(before), _) => *latest = Some(before.max(until)),
            (None, Ok(runtime)) => {
                *latest = Some(until);
                let reaper = Reaper::new(shared.entry.pool.clone(), shared.settings.backend);
                runtime.spawn(reap(reaper, Arc::downgrade(shared), Arc::downgrade(&self.until)));
            }
            // Without a runtime no task can look.
            (None, Err(_)) => {}
        }
    }
}

/// Looks until the last call has lapsed and none is left, or the gate is gone, or its pool is closed. Callers that wait
/// for the tokens are woken.
async fn reap(mut reaper: Reaper, shared: Weak<Shared>, until: Weak<Mutex<Option<Instant>>>) {
    // If the task's runtime ends, the next call starts another task.
    let here = until.clone();
    let worker = Worker::new(move || {
        if let Some(until) = here.upgrade() {
            *lock(&until) = None;
        }
    });
    loop {
        // The random pause keeps processes from looking all at the same time.
        sleep(EVERY.mul_f64(0.5 + fastrand::f64())).await;
        let (Some(shared), Some(until)) = (shared.upgrade(), until.upgrade()) else { return worker.done() };
        if reaper.is_over() {
            return;
        }
        let given_back = reaper.reap(shared.settings.clock.at(), |row| shared.lapsed(row)).await;
        if let Err(error) = &given_back {
            tracing::warn!(error = %chain(error), "could not give back what has lapsed");
        }
        let mut until = lock(&until);
        let is_done = given_back.is_ok() && !reaper.is_behind();
        if is_done && until.is_none_or(|until| Instant::now() >= until) {
            *until = None;
            return worker.done();
        }
    }
}

const EVERY: Duration = Duration::from_secs(1);

/// How long the task still looks after the last lapse.
const LATE: Duration = Duration::from_secs(3);
