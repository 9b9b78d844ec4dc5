use std::num::NonZeroU64;
use std::time::Duration;

use chrono::Utc;
use tollgate::algebra::{Terms, Timestamp};
use tollgate::plan::{Plan, Verb};
use tollgate::{Call, Charge, Error, Key, Limit, LimitKind, Receipt, Request, SlowDown, Tokens, calendar, first_of};

use crate::arrival::Arrival;
use crate::rows::Look;
use crate::service::Service;

/// A setting to try on the calls.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The limits that each call asks.
    pub rules: Vec<Rule>,
    /// How a call asks several limits.
    pub asking: Asking,
    /// Whether a call that can be granted later is granted for later.
    pub reserve: bool,
    /// How long a call works once its tokens are ready. Then it is settled, and releases what it holds of concurrency
    /// limits. If not given, nobody settles, and a lease runs out.
    pub work: Option<Duration>,
    /// The tokens that a call has used when its work ends, at which it is settled; its cost, if not given.
    pub used: Option<Tokens>,
    /// The n for which the client of every n-th call dies, so that its work never ends; no client dies, if not given.
    pub dies: Option<NonZeroU64>,
    /// How long after its tokens are ready a call that nobody has settled gives them back; never, if not given.
    pub lapses_after: Option<Duration>,
    /// The balance of a wallet when its first caller comes: nothing else fills it.
    pub funds: Tokens,
    /// The service that granted calls go on to, if they do: it takes as many tokens as they cost. Not for reservations.
    pub service: Option<Service>,
}

/// How a call asks several limits.
#[derive(Clone, Copy, Debug, Default)]
pub enum Asking {
    /// All of them: it takes from all or none.
    #[default]
    All,
    /// All of them, with guaranteed shares: a call that is refused takes only from the limits that all callers share,
    /// if so many tokens remain there. Not for reservations.
    Lending(Tokens),
    /// One after another: the call takes from the first that grants. Not for reservations.
    InTurn,
}

/// A limit, and the row of it that a call asks.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The limit.
    pub limit: Limit,
    /// Whether all callers share one row.
    pub is_global: bool,
    /// How a call that fails at the service slows it down for all callers; its rate stays, if not given.
    pub follows: Option<SlowDown>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended {
    /// When it ended.
    pub at: Timestamp,
    /// Which call it was, from 1.
    pub call: u128,
    /// The event that ended it.
    pub by: EndedBy,
}

/// An event that ends a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EndedBy {
    /// Its work is done: it is settled, and releases its leases.
    Work,
    /// Nobody settled it in time: what it took comes back.
    Lapse,
    /// Nobody released its lease in time. Its other tokens may still lapse.
    Lease,
}

impl Trial {
    /// The call of an arrival.
    pub(crate) fn call(&self, call: &Arrival) -> Verb {
        let request = |rule: &Rule| by_month(rule.request(&call.key), call.at).cost(call.cost);
        let requests = self.rules.iter().map(request);
        match self.asking {
            _ if self.reserve => Verb::reserve(requests.collect::<Call>()),
            Asking::All => Verb::consume(requests.collect::<Call>()),
            Asking::Lending(kept) => {
                let shared = self.rules.iter().filter(|rule| rule.is_global);
                let lent = shared.map(|rule| request(rule).leaving(kept)).collect();
                Verb::consume(first_of([requests.collect::<Call>(), lent]))
            }
            Asking::InTurn => Verb::consume(first_of(requests)),
        }
    }

    /// How the granted call with this number ends: first, whether its lease runs out by itself, and then, whether its
    /// work ends or the rest of it lapses. `None` where that does not happen.
    pub(crate) fn endings(
        &self,
        number: u128,
        receipt: &Receipt,
        ready_at: Timestamp,
    ) -> [Option<(Ended, Option<Verb>)>; 2] {
        let charges: Vec<_> =
            receipt.charges.iter().filter(|charge| charge.lease_ends_at().is_none()).cloned().collect();
        let leases_end = receipt.charges.iter().filter_map(Charge::lease_ends_at).min();
        let lapses_at = self.lapses_after.filter(|_| !charges.is_empty()).map(|span| ready_at.plus(span));
        let dies = self.dies.is_some_and(|every| number.is_multiple_of(every.get().into()));
        let holds = |at: Timestamp| leases_end.is_some_and(|end| at < end.into());
        // A receipt whose lease has run out settles nothing, but that of a call that lapses settles the rest of it.
        let in_time = |done_at: &Timestamp| match lapses_at {
            Some(lapses_at) => *done_at <= lapses_at,
            None => leases_end.is_none() || holds(*done_at),
        };
        let done_at = self.work.filter(|_| !dies).map(|work| ready_at.plus(work)).filter(in_time);
        let lease_over =
            leases_end.filter(|_| !done_at.is_some_and(holds)).map(|end| (end.into(), EndedBy::Lease, None));
        let ending = match (done_at, self.used) {
            (Some(done_at), Some(used)) => {
                let left = if holds(done_at) { receipt.clone() } else { charges.into() };
                Some((done_at, EndedBy::Work, Some(Verb::Settle(left, used))))
            }
            (Some(done_at), None) => {
                holds(done_at).then(|| (done_at, EndedBy::Work, Some(Verb::Release(receipt.clone()))))
            }
            // A lapse is a settlement at nothing, at its instant and without the leases.
            (None, _) => {
                lapses_at.map(|lapses_at| (lapses_at, EndedBy::Lapse, Some(Verb::Settle(charges.into(), Tokens::ZERO))))
            }
        };
        [lease_over, ending].map(|end| end.map(|(at, by, call)| (Ended { at, call: number, by }, call)))
    }
}

/// The request, by the month of UTC if its limit is a billing one: a trace has no periods of its own.
fn by_month(request: Request, at: Timestamp) -> Request {
    if request.limit().kind != LimitKind::Billing {
        return request;
    }
    let (start, end) = calendar::month(&Utc, 1, at.into());
    request.period(start, end)
}

impl Rule {
    /// The request of a caller.
    pub fn request(&self, key: &Key) -> Request {
        if self.is_global || key.is_global() { self.limit.global() } else { self.limit.key(key.clone()) }
    }

    /// A look at a caller's balance.
    ///
    /// # Errors
    ///
    /// Those of [`Plan::new`].
    pub fn look(&self, key: &Key) -> Result<Look, Error> {
        let plan = Plan::new([Verb::Look(self.request(key))])?;
        let (limit, key) = (self.limit.clone(), if self.is_global { Key::GLOBAL } else { key.clone() });
        Ok(Look { plan, terms: Terms::of(&limit, &key), limit, key })
    }
}
