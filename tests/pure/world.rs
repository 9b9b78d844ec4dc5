//! A world in memory: the rows of a store, and the calls that change them.
//!
//! It does with a plan what a store does, and nothing else: find the rows, decide, write the changes.

use std::collections::BTreeMap;

use serde_json::json;
use tollgate::algebra::{Ask, Pool, State, Terms, Timestamp, TooDeep, Verdict};
use tollgate::plan::{Answer, Call, Change, Plan, Row};
use tollgate::{Balance, Charge, Denied, Error, Receipt, Request, Tokens};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct World {
    rows: BTreeMap<Row, State>,
}

impl World {
    /// A world with one row.
    pub(crate) fn holding(request: &Request, state: State) -> Self {
        let mut world = Self::default();
        world.put(request, state);
        world
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
    pub(crate) fn call(&mut self, call: Call, now: Timestamp) -> Result<Answer, Error> {
        self.batch([call], now).map(|mut answers| answers.remove(0))?
    }

    /// Several calls in one plan.
    pub(crate) fn batch(
        &mut self,
        calls: impl IntoIterator<Item = Call>,
        now: Timestamp,
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let plan = Plan::new(calls)?;
        let found: Vec<_> = plan.rows().iter().map(|row| self.rows.get(row).cloned()).collect();
        let outcome = plan.decide(&found, now);
        for Change { row, state, .. } in outcome.changes {
            self.rows.insert(plan.rows()[row].clone(), state);
        }
        Ok(outcome.answers)
    }

    /// What is left after a plain call that must be granted.
    pub(crate) fn granted(&mut self, request: Request, now: Timestamp) -> Tokens {
        match self.call(Call::consume([request]), now).unwrap() {
            Answer::Granted { remaining, .. } => remaining,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The refusal of a plain call that must be refused, and changes nothing.
    pub(crate) fn denied(&mut self, request: Request, now: Timestamp) -> Denied {
        let before = self.clone();
        match self.call(Call::consume([request]), now).unwrap() {
            Answer::Denied(denied) => {
                assert_eq!(*self, before, "a refusal changes nothing");
                denied
            }
            other => panic!("not denied: {other:?}"),
        }
    }

    /// What is left after a reservation that must be accepted, and when it is ready.
    pub(crate) fn reserved(&mut self, request: Request, now: Timestamp) -> (Tokens, Timestamp) {
        match self.call(Call::reserve([request]), now).unwrap() {
            Answer::Granted { remaining, ready_at, .. } => (remaining, ready_at),
            other => panic!("not granted: {other:?}"),
        }
    }

    /// The balance after a call that changes or looks at one row.
    pub(crate) fn balance(&mut self, call: Call, now: Timestamp) -> Balance {
        match self.call(call, now).unwrap() {
            Answer::Done(mut balances) => balances.remove(0),
            other => panic!("no balance: {other:?}"),
        }
    }

    /// Looking changes nothing, so this takes the world as it is.
    pub(crate) fn look(&self, request: Request, now: Timestamp) -> Balance {
        self.clone().balance(Call::look(request), now)
    }
}

fn row_of(request: &Request) -> Row {
    Plan::new([Call::look(request.clone())]).unwrap().rows()[0].clone()
}

/// The terms of the one row that a request asks.
pub(crate) fn terms_of(request: &Request) -> Terms {
    Terms::of(request.limit(), row_of(request).key())
}

/// Asks one row.
pub(crate) fn decide(terms: &Terms, row: Option<&State>, now: Timestamp, ask: Ask) -> Result<Verdict, TooDeep> {
    Pool::new(terms, &[row.cloned()], now).decide(ask)
}

/// What one row holds after a credit; `None` where nothing changes.
pub(crate) fn credit(terms: &Terms, row: Option<&State>, now: Timestamp, amount: Tokens) -> Option<State> {
    Pool::new(terms, &[row.cloned()], now).credit(amount).into_iter().next().map(|portion| portion.next)
}

/// What one row holds after a debit; `None` where nothing changes.
pub(crate) fn debit(
    terms: &Terms,
    row: Option<&State>,
    now: Timestamp,
    amount: Tokens,
) -> Result<Option<State>, TooDeep> {
    Pool::new(terms, &[row.cloned()], now)
        .debit(amount)
        .map(|portions| portions.into_iter().next().map(|portion| portion.next))
}

/// A receipt as it comes back from where it was stored.
pub(crate) fn receipt(charges: &[Charge]) -> Receipt {
    serde_json::from_value(json!({ "charges": charges })).unwrap()
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
