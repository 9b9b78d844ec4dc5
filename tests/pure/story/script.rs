//! Scripts: plain calls at plain instants, with their answers.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_traits::Zero;
use tollgate::algebra::{State, Timestamp};
use tollgate::plan::{Answer, Verb};
use tollgate::{Charge, Error, Grant, Limit, Receipt, Tokens};

use super::call;
use crate::world::{World, micros, receipt};

/// A line of a script: a plain call at a plain instant.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Its line in the story, for the lines that refer to it.
    pub(crate) id: usize,
    pub(crate) now: Timestamp,
    pub(crate) step: Step,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Take {
        cost: Tokens,
        reserving: bool,
    },
    Credit(Tokens),
    Debit(Tokens),
    Reset,
    Look,
    /// Cancels the charge of a line.
    Cancel(usize),
    /// Settles the charge of a line.
    Settle(usize, Tokens),
}

/// The outcome of a line.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: usize,
    pub(crate) now: Timestamp,
    pub(crate) step: Step,
    pub(crate) before: Option<State>,
    pub(crate) after: Option<State>,
    /// The balance before, and after.
    pub(crate) balances: [Tokens; 2],
    pub(crate) answer: Result<Answer, Error>,
    /// The charge of the receipt that was settled or cancelled.
    pub(crate) paid: Option<Charge>,
}

impl Event {
    pub(crate) fn line(&self) -> Line {
        Line { id: self.id, now: self.now, step: self.step.clone() }
    }

    pub(crate) fn asked(&self) -> Option<(Tokens, bool)> {
        match self.step {
            Step::Take { cost, reserving } => Some((cost, reserving)),
            _ => None,
        }
    }

    /// The cost of a call that was granted.
    pub(crate) fn granted(&self) -> Option<Tokens> {
        self.asked().filter(|_| matches!(self.answer, Ok(Answer::Granted { .. }))).map(|(cost, _)| cost)
    }

    /// Whether a receipt was used: the row is written as it was read, however much has come back to it meanwhile.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.step, Step::Cancel(_) | Step::Settle(..))
    }

    /// The tokens that a receipt handed back, or that other moves added to the balance.
    pub(crate) fn given_back(&self) -> BigInt {
        if self.asked().is_some() {
            return BigInt::zero();
        }
        if self.settles() {
            let given = if self.before == self.after { Tokens::ZERO } else { self.change().max(Tokens::ZERO) };
            return given.micros().into();
        }
        let [before, after] = self.balances.map(|balance| BigInt::from(balance.micros()));
        (after - before).max(BigInt::zero())
    }

    /// The tokens that the step adds to a balance, before that is cut to the capacity.
    pub(crate) fn change(&self) -> Tokens {
        let minus = |amount: Tokens| micros(-amount.micros());
        let paid = || self.paid.as_ref().map_or(Tokens::ZERO, |charge| charge.cost);
        match self.step {
            Step::Take { cost, .. } | Step::Debit(cost) => minus(cost),
            Step::Credit(amount) => amount,
            Step::Settle(_, actual) => micros(paid().micros() - actual.micros()),
            Step::Cancel(_) => paid(),
            Step::Reset | Step::Look => Tokens::ZERO,
        }
    }
}

pub(crate) struct Told {
    pub(crate) events: Vec<Event>,
    pub(crate) world: World,
}

impl Told {
    pub(crate) fn script(&self) -> Vec<Line> {
        self.events.iter().map(Event::line).collect()
    }

    /// Answers have no equality of their own; their debug texts show all that they hold.
    pub(crate) fn answers(&self) -> Vec<String> {
        self.events.iter().map(|event| format!("{:?}", event.answer)).collect()
    }
}

/// A world that plays one line after another over the limit's global row.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) charges: BTreeMap<usize, Charge>,
}

impl Stage {
    pub(crate) fn play(&mut self, limit: &Limit, line: Line) -> Event {
        let Line { id, now, step } = line;
        let request = limit.global();
        let paid = match step {
            Step::Cancel(taken) | Step::Settle(taken, _) => self.charges.get(&taken).cloned(),
            _ => None,
        };
        let call = match &step {
            Step::Take { cost, reserving } => call(*reserving, [request.clone().cost(*cost)]),
            Step::Credit(amount) => Verb::credit(request.clone().cost(*amount)),
            Step::Debit(amount) => Verb::debit(request.clone().cost(*amount)),
            Step::Reset => Verb::Reset(request.clone()),
            Step::Look => Verb::Look(request.clone()),
            Step::Cancel(_) | Step::Settle(..) if paid.is_none() => Verb::Look(request.clone()),
            Step::Cancel(_) => Verb::Cancel(receipt(paid.as_slice())),
            Step::Settle(_, actual) => Verb::Settle(receipt(paid.as_slice()), *actual),
        };
        let (before, held) = (self.world.state(&request), self.world.look(request.clone(), now).remaining);
        let answer = self.world.call(call, now);
        if let (Step::Cancel(taken) | Step::Settle(taken, _), Ok(_)) = (&step, &answer) {
            self.charges.remove(taken); // A receipt is used up, unless it failed.
        }
        if let Ok(Answer::Granted { grant: Grant { receipt: Receipt { charges, .. }, .. }, .. }) = &answer {
            self.charges.insert(id, charges[0].clone());
        }
        let (after, holds) = (self.world.state(&request), self.world.look(request, now).remaining);
        Event { id, now, step, before, after, balances: [held, holds], answer, paid }
    }
}
