//! A world in memory: the rows of a store, and the calls that change them.
//!
//! It handles a plan as a store does, and nothing else: it finds the rows, decides, and writes the changes.

use std::cell::Cell;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::json;
use tollgate::algebra::{Account, Ask, State, Terms, Timestamp, TooDeep, Verdict};
use tollgate::plan::{
    Answer, AppliedOverride, CallId, CallWrite, Plan, RowId, RowWrite, SlowedRate, StoredCall, Under, Verb,
};
use tollgate::{Balance, Charge, Denied, Error, Grant, Key, Limit, Receipt, Request, Settlement, Tokens};

#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) rows: BTreeMap<RowId, State>,
    /// The stored calls.
    pub(crate) calls: BTreeMap<CallId, StoredCall>,
    /// The number of ids drawn so far.
    ids: u128,
}

/// Worlds are equal where calls cannot tell them apart; the drawn ids do not count.
impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        (&self.rows, &self.calls) == (&other.rows, &other.calls)
    }
}

impl World {
    /// A world with one row.
    pub(crate) fn holding(request: &Request, state: State) -> Self {
        let mut world = Self::default();
        world.put(request, state);
        world
    }

    /// A world with one row in which so much is left at an instant.
    pub(crate) fn left(request: &Request, balance: Tokens, ts: Timestamp) -> Self {
        Self::holding(request, left(request, balance, ts))
    }

    pub(crate) fn put_left(&mut self, request: &Request, balance: Tokens, ts: Timestamp) {
        self.put(request, left(request, balance, ts));
    }

    pub(crate) fn put(&mut self, request: &Request, state: State) {
        self.rows.insert(row_of(request), state);
    }

    pub(crate) fn state(&self, request: &Request) -> Option<State> {
        self.rows.get(&row_of(request)).cloned()
    }

    pub(crate) fn delete(&mut self, request: &Request) {
        self.rows.remove(&row_of(request));
    }

    /// One call in a plan of its own.
    pub(crate) fn call(&mut self, call: Verb, now: Timestamp) -> Result<Answer, Error> {
        self.batch([call], now).map(|mut answers| answers.remove(0))?
    }

    /// Several calls in one plan.
    pub(crate) fn batch(
        &mut self,
        calls: impl IntoIterator<Item = Verb>,
        now: Timestamp,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        self.batch_under(&|_, _| None, calls, now)
    }

    /// Several calls in one plan, under overrides.
    pub(crate) fn batch_under(
        &mut self,
        overrides: &dyn Fn(&Limit, &Key) -> Option<AppliedOverride>,
        calls: impl IntoIterator<Item = Verb>,
        now: Timestamp,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let ids = Cell::new(self.ids);
        let draw = || {
            ids.set(ids.get() + 1);
            ids.get()
        };
        let plan = Plan::under(calls, &Under { overrides: Some(overrides), draw: &draw, ..Under::NOTHING })?;
        self.ids = ids.get();
        let found: Vec<_> = plan.rows().iter().map(|row| self.rows.get(row).cloned()).collect();
        let known: Vec<_> = plan.names().iter().map(|name| self.calls.get(name).cloned()).collect();
        let outcome = plan.decide(&found, &known, now);
        for change in outcome.calls {
            let name = |name: usize| &plan.names()[name];
            match change {
                CallWrite::Insert { row, .. } => drop(self.calls.insert(row.name.clone(), row)),
                CallWrite::Use { name: used, .. } => {
                    let row = self.calls.get_mut(name(used)).unwrap();
                    (row.used, row.lapses_at) = (true, None);
                }
                CallWrite::Delete { name: gone, .. } => drop(self.calls.remove(name(gone))),
            }
        }
        for RowWrite { row, state } in outcome.changes {
            self.rows.insert(plan.rows()[row].clone(), state);
        }
        Ok(outcome.answers)
    }

    /// The receipt of a call that must be granted.
    pub(crate) fn taken(&mut self, call: Verb, now: Timestamp) -> Receipt {
        match self.call(call, now).unwrap() {
            Answer::Granted { grant: Grant { receipt, .. }, .. } => receipt,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The tokens that remain after a plain call that must be granted.
    pub(crate) fn granted(&mut self, request: Request, now: Timestamp) -> Tokens {
        match self.call(Verb::consume(request), now).unwrap() {
            Answer::Granted { grant: Grant { remaining, .. }, .. } => remaining,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The refusal of a plain call that must be refused, and changes nothing.
    pub(crate) fn denied(&mut self, request: Request, now: Timestamp) -> Denied {
        let before = self.clone();
        match self.call(Verb::consume(request), now).unwrap() {
            Answer::Denied(denied) => {
                assert_eq!(*self, before, "a refusal changes nothing");
                denied
            }
            other => panic!("not denied: {other:?}"),
        }
    }

    /// The tokens that remain after a reservation that must be accepted, and when it is ready.
    pub(crate) fn reserved(&mut self, request: Request, now: Timestamp) -> (Tokens, Timestamp) {
        match self.call(Verb::reserve(request), now).unwrap() {
            Answer::Granted { grant: Grant { remaining, .. }, ready_at, .. } => (remaining, ready_at),
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The balance after a call that changes or looks at one row.
    pub(crate) fn balance(&mut self, call: Verb, now: Timestamp) -> Balance {
        match self.call(call, now).unwrap() {
            Answer::Done(balance) => balance,
            other => panic!("no balance: {other:?}"),
        }
    }

    /// The outcome of a call that settles.
    pub(crate) fn settled(&mut self, call: Verb, now: Timestamp) -> Result<Settlement, Error> {
        match self.call(call, now)? {
            Answer::Settled(settlement) => Ok(settlement),
            other => panic!("not settled: {other:?}"),
        }
    }

    /// Deletes the rows that are full, as a sweeper does.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.rows.retain(|_, row| row.full_at < row.ts || row.full_at > now);
    }

    /// The stored calls that lapse.
    pub(crate) fn lapsing(&self) -> Vec<StoredCall> {
        self.calls.values().filter(|row| row.lapses_at.is_some()).cloned().collect()
    }

    /// Settles the calls that have lapsed, as a sweeper does.
    pub(crate) fn reap(&mut self, now: Timestamp) {
        for row in self.lapsing() {
            self.settled(Verb::Lapse(row), now).unwrap();
        }
    }

    /// Looking changes nothing, so this takes the world as it is.
    pub(crate) fn look(&self, request: Request, now: Timestamp) -> Balance {
        self.clone().balance(Verb::Look(request), now)
    }
}

fn row_of(request: &Request) -> RowId {
    Plan::new([Verb::Look(request.clone())]).unwrap().rows()[0].clone()
}

/// The terms of the one row that a request asks.
pub(crate) fn terms_of(request: &Request) -> Terms {
    Terms::of(request.limit(), row_of(request).key())
}

/// A row in which so much is left at an instant; it says nothing of when it is full.
pub(crate) fn left(request: &Request, balance: Tokens, ts: Timestamp) -> State {
    let terms = terms_of(request);
    let top = terms.balance(&terms.full(ts), ts).micros();
    State { list: terms.full(ts).list, ..State::new(micros(balance.micros().saturating_sub(top)), ts) }
}

/// A row of which so many tokens are used, full at an instant.
pub(crate) fn used(whole: i64, ts: Timestamp, full_at: Timestamp) -> State {
    State::new(tokens(-whole), ts).full_at(full_at)
}

/// Asks one row.
pub(crate) fn decide(terms: &Terms, row: Option<&State>, now: Timestamp, ask: Ask) -> Result<Verdict, TooDeep> {
    Account::new(terms, &[row.cloned()], now).decide(ask)
}

/// One row after a credit; `None` where nothing changes.
pub(crate) fn credit(terms: &Terms, row: Option<&State>, now: Timestamp, amount: Tokens) -> Option<State> {
    Account::new(terms, &[row.cloned()], now).credit(amount).into_iter().next().map(|portion| portion.next)
}

/// One row after a debit; `None` where nothing changes.
pub(crate) fn debit(
    terms: &Terms,
    row: Option<&State>,
    now: Timestamp,
    amount: Tokens,
) -> Result<Option<State>, TooDeep> {
    Account::new(terms, &[row.cloned()], now)
        .debit(amount)
        .map(|portions| portions.into_iter().next().map(|portion| portion.next))
}

/// A receipt as it comes back from where it was stored.
pub(crate) fn receipt(charges: &[Charge]) -> Receipt {
    serde_json::from_value(json!({ "charges": charges })).unwrap()
}

/// When something happens, if ever.
pub(crate) fn due(at: Option<DateTime<Utc>>) -> Timestamp {
    at.map_or(Timestamp::MAX, Into::into)
}

pub(crate) fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(crate) fn ms(millis: i64) -> Timestamp {
    at(millis * 1_000)
}

pub(crate) fn sec(seconds: i64) -> Timestamp {
    at(seconds * 1_000_000)
}

/// Whole tokens, which may be owed.
pub(crate) fn tokens(whole: i64) -> Tokens {
    micros(whole * 1_000_000)
}

pub(crate) fn micros(micros: i64) -> Tokens {
    Tokens::from_micros(micros)
}

/// A rate if the limit is paused now, until an instant: it stands still until then. `tollgate.pause` computes the same.
pub(crate) fn paused(slowed: SlowedRate, now: Timestamp, until: Timestamp) -> SlowedRate {
    let SlowedRate { starts_at, ends_at, .. } = slowed;
    let Some(share) = slowed.share_at(now).filter(|_| starts_at < until) else { return slowed };
    // Shares grow at whole seconds, so the end is a second later.
    let later = if starts_at < now { 1_000_000 } else { 0 };
    let still = until.micros() - starts_at.max(now).micros();
    SlowedRate { share, starts_at: until, ends_at: at(ends_at.micros() + still + later), ..slowed }
}
