use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, SlowedRate};
use tollgate::{Error, Grant, Key, Tokens};
use tollgate_simulation::{Arrival, Ended, EndedBy, Look, RowMap, Rule, Simulation, Trial};
use wasm_bindgen::prelude::*;

use crate::fault::{self, Fault};
use crate::scene::Calls;
use crate::window::Window;

/// The calls of a scene, and a trial of each of its limits.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Recording {
    calls: Rc<Calls>,
    trials: VecDeque<TrialRecord>,
}

/// The outcome of each call under one limit, for the calls that have been made. All instants are since the start.
#[wasm_bindgen]
#[derive(Debug)]
pub struct TrialRecord {
    calls: Rc<Calls>,
    /// The limit whose balance is shown.
    rule: Rule,
    simulation: Simulation,
    watch: Watch,
    answers: Vec<u8>,
    waits: Vec<f64>,
    balances: Vec<f64>,
    /// How many numbers of the levels were noted by each call.
    seen: Vec<u32>,
    ends: Vec<f64>,
    shares: Vec<f64>,
}

/// Follows the balance of one row.
#[derive(Debug)]
struct Watch {
    key: Key,
    look: Look,
    start: Timestamp,
    /// How far apart the balance is noted while nobody calls, and when next.
    step: Duration,
    next: Timestamp,
    /// The balance that was noted last.
    balance: Tokens,
    levels: Vec<f64>,
    window: Window,
}

impl Recording {
    pub(crate) fn of(trials: Vec<Trial>, calls: Calls) -> Result<Self, Error> {
        let calls = Rc::new(calls);
        let trials = trials.into_iter().map(|trial| TrialRecord::of(trial, Rc::clone(&calls)));
        Ok(Self { trials: trials.collect::<Result<_, _>>()?, calls })
    }
}

#[wasm_bindgen]
impl Recording {
    /// How long it is.
    #[must_use]
    pub fn span(&self) -> f64 {
        since(self.calls.start, self.calls.end)
    }

    /// When each call is made.
    #[must_use]
    pub fn instants(&self) -> Vec<f64> {
        self.calls.made.iter().map(|call| since(self.calls.start, call.at)).collect()
    }

    /// The cost of each call.
    #[must_use]
    pub fn costs(&self) -> Vec<f64> {
        self.calls.made.iter().map(|call| about(call.cost)).collect()
    }

    /// The key of each call's caller, with a NUL, which no key has, between two keys. Many texts would take long over
    /// the border to JavaScript.
    #[must_use]
    pub fn keys(&self) -> String {
        self.calls.made.iter().map(|call| call.key.as_str()).collect::<Vec<_>>().join("\0")
    }

    /// The trial of the first limit, then that of the next.
    #[wasm_bindgen(js_name = nextTrial)]
    pub fn next_trial(&mut self) -> Option<TrialRecord> {
        self.trials.pop_front()
    }
}

#[wasm_bindgen]
impl TrialRecord {
    /// Goes on by so many steps: calls that are made, and ends of calls. Returns whether the trial is at its end; then
    /// do not call this again.
    ///
    /// # Errors
    ///
    /// A fault of the scene, as a text.
    pub fn advance(&mut self, steps: usize) -> Result<bool, String> {
        self.go_on(steps).map_err(|error| fault::text(&[Fault::of_scene(&error)]))
    }

    /// For each call 0 if it was granted, 1 if it was refused, 2 if no wait lets it through, 3 if it was granted and
    /// failed at the service.
    #[must_use]
    pub fn answers(&self) -> Vec<u8> {
        self.answers.clone()
    }

    /// The wait that each call was answered with, -1 for ever.
    #[must_use]
    pub fn waits(&self) -> Vec<f64> {
        self.waits.clone()
    }

    /// The balance of the caller after each call.
    #[must_use]
    pub fn balances(&self) -> Vec<f64> {
        self.balances.clone()
    }

    /// How many numbers of [`levels`](Self::levels) tell of the time up to each call.
    #[must_use]
    pub fn seen(&self) -> Vec<u32> {
        self.seen.clone()
    }

    /// Ends of calls, five numbers each:
    ///
    /// - the instant of the end;
    /// - the number of the call, from 0;
    /// - 0 if its work ended, 1 if it lapsed, 2 if its lease ended;
    /// - how many calls were made before;
    /// - how many numbers of [`levels`](Self::levels) tell of the time up to it.
    #[must_use]
    pub fn ends(&self) -> Vec<f64> {
        self.ends.clone()
    }

    /// The share of its rate that each call left to the limit.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        self.shares.clone()
    }

    /// The balance of the watched caller: instant and balance, in turn.
    #[must_use]
    pub fn levels(&self) -> Vec<f64> {
        self.watch.levels.clone()
    }

    /// The amount that [`bound`](Self::bound) bounds, for the watched caller: instant and amount, in turn.
    #[must_use]
    pub fn used(&self) -> Vec<f64> {
        self.watch.window.points.clone()
    }

    /// The bound that is never crossed; infinite, if reservations are unbounded.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "it is drawn")]
    pub fn bound(&self) -> f64 {
        if self.rule.limit.max_reserved == Tokens::MAX { f64::INFINITY } else { self.watch.window.bound as f64 }
    }
}

impl TrialRecord {
    fn of(trial: Trial, calls: Rc<Calls>) -> Result<Self, Error> {
        let rule = trial.rules.last().expect("a trial of a scene has a limit").clone();
        let key = calls.watched.clone();
        let span = u64::try_from(calls.end.micros() - calls.start.micros()).unwrap_or(0);
        let watch = Watch {
            look: rule.look(&key)?,
            key,
            start: calls.start,
            step: Duration::from_micros((span / NOTES).max(1)),
            next: calls.start,
            balance: Tokens::ZERO,
            levels: Vec::new(),
            window: Window::of(&rule.limit, trial.funds, calls.start),
        };
        let simulation = Simulation::new(trial);
        let (answers, waits, balances) = (Vec::new(), Vec::new(), Vec::new());
        let (seen, ends, shares) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { calls, rule, simulation, watch, answers, waits, balances, seen, ends, shares })
    }

    fn go_on(&mut self, steps: usize) -> Result<bool, Error> {
        let Calls { made, end, .. } = &*Rc::clone(&self.calls);
        for _ in 0..steps {
            let call = made.get(self.answers.len());
            let watch = &mut self.watch;
            // Ends of the watched caller are seen at their instants, no matter who calls next.
            let show = |rows: &RowMap, at, granted_at| watch.see(rows, at, granted_at);
            let ended = self.simulation.end_next(call.map_or(*end, |call| call.at), show)?;
            match (ended, call) {
                (Some(ended), _) => self.end(ended),
                (None, Some(call)) => self.call(call)?,
                (None, None) => {
                    self.watch.see(self.simulation.rows(), *end, None);
                    self.watch.window.point(end.micros());
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn call(&mut self, call: &Arrival) -> Result<(), Error> {
        let is_watched = self.rule.is_global || self.watch.key == call.key;
        let (watch, failed) = (&mut self.watch, self.simulation.failed());
        let answer = self.simulation.call(call, |rows, at, granted_at| {
            if is_watched {
                watch.see(rows, at, granted_at);
            }
        })?;
        let (answer, wait, balance) = match answer {
            Some(Answer::Granted { grant: Grant { remaining, receipt, .. }, ready_at, .. }) => {
                // Where a call asks its limits in turn, an earlier one may have granted it.
                let is_charged = receipt.charges.last().is_some_and(|charge| charge.limit() == self.rule.limit.name());
                if is_watched && is_charged {
                    self.watch.window.granted(call.at, call.cost);
                }
                let is_failed = self.simulation.failed() > failed;
                (if is_failed { FAILED } else { GRANTED }, since(call.at, ready_at).max(0.0), remaining)
            }
            Some(Answer::Denied(denied)) => {
                let wait = denied.retry_at.map_or(NEVER, |retry_at| since(call.at, retry_at.into()));
                (REFUSED, wait, denied.remaining)
            }
            Some(Answer::Done(_) | Answer::Settled(_)) => unreachable!("a call that takes is granted or denied"),
            None => (IMPOSSIBLE, NEVER, Tokens::ZERO),
        };
        self.answers.push(answer);
        self.waits.push(wait);
        self.balances.push(about(balance));
        self.shares
            .push(f64::from(self.simulation.rows().share(&self.rule.limit, call.at)) / f64::from(SlowedRate::WHOLE));
        self.seen.push(u32::try_from(self.watch.levels.len()).expect("a browser holds less"));
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "there are not so many calls")]
    fn end(&mut self, Ended { at, call, by }: Ended) {
        let by = match by {
            EndedBy::Work => 0.0,
            EndedBy::Lapse => 1.0,
            EndedBy::Lease => 2.0,
        };
        let [made, seen] = [self.answers.len(), self.watch.levels.len()].map(|count| count as f64);
        self.ends.extend([since(self.calls.start, at), (call - 1) as f64, by, made, seen]);
    }
}

impl Watch {
    /// Goes on to an instant, and notes the balance on the way and there. The amount by which it rises when a call ends
    /// came back from that call.
    fn see(&mut self, rows: &RowMap, to: Timestamp, granted_at: Option<Timestamp>) {
        while self.next < to {
            self.note(rows, self.next);
            self.next = self.next.plus(self.step);
        }
        let before = self.balance;
        self.note(rows, to);
        if let Some(granted_at) = granted_at.filter(|_| self.balance > before) {
            self.window.returned(granted_at, to, Tokens::from_micros(self.balance.micros() - before.micros()));
        }
    }

    fn note(&mut self, rows: &RowMap, at: Timestamp) {
        let balance = rows.balance(&self.look, at);
        self.balance = balance;
        self.window.pass(at);
        self.window.balance(at, balance);
        self.levels.extend([since(self.start, at), about(balance)]);
    }
}

fn since(start: Timestamp, at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 years")]
    let micros = (at.micros() - start.micros()) as f64;
    micros
}

#[expect(clippy::cast_precision_loss, reason = "exact for nine thousand million tokens")]
fn about(tokens: Tokens) -> f64 {
    tokens.micros() as f64
}

const GRANTED: u8 = 0;
const REFUSED: u8 = 1;
const IMPOSSIBLE: u8 = 2;
const FAILED: u8 = 3;
const NEVER: f64 = -1.0;

/// How often a balance is noted while nobody calls: more often than a plot has pixels.
const NOTES: u64 = 600;

#[cfg(test)]
mod tests {
    use crate::simulate;

    #[test]
    fn work_that_ends_before_another_caller_comes_is_seen_to_end_then() {
        let words = ["limit", "renders", "kind", "concurrency", "rate", "1", "lease", "1m", "work", "2s"];
        let scene = [&words[..], &["csv", "time,key\n0,ada\n3,bob\n4,bob\n", ""]].concat().join("\0");
        let mut trial = simulate(&scene).unwrap().next_trial().unwrap();
        assert_eq!([trial.advance(1), trial.advance(4)], [Ok(false), Ok(true)]);
        let levels = trial.levels();
        let is_free_at = |instant: f64| levels.chunks(2).rfind(|level| level[0] <= instant).unwrap()[1] > 0.0;
        assert_eq!([1e6, 1.99e6, 2.1e6].map(is_free_at), [false, false, true]);
    }
}
