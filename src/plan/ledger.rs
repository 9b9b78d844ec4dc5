use super::Planned;
use super::alternatives::{alternatives, decided_together, enforced, possible};
use super::answer::Answer;
use super::call::{Action, line};
use super::item::{Alteration, End, Item, OwnRow, Role, Settling, Target};
use super::overruled::denied;
use super::settlement::Settlement;
use super::taken::Taken;
use crate::algebra::{
    Ask, Flow, Lacking, Piece, Pool, Portion, Settled, State, Timestamp, TooDeep, Unsettled, Verdict, split,
};
use crate::balance::Balance;
use crate::call_name::Keeping;
use crate::decision::{Denied, DeniedBy, Source};
use crate::error::{Error, FitError};
use crate::reason::Reason;
use crate::receipt::{Charge, ChargeKind, Receipt, by_request};
use crate::standing::{Each, Standing};
use crate::stored_call::{self, CallRow};
use crate::text::Text;
use crate::tokens::Tokens;

/// A row to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// The row's place in [`Plan::rows`](super::Plan::rows).
    pub row: usize,
    /// What it holds from now on.
    pub state: State,
}

/// What becomes of a stored call; `name` is its place in [`Plan::names`](super::Plan::names), and `call` the last call
/// of the plan that changed it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "said above")]
pub enum CallChange {
    /// It was not there.
    Insert { call: usize, name: usize, row: CallRow },
    /// Its receipt is used, and it no longer lapses.
    Use { call: usize, name: usize },
    /// It is gone.
    Delete { call: usize, name: usize },
}

impl CallChange {
    /// The call of the plan that it stands or falls with.
    pub(crate) fn call(&self) -> usize {
        let (Self::Insert { call, .. } | Self::Use { call, .. } | Self::Delete { call, .. }) = self;
        *call
    }

    /// Its place in [`Plan::names`](super::Plan::names).
    pub(crate) fn name(&self) -> usize {
        let (Self::Insert { name, .. } | Self::Use { name, .. } | Self::Delete { name, .. }) = self;
        *name
    }

    /// What is inserted, if something is.
    pub(crate) fn row(&self) -> Option<&CallRow> {
        if let Self::Insert { row, .. } = self { Some(row) } else { None }
    }
}

/// The rows while calls are decided over them, one after another.
pub(super) struct Ledger {
    states: Vec<Option<State>>,
    calls: Vec<Option<CallRow>>,
    /// By which call each stored call was changed last.
    changed: Vec<Option<usize>>,
    now: Timestamp,
}

impl Ledger {
    pub(super) fn new(found: &[Option<State>], known: &[Option<CallRow>], now: Timestamp) -> Self {
        Self { states: found.to_vec(), calls: known.to_vec(), changed: vec![None; known.len()], now }
    }

    /// Decides a call. Where rows are `chosen`, one for each item, each item takes from its chosen row alone.
    pub(super) fn answer(&mut self, call: usize, planned: &Planned, chosen: &[usize]) -> Result<Answer, Error> {
        let Planned { call: checked, places, name } = planned;
        let stored = checked.stored.as_deref().zip(*name);
        let before = stored.map(|(_, name)| self.calls[name].clone());
        let answer = match &checked.action {
            Action::Take(items) => self.take(items, places, stored, chosen),
            Action::Check(items) => {
                let saved = self.saved(checked.widths().zip(places));
                let mut answer = self.take(items, places, stored, chosen);
                self.restore(saved);
                if let Some((before, (_, name))) = before.clone().zip(stored) {
                    self.calls[name] = before;
                }
                if let Ok(Answer::Granted { receipt, standings, .. }) = &mut answer {
                    *receipt = Receipt::default();
                    *standings = std::mem::take(standings).into_iter().map(Standing::untaken).collect();
                }
                answer
            }
            Action::Alter(item) => self.alter(item, places[0], stored).map(Answer::Done),
            Action::Settle(settling) => {
                let saved = self.saved(checked.widths().zip(places));
                let settled = self.settle(settling, places, stored);
                if settled.is_err() {
                    self.restore(saved);
                }
                settled.map(Answer::Settled)
            }
        };
        if let Some((before, (_, name))) = before.zip(stored)
            && self.calls[name] != before
        {
            self.changed[name] = Some(call);
        }
        answer
    }

    /// The rows, and the stored calls, that differ from what was found.
    pub(super) fn changes(self, found: &[Option<State>], known: &[Option<CallRow>]) -> (Vec<Change>, Vec<CallChange>) {
        let rows = self.states.into_iter().zip(found).enumerate();
        let changed = rows.filter_map(|(row, (state, found))| {
            let state = state.filter(|state| Some(state) != found.as_ref())?;
            Some(Change { row, state })
        });
        let calls = self.calls.into_iter().zip(self.changed).zip(known).enumerate();
        let calls = calls.filter_map(|(name, ((now, call), known))| match (known, now, call?) {
            (None, Some(row), call) => Some(CallChange::Insert { call, name, row }),
            (Some(known), Some(row), call) => (*known != row).then_some(CallChange::Use { call, name }),
            (Some(_), None, call) => Some(CallChange::Delete { call, name }),
            (None, None, _) => None,
        });
        (changed.collect(), calls.collect())
    }

    /// Takes from the first alternative that is granted.
    fn take(
        &mut self,
        items: &[Item<Ask>],
        places: &[usize],
        stored: Option<(&OwnRow, usize)>,
        chosen: &[usize],
    ) -> Result<Answer, Error> {
        if let Some(row) = self.repeated(stored)? {
            return self.repeat(row, items, places);
        }
        let (mut least, mut places) = (None::<Denied>, places);
        for items in alternatives(items) {
            let (of_items, behind) = places.split_at(items.len());
            places = behind;
            // Those of other calls were left out before.
            if stored.is_some() && possible(items).is_err() {
                continue;
            }
            match self.take_all(items, of_items, stored, chosen)? {
                Answer::Denied(denied) => least = Some(Denied::soonest(least, denied)),
                granted => return Ok(granted),
            }
        }
        if let Some(denied) = least {
            return Ok(Answer::Denied(denied));
        }
        alternatives(items).try_for_each(possible)?;
        // From memory, what only tries out asks nothing.
        self.take_all(&[], &[], stored, chosen)
    }

    /// Takes from every limit of an alternative or from none.
    fn take_all(
        &mut self,
        items: &[Item<Ask>],
        places: &[usize],
        stored: Option<(&OwnRow, usize)>,
        chosen: &[usize],
    ) -> Result<Answer, Error> {
        if let Some(denied) = denied(enforced(items), self.now) {
            return Ok(Answer::Denied(denied));
        }
        let (first, alternative) =
            items.first().map_or((Tokens::ZERO, None), |item| (item.action.cost(), item.action.place.alternative));
        let (items, shadows) = items.split_at(enforced(items).len());
        let (places, behind) = places.split_at(items.len());
        let (part, given) = (self.part(items, places), self.given(items, places));
        let given = |index: usize| given.get(index).copied().flatten();
        let sized = |(index, item): (usize, &Item<Ask>)| match (given(index), part) {
            (Some(Ok(given)), _) => item.action.giving(given.cost),
            (_, Some(part)) => item.action.granting(part),
            (_, None) => item.action,
        };
        let (mut verdicts, mut refusals) = (Vec::with_capacity(items.len()), Vec::new());
        // Of a refusal the latest instant among the limits that refuse: each grants after its own.
        let mut refused_at = self.now;
        for (index, (item, place)) in items.iter().zip(places).enumerate() {
            if item.target.is_free() {
                verdicts.push(Taken::nothing(self.now));
                continue;
            }
            self.expect_one_money(&item.target, *place)?;
            let pool = self.pool(&item.target, *place);
            let verdict = match (chosen.get(index), given(index)) {
                (_, Some(Err(Lacking { reason, remaining, retry_at }))) => {
                    refused_at = refused_at.max(pool.now());
                    if item.action.place.split == Some(0) {
                        refusals.push(refusal(&item.target, reason, remaining, retry_at));
                    }
                    continue;
                }
                (_, Some(Ok(Piece { cost: Tokens::ZERO, remaining }))) => {
                    Ok(Verdict::Granted { portions: Vec::new(), remaining, ready_at: pool.now() })
                }
                (Some(row), _) => pool.decide_in(row - place, item.action),
                (None, _) => pool.decide(sized((index, item))),
            };
            match verdict.map_err(|TooDeep| too_deep(&item.target.limit.name))? {
                Verdict::Granted { portions, remaining, ready_at } => {
                    let remaining = given(index).and_then(Result::ok).map_or(remaining, |given| given.remaining);
                    verdicts.push(Taken { portions, remaining, ready_at, at: pool.now() });
                }
                Verdict::Denied { reason, remaining, retry_at } => {
                    refused_at = refused_at.max(pool.now());
                    refusals.push(refusal(&item.target, reason, remaining, retry_at));
                }
            }
        }
        let told = || items.iter().zip(places).filter(|(item, _)| !item.target.is_free());
        let untouched = || told().map(|(item, place)| self.untouched(item, *place)).collect();
        if let Some(denied) = Denied::among(refusals, untouched, self.now.into(), refused_at.into(), Source::Database) {
            let would_deny =
                shadows.iter().zip(behind).filter_map(|(item, place)| self.try_out(item, *place, None).err());
            return Ok(Answer::Denied(Denied { would_deny: would_deny.collect(), ..denied }));
        }
        let remaining = verdicts.iter().map(|taken| taken.remaining).min().unwrap_or(Tokens::MAX);
        // Of a grant the earliest: by a later one a window would give back what it has refilled since.
        let decided_at = verdicts.iter().map(|taken| taken.at).min().unwrap_or(self.now);
        // What is ready at the instant of its row is ready at once, also where the clock stands behind the row.
        let waits = verdicts.iter().filter(|taken| taken.ready_at > taken.at);
        let waits = waits.map(|taken| taken.ready_at).max();
        let mut charges = self.charge_all(items, places, verdicts, waits);
        // Without what the shadows take.
        let standing = |(index, (item, place)): (usize, (&Item<Ask>, &usize))| {
            let standing = self.standing(&item.target, sized((index, item)), *place);
            let before = standing.remaining.checked_add(standing.cost);
            Standing { before, ..standing }
        };
        let told = items.iter().zip(places).enumerate().filter(|(_, (item, _))| !item.target.is_free());
        let standings = told.map(standing).collect();
        let would_deny = self.try_all(shadows, behind, part, waits, &mut charges);
        let would_deny = Each::from(would_deny);
        let mut receipt = Receipt::from(charges);
        if let Some((stored, name)) = stored {
            let given = stored_call::Given { ready_at: waits, part, alternative, would_deny: would_deny.clone() };
            let row = stored.row(receipt.charges.clone(), decided_at, given);
            (receipt.call, receipt.lapses_at) = (Some(row.name.clone()), Some(row.lapses_at.unwrap_or(row.kept_until)));
            self.calls[name] = Some(row);
        }
        let (observed_at, ready_at) = (self.now, waits.unwrap_or(self.now));
        let is_free = !items.is_empty() && items.iter().all(|item| item.target.is_free());
        let source = if is_free { Source::Override } else { Source::Database };
        let amount = part.unwrap_or(first);
        let [stands_at, full_at] = self.stands(places, &receipt);
        Ok(Answer::Granted {
            stands_at,
            full_at,
            observed_at,
            decided_at,
            source,
            amount,
            alternative: alternative.unwrap_or(0),
            remaining,
            ready_at,
            receipt,
            standings,
            would_deny,
        })
    }

    /// Writes what was taken of each limit.
    fn charge_all(
        &mut self,
        items: &[Item<Ask>],
        places: &[usize],
        verdicts: Vec<Taken>,
        waits: Option<Timestamp>,
    ) -> Vec<Charge> {
        let (mut charges, mut before) = (Vec::with_capacity(items.len()), Tokens::ZERO);
        for ((item, place), mut taken) in items.iter().zip(places).zip(verdicts) {
            before = if item.action.continues_split() { before } else { Tokens::ZERO };
            // None of it is spent before all of it may be: until then each charge can be cancelled.
            let ready_at = waits.map_or(taken.at, |latest| latest.max(taken.at));
            before = taken.charge(item, before, ready_at, &mut charges);
            self.write(*place, taken.portions);
        }
        charges
    }

    /// Tries shadows out, one after another, and charges those that grant; how the others would refuse.
    fn try_all(
        &mut self,
        shadows: &[Item<Ask>],
        places: &[usize],
        part: Option<Tokens>,
        waits: Option<Timestamp>,
        charges: &mut Vec<Charge>,
    ) -> Vec<DeniedBy> {
        let mut would_deny = Vec::new();
        for (item, place) in shadows.iter().zip(places) {
            match self.try_out(item, *place, part) {
                Ok(mut taken) => {
                    let ready_at = waits.map_or(taken.at, |latest| latest.max(taken.at));
                    taken.charge(item, Tokens::ZERO, ready_at, charges);
                    self.write(*place, taken.portions);
                }
                Err(refusal) => would_deny.push(refusal),
            }
        }
        would_deny
    }

    /// What a shadow takes of what is there, or how it would refuse. `part` is the number of those that do not only
    /// try.
    fn try_out(&self, item: &Item<Ask>, place: usize, part: Option<Tokens>) -> Result<Taken, DeniedBy> {
        if item.target.is_free() {
            return Ok(Taken::nothing(self.now));
        }
        if let Some(until) = item.target.denied_until(self.now) {
            return Err(refusal(&item.target, Reason::Override, Tokens::ZERO, until));
        }
        let pool = self.pool(&item.target, place);
        let ask = part.map_or(item.action, |part| item.action.granting(part));
        let is_sound = ask.is_possible(&item.target.terms) && self.expect_one_money(&item.target, place).is_ok();
        match pool.decide(ask) {
            Ok(Verdict::Granted { portions, remaining, ready_at }) if is_sound => {
                Ok(Taken { portions, remaining, ready_at, at: pool.now() })
            }
            Ok(Verdict::Denied { reason, remaining, retry_at }) if is_sound => {
                Err(refusal(&item.target, reason, remaining, retry_at))
            }
            _ => Err(refusal(&item.target, Reason::Short, pool.balance(), Timestamp::MAX)),
        }
    }

    /// How many tokens each request gets that takes a part, if one does: the least that any of them has.
    fn part(&self, items: &[Item<Ask>], places: &[usize]) -> Option<Tokens> {
        let parts = items.iter().zip(places).filter(|(item, _)| item.action.most().is_some());
        let part = |(item, place): (&Item<Ask>, &usize)| {
            if item.target.is_free() { item.action.most() } else { self.pool(&item.target, *place).part(item.action) }
        };
        parts.filter_map(part).min()
    }

    /// What the limits of a split give, each at the place of its item; nothing of a call that splits no cost.
    fn given(&self, items: &[Item<Ask>], places: &[usize]) -> Vec<Option<Result<Piece, Lacking>>> {
        if !items.iter().any(|item| item.action.is_split()) {
            return Vec::new();
        }
        let mut places = places.iter();
        let of_items = |items: &[Item<Ask>]| {
            let asked = items.iter().zip(&mut places);
            let pools: Vec<_> = asked.map(|(item, place)| (self.pool(&item.target, *place), item.action)).collect();
            match split(&pools) {
                _ if items[0].target.is_free() || !items[0].action.is_split() => vec![None; items.len()],
                Ok(given) => given.into_iter().map(|given| Some(Ok(given))).collect(),
                Err(lacking) => vec![Some(Err(lacking)); items.len()],
            }
        };
        decided_together(items).flat_map(of_items).collect()
    }

    /// The stored call that a call repeats, if it does.
    fn repeated(&self, stored: Option<(&OwnRow, usize)>) -> Result<Option<&CallRow>, Error> {
        let Some((stored, name)) = stored else { return Ok(None) };
        let (Role::Write { asked, .. }, Some(row)) = (stored.role, &self.calls[name]) else { return Ok(None) };
        if row.asked == asked {
            Ok(Some(row))
        } else {
            Err(Error::OnceMismatch { limit: stored.name.name.clone().into() })
        }
    }

    /// What was granted before. The balances are those of now.
    fn repeat(&self, row: &CallRow, items: &[Item<Ask>], places: &[usize]) -> Result<Answer, Error> {
        let mut receipt = Receipt {
            call: Some(row.name.clone()),
            lapses_at: Some(row.lapses_at.unwrap_or(row.kept_until)),
            ..Receipt::from(row.charges.clone())
        };
        // Who was granted a lease that is over would work beside those who hold all of the limit.
        for lease in receipt.charges.iter_mut().filter(|charge| charge.lease.is_some()) {
            let of_limit = |item: &Item<Ask>| item.target.limit.name == lease.limit && *item.target.key() == lease.key;
            let place = items.iter().position(of_limit).map(|item| places[item]);
            let row = place.and_then(|place| self.states[place].as_ref());
            let ends_at = lease.held_until(row, self.now);
            lease.until = Some(ends_at.ok_or_else(|| Error::ReceiptUsed { limit: lease.limit.clone().into() })?);
        }
        let given = row.answer.clone().unwrap_or_default();
        let charged = |item: &Item<Ask>| {
            let charges = row.charges.iter().filter(|charge| item.target.limit.name == charge.limit);
            let costs = charges.filter(|charge| *item.target.key() == charge.key).map(|charge| charge.cost);
            costs.fold(Tokens::ZERO, |sum, cost| sum.checked_add(cost).unwrap_or(Tokens::MAX))
        };
        let sized = |item: &Item<Ask>| match given.part {
            _ if item.action.is_split() => item.action.giving(charged(item)),
            Some(part) => item.action.granting(part),
            None => item.action,
        };
        let is_enforced = |(item, _): &(&Item<Ask>, &usize)| {
            let is_told = !item.action.shadow && !item.target.is_free();
            is_told && item.action.place.alternative == given.alternative
        };
        let standing = |(item, place): (&Item<Ask>, &usize)| self.standing(&item.target, sized(item), *place);
        let standings: Vec<_> = items.iter().zip(places).filter(is_enforced).map(standing).collect();
        let first = items.iter().find(|item| item.action.place.alternative == given.alternative);
        let remaining = standings.iter().map(|standing| standing.remaining).min().unwrap_or(Tokens::MAX);
        let ready_at = given.ready_at.map_or(self.now, |ready_at| ready_at.max(self.now));
        Ok(Answer::Granted {
            stands_at: self.now,
            full_at: self.now,
            observed_at: self.now,
            decided_at: row.charged_at.max(self.now),
            source: Source::Repeated,
            amount: given.part.unwrap_or_else(|| first.map_or(Tokens::ZERO, |item| item.action.cost())),
            alternative: given.alternative.unwrap_or(0),
            remaining,
            ready_at,
            receipt,
            standings: standings.into(),
            would_deny: given.would_deny,
        })
    }

    /// The instant that the first row stands at, and that from which on it is full; now, where nothing was taken from
    /// it.
    fn stands(&self, places: &[usize], receipt: &Receipt) -> [Timestamp; 2] {
        let taken = receipt.charges.first().is_some_and(|charge| charge.cost > Tokens::ZERO);
        let row = places.first().filter(|_| taken).and_then(|place| self.states[*place].as_ref());
        row.map_or([self.now; 2], |row| [row.ts, row.full_at])
    }

    /// Where a limit stands of which this was asked.
    fn standing(&self, target: &Target, ask: Ask, place: usize) -> Standing {
        let pool = self.pool(target, place);
        Standing {
            limit: target.limit.clone(),
            key: target.key().clone(),
            cost: ask.cost(),
            remaining: pool.balance(),
            more_at: pool.more_at().and_then(ever).map(Into::into),
            before: None,
            overridden: target.is_overridden(),
            override_label: target.override_label().to_owned(),
        }
    }

    /// The same, of a call that some limit refuses. A limit that refuses has more at the latest when it would grant.
    fn untouched(&self, item: &Item<Ask>, place: usize) -> Standing {
        let (pool, needs) = (self.pool(&item.target, place), item.action.needs(&item.target.terms));
        let mut standing = self.standing(&item.target, item.action, place);
        if standing.remaining < needs {
            let retry_at = ever(pool.first_instant(needs)).map(Into::into);
            standing.more_at = standing.more_at.into_iter().chain(retry_at).min();
        }
        standing
    }

    fn alter(
        &mut self,
        item: &Item<Alteration>,
        place: usize,
        stored: Option<(&OwnRow, usize)>,
    ) -> Result<Balance, Error> {
        let limit = &item.target.limit.name;
        if self.repeated(stored)?.is_some() {
            return Ok(Balance { source: Source::Repeated, ..self.balance(&item.target, place) });
        }
        self.expect_one_money(&item.target, place)?;
        let pool = self.pool(&item.target, place);
        let portions = match item.action {
            Alteration::Credit(amount) => {
                if item.target.terms.flow == Flow::Wallet && pool.balance().checked_add(amount).is_none() {
                    return Err(unfit(limit, FitError::BalanceTooLarge));
                }
                pool.credit(amount)
            }
            Alteration::Debit(amount) => pool.debit(amount).map_err(|TooDeep| too_deep(limit))?,
            Alteration::Reset => pool.reset(),
            // Nobody can tell a row that was missing from one that was reset.
            Alteration::GiveBack(rest) => pool.credit(rest.owed(&item.target.terms, pool.now())),
            Alteration::Look => Vec::new(),
        };
        let (decided_at, before) = (pool.now(), pool.balance());
        self.write(place, portions);
        if let Some((stored, name)) = stored {
            self.calls[name] = Some(stored.row(Vec::new(), decided_at, stored_call::Given::default()));
        }
        let before = matches!(item.action, Alteration::Debit(_)).then_some(before);
        Ok(Balance { before, ..self.balance(&item.target, place) })
    }

    /// Brings the charges of a receipt, or of a stored call, to what they come to.
    fn settle(
        &mut self,
        settling: &Settling,
        places: &[usize],
        stored: Option<(&OwnRow, usize)>,
    ) -> Result<Settlement, Error> {
        let Settling { charges, end, .. } = settling;
        let known = stored.and_then(|(_, name)| self.calls[name].as_ref());
        let known = known.filter(|row| !row.used && is_of(charges, row));
        match (stored.map(|(stored, _)| (stored, stored.role)), known) {
            (Some((stored, Role::Use { lapses_at })), None) => {
                return Err(gone(&stored.name.name, lapses_at, self.now));
            }
            (Some((_, Role::Lapse)), row) if !row.is_some_and(|row| row.is_due(self.now)) => {
                return Ok(Settlement { charges: Vec::new(), observed_at: self.now.into(), overdrawn: Vec::new() });
            }
            _ => {}
        }
        let lapses = known.is_some_and(|row| row.lapses_at.is_some());
        let costs = match (end, known) {
            (End::Costs(costs), _) => costs.clone(),
            (End::Reported, Some(row)) => {
                let reported = by_request(charges).map(|charges| charges[0].is_counted().then_some(row.reported));
                line(charges, reported)
            }
            _ => vec![Tokens::ZERO; charges.len()],
        };
        let (mut settled, mut overdrawn) = (Vec::with_capacity(charges.len()), Vec::new());
        for ((charge, place), cost) in charges.iter().zip(places).zip(costs) {
            let before = (cost > charge.cost).then(|| self.states[*place].clone());
            settled.push(self.settle_one(charge, *place, cost, end, stored.is_some(), lapses)?);
            overdrawn.extend(before.map(|before| (charge.clone(), [before, self.states[*place].clone()])));
        }
        if let Some((_, name)) = stored {
            self.calls[name] = self.calls[name].take().and_then(CallRow::spent);
        }
        Ok(Settlement { charges: settled, observed_at: self.now.into(), overdrawn })
    }

    /// Brings a charge to its cost; a lease to its end. What it is then.
    fn settle_one(
        &mut self,
        charge: &Charge,
        place: usize,
        cost: Tokens,
        end: &End,
        is_stored: bool,
        lapses: bool,
    ) -> Result<Charge, Error> {
        let row = self.states[place].as_ref();
        let mut charge = charge.clone();
        let settled = match (charge.kind, end) {
            (ChargeKind::Free, _) | (ChargeKind::Lease, End::Reported) => return Ok(charge),
            (ChargeKind::Lease, _) if charge.lease.is_none() => return Ok(charge),
            (ChargeKind::Lease, End::Renewed) => {
                let renewed = charge.renew(row, self.now);
                let (next, ends_at) = renewed.ok_or_else(|| gone(&charge.limit, charge.until, self.now))?;
                charge.until = Some(ends_at);
                Settled { next: Some(next), kept: charge.cost }
            }
            (ChargeKind::Lease, _) => match charge.release(row, self.now) {
                Some(released) => released,
                // Its stored call says that the receipt was not used.
                None if is_stored => return Ok(charge),
                None => return Err(gone(&charge.limit, charge.until, self.now)),
            },
            (_, End::Cancelled) if row.map_or(self.now, |row| row.ts.max(self.now)) > charge.ready_at => {
                return if lapses {
                    Err(Error::TooLateToCancel { limit: charge.limit.clone().into() })
                } else {
                    Ok(charge)
                };
            }
            _ => charge.settle(row, self.now, cost).map_err(|fault| match fault {
                Unsettled::MixedMoney => unfit(&charge.limit, FitError::MixedMoney),
                Unsettled::TooDeep => too_deep(&charge.limit),
                Unsettled::TooLarge => unfit(&charge.limit, FitError::BalanceTooLarge),
            })?,
        };
        charge.cost = settled.kept;
        if settled.next.is_some() {
            self.states[place] = settled.next;
        }
        Ok(charge)
    }

    /// That a row is money to both, itself and the definition, or to neither.
    fn expect_one_money(&self, target: &Target, place: usize) -> Result<(), Error> {
        let mut rows = self.states[place..place + target.rows].iter().flatten();
        if rows.any(|row| !row.is_over(self.now) && target.terms.mixes_money(row)) {
            return Err(unfit(&target.limit.name, FitError::MixedMoney));
        }
        Ok(())
    }

    fn balance(&self, target: &Target, place: usize) -> Balance {
        let pool = self.pool(target, place);
        Balance {
            limit: target.limit.name.clone().into(),
            key: target.key().clone(),
            remaining: pool.balance(),
            used: pool.used(),
            capacity: Tokens::from_micros(target.terms.capacity),
            full_at: ever(pool.full_at().max(pool.now())).map(Into::into),
            observed_at: self.now.into(),
            as_of: pool.now().into(),
            source: Source::Database,
            before: None,
        }
    }

    fn pool(&self, target: &Target, place: usize) -> Pool<'_> {
        Pool::new(&target.terms, &self.states[place..place + target.rows], self.now)
    }

    fn write(&mut self, place: usize, portions: Vec<Portion>) {
        for portion in portions {
            self.states[place + portion.shard] = Some(portion.next);
        }
    }

    /// What some rows hold now, by their number and their first place.
    fn saved<'p>(&self, rows: impl Iterator<Item = (usize, &'p usize)>) -> Vec<(usize, Option<State>)> {
        let places = rows.flat_map(|(rows, place)| *place..place + rows);
        places.map(|place| (place, self.states[place].clone())).collect()
    }

    fn restore(&mut self, saved: Vec<(usize, Option<State>)>) {
        for (place, state) in saved {
            self.states[place] = state;
        }
    }
}

impl OwnRow {
    /// The row of a call that is carried out now.
    fn row(&self, charges: Vec<Charge>, charged_at: Timestamp, given: stored_call::Given) -> CallRow {
        let Role::Write { asked, keeping, once } = self.role else {
            unreachable!("only a call that is carried out writes its row")
        };
        let kept = keeping.map(|keeping| given.ready_at.unwrap_or(charged_at).plus(keeping.span()));
        CallRow {
            name: self.name.clone(),
            asked,
            charges,
            charged_at,
            reported: Tokens::ZERO,
            lapses_at: kept.filter(|_| keeping.is_some_and(Keeping::lapses)),
            kept_until: once.map_or(charged_at, |span| charged_at.plus(span)).max(kept.unwrap_or(charged_at)),
            used: false,
            answer: once.map(|_| Box::new(given)),
        }
    }
}

impl CallRow {
    /// What is left of it when its receipt is used: its id, where somebody may ask for it again.
    fn spent(self) -> Option<Self> {
        self.answer.is_some().then_some(Self { used: true, lapses_at: None, ..self })
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.lapses_at.is_some_and(|lapses_at| lapses_at <= now)
    }
}

/// Whether charges are those of a stored call, and not of one that had its id before. Leases may have been renewed.
fn is_of(charges: &[Charge], row: &CallRow) -> bool {
    let facts = |charge: &Charge| (charge.cost, charge.before, charge.ready_at, charge.lease);
    charges.iter().map(facts).eq(row.charges.iter().map(facts))
}

fn refusal(target: &Target, reason: Reason, remaining: Tokens, retry_at: Timestamp) -> DeniedBy {
    let limit = target.limit.name.clone().into();
    DeniedBy { limit, key: target.key().clone(), reason, remaining, retry_at: ever(retry_at).map(Into::into) }
}

/// What is due after the end of time never is.
fn ever(at: Timestamp) -> Option<Timestamp> {
    Some(at).filter(|at| *at < Timestamp::MAX)
}

/// Why a row does not list a lease, or a call is not stored.
fn gone(limit: &Text, until: Option<Timestamp>, now: Timestamp) -> Error {
    let limit = limit.clone().into();
    if until.is_some_and(|until| until <= now) { Error::Lapsed { limit } } else { Error::ReceiptUsed { limit } }
}

fn too_deep(limit: &Text) -> Error {
    unfit(limit, FitError::DebtTooDeep)
}

fn unfit(limit: &Text, source: FitError) -> Error {
    Error::DoesNotFit { limit: limit.clone().into(), source }
}
