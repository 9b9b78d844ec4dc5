use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::{JoinSet, coop};

use super::contender::{Contender, Fault, Session};
use super::processors::{Meter, Spent};
use super::scene::Scene;
use super::users::{Lots, Users};

/// A contender in a scene for a while: the callers warm up, then are timed.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) scene: Scene,
    pub(super) users: Users,
    pub(super) timed: Duration,
    /// Whose processor time is told, if anyone's.
    pub(super) meter: Option<Meter>,
}

impl Turn {
    async fn take(&self, contender: &impl Contender) -> Result<Tally, Fault> {
        let session = Arc::new(contender.open(self.scene).await?);
        let tally = self.call(&session).await?;
        session.close().await;
        Ok(tally)
    }

    /// Calls from all callers at once. A caller that fails ends the turn.
    async fn call<S: Session>(&self, session: &Arc<S>) -> Result<Tally, Fault> {
        let warm_up = self.timed.min(WARM_UP);
        let from = now() + warm_up;
        let until = from + self.timed;
        let mut callers = JoinSet::new();
        for caller in 0..self.scene.callers {
            callers.spawn(self.clone().call_on(session.clone(), Lots::new(caller), from, until));
        }
        let everyone = async {
            let mut tally = Tally::new()?;
            if let Some(meter) = self.meter {
                tally.spent = Some(meter.between(from, until).await?);
            }
            while let Some(caller) = callers.join_next().await {
                tally.add(&caller??)?;
            }
            Ok(tally)
        };
        let patience = warm_up + self.timed + LAST_ANSWER;
        tokio::time::timeout(patience, everyone).await.map_err(|_| "a call was not answered")?
    }

    /// One caller, who makes the next call as soon as the last is answered, and one at least. What ends in the timed span
    /// counts.
    async fn call_on(
        self,
        session: Arc<impl Session>,
        mut lots: Lots,
        from: Instant,
        until: Instant,
    ) -> Result<Tally, Fault> {
        let mut tally = Tally::new()?;
        loop {
            let user = self.users.draw(&mut lots);
            let began = now();
            let granted = session.decide(user).await?;
            let ended = now();
            if granted != self.scene.workload.is_granted() {
                return Err(if granted { "granted what is exhausted" } else { "refused what is there" }.into());
            }
            tally.decisions += 1;
            if ended >= until {
                return Ok(tally);
            }
            if ended >= from {
                tally.latencies.saturating_record(nanos(ended - began));
            }
            // Answers from memory never wait: without this a caller would not let the others have their turn.
            coop::consume_budget().await;
        }
    }
}

/// A contender whose type is forgotten, so that they fit in one list.
pub(super) trait Entrant: Send + Sync {
    fn name(&self) -> &'static str;
    fn enters(&self, scene: &Scene) -> bool;
    fn take<'a>(&'a self, turn: &'a Turn) -> Pin<Box<dyn Future<Output = Result<Tally, Fault>> + Send + 'a>>;
}

impl<C: Contender> Entrant for C {
    fn name(&self) -> &'static str {
        Contender::name(self)
    }

    fn enters(&self, scene: &Scene) -> bool {
        Contender::enters(self, scene)
    }

    fn take<'a>(&'a self, turn: &'a Turn) -> Pin<Box<dyn Future<Output = Result<Tally, Fault>> + Send + 'a>> {
        Box::pin(turn.take(self))
    }
}

/// What callers count.
#[derive(Debug)]
pub(super) struct Tally {
    /// How long each timed call took, in nanoseconds, to three digits.
    pub(super) latencies: Histogram<u64>,
    /// All calls, warm-up included: what the server counted is theirs.
    pub(super) decisions: u64,
    /// Processor time in the timed part.
    pub(super) spent: Option<Spent>,
}

impl Tally {
    fn new() -> Result<Self, Fault> {
        Ok(Self { latencies: Histogram::new_with_max(nanos(LAST_ANSWER), 3)?, decisions: 0, spent: None })
    }

    fn add(&mut self, other: &Self) -> Result<(), Fault> {
        self.decisions += other.decisions;
        Ok(self.latencies.add(&other.latencies)?)
    }
}

#[expect(clippy::disallowed_methods, reason = "how long an answer takes is what is measured; nothing is decided by it")]
fn now() -> Instant {
    Instant::now()
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Prepares the statements of all connections, and lets queues form; no longer than what is timed.
pub(super) const WARM_UP: Duration = Duration::from_millis(300);

/// How long the last answers may take before the turn is given up.
const LAST_ANSWER: Duration = Duration::from_mins(1);
