use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::{Answer, Call, Plan};
use tollgate::{Error, Key, Tokens};
use tollgate_simulation::{Arrival, RowMap, Simulation};
use wasm_bindgen::prelude::*;

use crate::scene::{Calls, Setting};
use crate::window::Window;

/// What became of each call of a scene.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Recording {
    calls: Calls,
    trials: Vec<TrialRecord>,
}

/// What became of each call under one limit. All instants are since the start.
#[wasm_bindgen]
#[derive(Clone, Debug)]
pub struct TrialRecord {
    answers: Vec<u8>,
    waits: Vec<f64>,
    balances: Vec<f64>,
    levels: Vec<f64>,
    used: Vec<f64>,
    bound: f64,
    figures: Figures,
}

/// What a trial comes to. Spans are in microseconds.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Calls.
    pub calls: u32,
    /// Those that were granted.
    pub granted: u32,
    /// Those that were refused.
    pub refused: u32,
    /// Those that no wait lets through.
    pub impossible: u32,
    /// Granted calls that may spend only later.
    pub waited: u32,
    /// The longest of these waits.
    pub worst_wait: f64,
    /// The longest that a refusal told somebody to wait.
    pub worst_retry_after: f64,
}

impl Recording {
    pub(crate) fn of(settings: &[Setting], calls: Calls) -> Result<Self, Error> {
        let trials = settings.iter().map(|setting| Recorder::new(setting, &calls)?.run());
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

    /// When each call was made.
    #[must_use]
    pub fn instants(&self) -> Vec<f64> {
        self.calls.made.iter().map(|call| since(self.calls.start, call.at)).collect()
    }

    /// What each call cost.
    #[must_use]
    pub fn costs(&self) -> Vec<f64> {
        self.calls.made.iter().map(|call| about(call.cost)).collect()
    }

    /// Who made each call.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.calls.made.iter().map(|call| call.key.as_str().to_owned()).collect()
    }

    /// What became of the calls under one limit.
    #[must_use]
    pub fn trial(&self, place: usize) -> Option<TrialRecord> {
        self.trials.get(place).cloned()
    }
}

#[wasm_bindgen]
impl TrialRecord {
    /// For each call 0 if it was granted, 1 if it was refused, 2 if no wait lets it through.
    #[must_use]
    pub fn answers(&self) -> Vec<u8> {
        self.answers.clone()
    }

    /// For each call how long it was told to wait, -1 for ever.
    #[must_use]
    pub fn waits(&self) -> Vec<f64> {
        self.waits.clone()
    }

    /// The balance of the caller after each call.
    #[must_use]
    pub fn balances(&self) -> Vec<f64> {
        self.balances.clone()
    }

    /// The balance of the first caller: instant and balance, in turn.
    #[must_use]
    pub fn levels(&self) -> Vec<f64> {
        self.levels.clone()
    }

    /// What the bound bounds, of the first caller: instant and amount, in turn.
    #[must_use]
    pub fn used(&self) -> Vec<f64> {
        self.used.clone()
    }

    /// What is never crossed.
    #[must_use]
    pub fn bound(&self) -> f64 {
        self.bound
    }

    /// What the trial comes to.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures
    }
}

/// Makes the record of a trial.
struct Recorder<'t> {
    setting: &'t Setting,
    calls: &'t Calls,
    simulation: Simulation<'t>,
    watch: Watch,
    answers: Vec<u8>,
    waits: Vec<f64>,
    balances: Vec<f64>,
    figures: Figures,
}

/// Follows the balance of one row.
struct Watch {
    look: Plan,
    start: Timestamp,
    /// How far apart the balance is noted while nobody calls, and when next.
    step: Duration,
    next: Timestamp,
    levels: Vec<f64>,
    window: Window,
}

impl<'t> Recorder<'t> {
    fn new(setting: &'t Setting, calls: &'t Calls) -> Result<Self, Error> {
        let rule = setting.watched();
        let first = calls.made.first().map_or(&Key::GLOBAL, |first| &first.key);
        let span = u64::try_from(calls.end.micros() - calls.start.micros()).unwrap_or(0);
        let watch = Watch {
            look: Plan::new([Call::look(rule.request(first))])?,
            start: calls.start,
            step: Duration::from_micros((span / NOTES).max(1)),
            next: calls.start,
            levels: Vec::new(),
            window: Window::of(&rule.limit, setting.funds),
        };
        let simulation = Simulation::new(&setting.trial).lending_above(setting.kept);
        let (answers, waits, balances) = (Vec::new(), Vec::new(), Vec::new());
        let figures = Figures::default();
        Ok(Self { setting, calls, simulation, watch, answers, waits, balances, figures })
    }

    fn run(mut self) -> Result<TrialRecord, Error> {
        self.watch.window.point(self.calls.start.micros());
        for call in &self.calls.made {
            self.call(call)?;
        }
        let end = self.calls.end;
        let watch = &mut self.watch;
        self.simulation.release(end, |rows, at| watch.see(rows, at))?;
        self.watch.see(self.simulation.rows(), end)?;
        self.watch.window.point(end.micros());
        let Self { answers, waits, balances, figures, watch: Watch { levels, mut window, start, .. }, .. } = self;
        for point in window.points.chunks_mut(2) {
            point[0] -= instant(start);
        }
        #[expect(clippy::cast_precision_loss, reason = "it is drawn")]
        let bound = window.bound as f64;
        Ok(TrialRecord { answers, waits, balances, levels, used: window.points, bound, figures })
    }

    fn call(&mut self, call: &'t Arrival) -> Result<(), Error> {
        let rule = self.setting.watched();
        if self.setting.funds > Tokens::ZERO
            && !self.simulation.rows().has(&Plan::new([Call::look(rule.request(&call.key))])?)
        {
            self.simulation.credit(&call.key, self.setting.funds, call.at)?;
        }
        let is_watched = rule.is_global || self.calls.made.first().is_some_and(|first| first.key == call.key);
        let watch = &mut self.watch;
        let answer = self.simulation.call(call, |rows, at| if is_watched { watch.see(rows, at) } else { Ok(()) })?;
        self.figures.calls += 1;
        let (answer, wait, balance) = match answer {
            Some(Answer::Granted { ready_at, remaining, .. }) => {
                let wait = since(call.at, ready_at).max(0.0);
                self.figures.granted += 1;
                self.figures.waited += u32::from(wait > 0.0);
                self.figures.worst_wait = self.figures.worst_wait.max(wait);
                if is_watched {
                    self.watch.window.granted(call.at, call.cost);
                }
                (GRANTED, wait, remaining)
            }
            Some(Answer::Denied(denied)) => {
                let wait = denied.retry_at.map_or(NEVER, |retry_at| since(call.at, retry_at.into()));
                self.figures.refused += 1;
                self.figures.worst_retry_after = self.figures.worst_retry_after.max(wait);
                (REFUSED, wait, denied.remaining)
            }
            Some(Answer::Done(_) | Answer::Settled(_)) => unreachable!("a call that takes is granted or denied"),
            None => {
                self.figures.impossible += 1;
                (IMPOSSIBLE, NEVER, Tokens::ZERO)
            }
        };
        self.answers.push(answer);
        self.waits.push(wait);
        self.balances.push(about(balance));
        Ok(())
    }
}

impl Watch {
    /// Goes on to an instant, and notes the balance on the way and there.
    fn see(&mut self, rows: &RowMap, to: Timestamp) -> Result<(), Error> {
        while self.next < to {
            self.note(rows, self.next)?;
            self.next = self.next.plus(self.step);
        }
        self.note(rows, to)
    }

    fn note(&mut self, rows: &RowMap, at: Timestamp) -> Result<(), Error> {
        let balance = rows.look(&self.look, at)?;
        self.window.pass(at);
        self.window.balance(at, balance);
        self.levels.extend([since(self.start, at), about(balance)]);
        Ok(())
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

#[expect(clippy::cast_precision_loss, reason = "exact until the year 2255")]
fn instant(at: Timestamp) -> f64 {
    at.micros() as f64
}

const GRANTED: u8 = 0;
const REFUSED: u8 = 1;
const IMPOSSIBLE: u8 = 2;
const NEVER: f64 = -1.0;

/// So often a balance is noted while nobody calls: more than a plot has pixels.
const NOTES: u64 = 600;
