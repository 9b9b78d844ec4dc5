use super::Planned;
use super::answer::Answer;
use super::call::CheckedCall;
use super::item::{Alteration, Item, Target};
use crate::algebra::{Ask, Hold, Pool, Portion, Settled, State, Terms, Timestamp, TooDeep, Verdict};
use crate::balance::Balance;
use crate::decision::{Denied, DeniedBy, Source};
use crate::error::Error;
use crate::hold::Held;
use crate::receipt::Charge;
use crate::standing::Standing;
use crate::tokens::Tokens;

/// A row to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// The row's place in [`Plan::rows`](super::Plan::rows).
    pub row: usize,
    /// What it holds from now on.
    pub state: State,
    /// When it will be full, and may be swept away.
    pub full_at: Timestamp,
}

/// The rows while calls are decided over them, one after another.
pub(super) struct Ledger {
    states: Vec<Option<State>>,
    /// The terms under which each row was written last, if it was.
    written: Vec<Option<Terms>>,
    now: Timestamp,
}

impl Ledger {
    pub(super) fn new(found: &[Option<State>], now: Timestamp) -> Self {
        Self { states: found.to_vec(), written: vec![None; found.len()], now }
    }

    /// Decides a call. Where rows are `chosen`, one for each item, each item takes from its chosen row alone.
    pub(super) fn answer(&mut self, Planned { call, places }: &Planned, chosen: &[usize]) -> Result<Answer, Error> {
        match call {
            CheckedCall::Take(items) => self.take(items, places, chosen),
            CheckedCall::Check(items) => {
                let before = self.saved(items, places);
                let answer = self.take(items, places, chosen);
                self.restore(before);
                answer.map(|mut answer| {
                    if let Answer::Granted { charges, .. } = &mut answer {
                        charges.clear();
                    }
                    answer
                })
            }
            CheckedCall::Alter(items) => self.alter(items, places).map(Answer::Done),
        }
    }

    /// The rows that differ from what was found.
    pub(super) fn changes(self, found: &[Option<State>]) -> Vec<Change> {
        let rows = self.states.into_iter().zip(self.written).zip(found).enumerate();
        let changed = rows.filter_map(|(row, ((state, terms), found))| {
            let (state, terms) = (state.filter(|state| Some(state) != found.as_ref())?, terms?);
            Some(Change { row, full_at: terms.full_at(&state), state })
        });
        changed.collect()
    }

    /// Takes from every limit or from none.
    fn take(&mut self, items: &[Item<Ask>], places: &[usize], chosen: &[usize]) -> Result<Answer, Error> {
        let (mut verdicts, mut refusals) = (Vec::with_capacity(items.len()), Vec::new());
        // Of a refusal the latest instant among the limits that refuse: each grants after its own.
        let (mut decided_at, mut refused_at) = (self.now, self.now);
        for (index, (item, place)) in items.iter().zip(places).enumerate() {
            let pool = self.pool(&item.target, *place);
            if let Some(before) = Taken::before(item, &pool)? {
                decided_at = decided_at.max(pool.now());
                verdicts.push(before);
                continue;
            }
            let verdict = match chosen.get(index) {
                Some(row) => pool.decide_in(row - place, item.action),
                None => pool.decide(item.action),
            };
            match verdict.map_err(|TooDeep| too_deep(&item.target))? {
                Verdict::Granted { portions, remaining, ready_at } => {
                    decided_at = decided_at.max(pool.now());
                    verdicts.push(Taken { portions, remaining, ready_at, at: pool.now(), hold: None });
                }
                Verdict::Denied { remaining, retry_at } => {
                    refused_at = refused_at.max(pool.now());
                    refusals.push(refusal(&item.target, remaining, retry_at));
                }
            }
        }
        let untouched = || items.iter().zip(places).map(|(item, place)| self.untouched(item, *place)).collect();
        if let Some(denied) = Denied::among(refusals, untouched, self.now.into(), refused_at.into(), Source::Database) {
            return Ok(Answer::Denied(denied));
        }
        let remaining = verdicts.iter().map(|taken| taken.remaining).min().unwrap_or(Tokens::MAX);
        // What is ready at the instant of its row is ready at once, also where the clock stands behind the row.
        let waits = verdicts.iter().filter(|taken| taken.ready_at > taken.at);
        let waits = waits.map(|taken| taken.ready_at).max();
        let ready_at = waits.unwrap_or(self.now);
        let is_new = verdicts.iter().any(|taken| !taken.portions.is_empty());
        let is_repeated = !is_new && verdicts.iter().any(|taken| taken.hold.is_some());
        let source = if is_repeated { Source::Repeated } else { Source::Database };
        let mut charges = Vec::with_capacity(items.len());
        for ((item, place), mut taken) in items.iter().zip(places).zip(verdicts) {
            // None of it is spent before all of it may be: until then each charge can be cancelled. What was taken
            // before was ready then.
            let at = taken.ready_at.min(taken.at);
            let ready_at = waits.map_or(at, |latest| latest.max(at));
            let held = taken.keep(item, ready_at);
            taken.charge(item, ready_at, held, &mut charges);
            self.write(&item.target, *place, taken.portions);
        }
        let standings = items.iter().zip(places).map(|(item, place)| self.standing(item, *place)).collect();
        Ok(Answer::Granted { observed_at: self.now, decided_at, source, remaining, ready_at, charges, standings })
    }

    /// Where an item's limit stands.
    fn standing(&self, item: &Item<Ask>, place: usize) -> Standing {
        let pool = self.pool(&item.target, place);
        Standing {
            limit: item.target.limit.clone(),
            key: item.target.key().clone(),
            cost: item.action.cost(),
            remaining: pool.balance(),
            more_at: pool.more_at().map(Into::into),
        }
    }

    /// The same, of a call that some limit refuses. A limit that refuses has more at the latest when it would grant.
    fn untouched(&self, item: &Item<Ask>, place: usize) -> Standing {
        let (pool, needs) = (self.pool(&item.target, place), item.action.needs(&item.target.terms));
        let mut standing = self.standing(item, place);
        if standing.remaining < needs {
            let retry_at = pool.first_instant(needs).into();
            standing.more_at = Some(standing.more_at.map_or(retry_at, |more_at| more_at.min(retry_at)));
        }
        standing
    }

    /// Changes rows one after another; all or, where a debt does not fit, none.
    fn alter(&mut self, items: &[Item<Alteration>], places: &[usize]) -> Result<Vec<Balance>, Error> {
        let before = self.saved(items, places);
        let changed = items.iter().zip(places).map(|(item, place)| self.alter_one(item, *place)).collect();
        if Result::is_err(&changed) {
            self.restore(before);
        }
        changed
    }

    fn alter_one(&mut self, item: &Item<Alteration>, place: usize) -> Result<Balance, Error> {
        let pool = self.pool(&item.target, place);
        let portions = match item.action {
            Alteration::Credit(amount) => pool.credit(amount),
            Alteration::CreditUntil(amount, until) if pool.now() <= until => pool.credit(amount),
            Alteration::Debit(amount) => pool.debit(amount).map_err(|TooDeep| too_deep(&item.target))?,
            Alteration::Reset => pool.reset(),
            Alteration::CreditUntil(..) | Alteration::Look => Vec::new(),
            Alteration::Renew(held) => {
                let renewed = pool.renew(held.id).filter(|_| is_of_this_life(&pool, held));
                vec![renewed.ok_or_else(|| gone(&pool, &item.target, held))?]
            }
            Alteration::Release(held) => {
                let released = pool.release(held.id).filter(|_| is_of_this_life(&pool, held));
                vec![released.ok_or_else(|| gone(&pool, &item.target, held))?]
            }
            Alteration::Settle { held, cost, actual, granted_at } => {
                settle(&pool, &item.target, held, Settled { id: held.id, cost, actual, granted_at })?
            }
            Alteration::SettleUntil { held, cost, until } => {
                let actual = if pool.now() <= until { Tokens::ZERO } else { cost };
                settle(&pool, &item.target, held, Settled { id: held.id, cost, actual, granted_at: until })?
            }
        };
        self.write(&item.target, place, portions);
        Ok(self.balance(&item.target, place))
    }

    fn balance(&self, target: &Target, place: usize) -> Balance {
        let pool = self.pool(target, place);
        Balance {
            limit: target.limit.name.clone().into(),
            key: target.key().clone(),
            // Under a receipt's own definition a row may hold more than its capacity.
            value: pool.balance().min(Tokens::from_micros(target.terms.capacity)),
            capacity: Tokens::from_micros(target.terms.capacity),
            full_at: pool.full_at().max(pool.now()).into(),
            observed_at: self.now.into(),
            as_of: pool.now().into(),
        }
    }

    fn pool(&self, target: &Target, place: usize) -> Pool<'_> {
        let pool = Pool::new(&target.terms, &self.states[place..place + target.rows], self.now);
        if target.is_of_receipt { pool.keeping() } else { pool }
    }

    fn write(&mut self, target: &Target, place: usize, portions: Vec<Portion>) {
        for portion in portions {
            self.states[place + portion.shard] = Some(portion.next);
            self.written[place + portion.shard] = Some(target.terms.shard(portion.shard, target.rows));
        }
    }

    /// What the rows of some items hold now.
    fn saved<A>(&self, items: &[Item<A>], places: &[usize]) -> Vec<(usize, Option<State>, Option<Terms>)> {
        let places = items.iter().zip(places).flat_map(|(item, place)| *place..place + item.target.rows);
        places.map(|place| (place, self.states[place].clone(), self.written[place])).collect()
    }

    fn restore(&mut self, saved: Vec<(usize, Option<State>, Option<Terms>)>) {
        for (place, state, terms) in saved {
            (self.states[place], self.written[place]) = (state, terms);
        }
    }
}

/// What an item takes.
struct Taken {
    portions: Vec<Portion>,
    remaining: Tokens,
    ready_at: Timestamp,
    /// The instant of its rows: the clock, or the latest that one of them stands at.
    at: Timestamp,
    /// The hold that it keeps; at first only where an earlier call of the same name has taken it.
    hold: Option<Hold>,
}

impl Taken {
    /// What an earlier call of the same name took, if there was one.
    fn before(item: &Item<Ask>, pool: &Pool<'_>) -> Result<Option<Self>, Error> {
        let Some((hold, ready_at)) = pool.granted_before(item.action) else { return Ok(None) };
        let limit = || item.target.limit.name.clone().into();
        if hold.id != Some(item.action.hold_id(&item.target.terms)) {
            return Err(Error::OnceMismatch { limit: limit() });
        }
        // Nothing is held any more: who was granted that would work beside those who hold all of the limit.
        if hold.used && item.target.limit.lease().is_some() {
            return Err(Error::ReceiptUsed { limit: limit() });
        }
        let (remaining, at) = (pool.balance(), pool.now());
        Ok(Some(Self { portions: Vec::new(), remaining, ready_at, at, hold: Some(hold) }))
    }

    /// Keeps the hold that was asked for, now that it is known when all of the call is ready.
    fn keep(&mut self, item: &Item<Ask>, ready_at: Timestamp) -> Option<Held> {
        if self.hold.is_none() {
            // A limit that keeps holds has one row.
            let row = &mut self.portions.first_mut()?.next;
            let hold = item.action.hold(&item.target.terms, row, ready_at)?;
            row.holds.insert(hold);
            self.hold = Some(hold);
        }
        let hold = self.hold?;
        Some(Held { id: hold.id?, lapses_at: hold.lapses_at.into() })
    }

    /// The charges of an item: one for each row that it takes from, and a charge of nothing where it asks for nothing.
    fn charge(&self, item: &Item<Ask>, ready_at: Timestamp, hold: Option<Held>, charges: &mut Vec<Charge>) {
        let Target { limit, first, .. } = &item.target;
        let charge = |shard: usize, cost| Charge {
            limit: limit.clone(),
            key: first.key.clone(),
            shard: first.after(shard).shard,
            cost,
            ready_at: ready_at.into(),
            hold,
        };
        if self.portions.is_empty() {
            charges.push(charge(0, item.action.cost()));
        }
        charges.extend(self.portions.iter().map(|portion| charge(portion.shard, portion.taken)));
    }
}

fn refusal(target: &Target, remaining: Tokens, retry_at: Timestamp) -> DeniedBy {
    let limit = target.limit.name.clone().into();
    DeniedBy { limit, key: target.key().clone(), remaining, retry_at: retry_at.into() }
}

/// Settles a charge that has a hold.
fn settle(pool: &Pool<'_>, target: &Target, held: Held, charge: Settled) -> Result<Vec<Portion>, Error> {
    let settled = pool.settle(charge).filter(|_| is_of_this_life(pool, held));
    let portion = settled.ok_or_else(|| gone(pool, target, held))?;
    Ok(vec![portion.map_err(|TooDeep| too_deep(target))?])
}

/// Whether a receipt may be of the hold that has its id now: an id of the caller's begins anew when its hold has
/// lapsed.
fn is_of_this_life(pool: &Pool<'_>, held: Held) -> bool {
    !held.id.is_once() || pool.now() < held.lapses_at.into()
}

/// Why a row does not have a hold any more.
fn gone(pool: &Pool<'_>, target: &Target, held: Held) -> Error {
    let limit = target.limit.name.clone().into();
    if pool.now() >= held.lapses_at.into() { Error::Lapsed { limit } } else { Error::ReceiptUsed { limit } }
}

fn too_deep(target: &Target) -> Error {
    Error::DebtTooDeep { limit: target.limit.name.clone().into() }
}
