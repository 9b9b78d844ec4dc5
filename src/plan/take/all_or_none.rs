//! All or none: nothing is written before every limit of an alternative has granted.

use super::gather::{alternatives, decided_together, denied, possible};
use crate::algebra::{Ask, Flow, Lacking, Piece, Portion, Timestamp, TooDeep, Verdict, longest, split};
use crate::answer::decision::{Denied, DeniedBy, Grant, Source};
use crate::answer::receipt::{Charge, ChargeKind, Receipt};
use crate::answer::standing::Standing;
use crate::call::Given;
use crate::error::{Error, FitError};
use crate::limit::LimitKind;
use crate::plan::answer::Answer;
use crate::plan::ledger::{Ledger, unfit};
use crate::plan::stored_call::CallSlot;
use crate::plan::target::{Item, Target};
use crate::tokens::Tokens;

/// The tokens that the items of an alternative take, and the refusals of those that refuse.
struct AllOrNone {
    taken: Vec<ItemCharges>,
    refusals: Vec<DeniedBy>,
    /// The latest row instant among the limits that refuse: each of them would grant only after its own.
    refused_at: Timestamp,
}

impl Ledger<'_> {
    /// Takes from the first alternative that is granted.
    pub(in crate::plan) fn take(&mut self, items: &[Item<Ask>], slot: Option<&CallSlot>) -> Result<Answer, Error> {
        if let Some(slot) = slot
            && let Some(row) = self.repeated(slot)?
        {
            return self.repeat(row, items);
        }
        let (mut least, mut fault) = (None::<Denied>, None);
        for alternative in alternatives(items) {
            // For a call that is not stored, `Operation::under` has left out impossible alternatives.
            if slot.is_some()
                && let Err(error) = possible(alternative)
            {
                fault.get_or_insert(error);
                continue;
            }
            match self.take_all(alternative, slot)? {
                Answer::Denied(denied) => least = Some(Denied::soonest(least, denied)),
                granted => return Ok(granted),
            }
        }
        least.map(Answer::Denied).ok_or_else(|| fault.expect("a call has an alternative"))
    }

    /// Takes from every limit of an alternative or from none.
    fn take_all(&mut self, items: &[Item<Ask>], slot: Option<&CallSlot>) -> Result<Answer, Error> {
        if let Some(denied) = denied(items, self.now) {
            return Ok(Answer::Denied(denied));
        }
        let amounts = Amounts::of(self, items);
        let AllOrNone { taken, refusals, refused_at } = self.try_items(items, &amounts)?;
        let untouched = || told(items).map(|(_, item)| self.untouched(item)).collect();
        let denied = Denied::among(refusals, untouched, self.now.into(), refused_at.into(), Source::Database);
        Ok(denied.map_or_else(|| self.grant(items, &amounts, taken, slot), Answer::Denied))
    }

    /// Asks each item, without a change to the rows.
    fn try_items(&self, items: &[Item<Ask>], amounts: &Amounts) -> Result<AllOrNone, Error> {
        let taken = Vec::with_capacity(items.len());
        let mut tried = AllOrNone { taken, refusals: Vec::new(), refused_at: self.now };
        for (place, item) in items.iter().enumerate() {
            if item.target.is_unlimited() {
                tried.taken.push(ItemCharges::nothing(self.now));
                continue;
            }
            self.expect_one_money(&item.target)?;
            let account = self.account(&item.target);
            let given = amounts.given(place);
            let verdict = match (given, self.chosen.get(place)) {
                (Some(Err(Lacking { reason, remaining, retry_at })), _) => {
                    Ok(Verdict::Denied { reason, remaining, retry_at })
                }
                (Some(Ok(Piece { cost: Tokens::ZERO, remaining })), _) => {
                    Ok(Verdict::Granted { portions: Vec::new(), remaining, ready_at: account.now() })
                }
                (_, Some(row)) => account.decide_in(row - item.target.rows.place, item.action),
                (_, None) => account.decide(amounts.ask(place, item)),
            };
            match verdict.map_err(|TooDeep| unfit(&item.target.limit.name, FitError::DebtTooDeep))? {
                Verdict::Granted { portions, remaining, ready_at } => {
                    let remaining = given.and_then(Result::ok).map_or(remaining, |given| given.remaining);
                    tried.taken.push(ItemCharges { portions, remaining, ready_at, at: account.now() });
                }
                Verdict::Denied { reason, remaining, retry_at } => {
                    tried.refused_at = tried.refused_at.max(account.now());
                    // Limits that lack a cost together refuse once.
                    if !(matches!(given, Some(Err(_))) && item.action.continues_split()) {
                        tried.refusals.push(item.target.refusal(reason, remaining, retry_at));
                    }
                }
            }
        }
        Ok(tried)
    }

    /// Charges the tokens that an alternative takes.
    fn grant(
        &mut self,
        items: &[Item<Ask>],
        amounts: &Amounts,
        taken: Vec<ItemCharges>,
        slot: Option<&CallSlot>,
    ) -> Answer {
        let bounded = items.iter().zip(&taken).filter(|(item, _)| item.target.limit.kind != LimitKind::Meter);
        let remaining = bounded.map(|(_, taken)| taken.remaining).min().unwrap_or(Tokens::MAX);
        // A grant is dated by its earliest row: with a later date a window would give back tokens that it has refilled.
        let decided_at = taken.iter().map(|taken| taken.at).min().unwrap_or(self.now);
        // An item that is ready at the instant of its row is ready at once, also where the clock stands behind the row.
        let waits = taken.iter().filter(|taken| taken.ready_at > taken.at).map(|taken| taken.ready_at).max();
        let charges = self.charge_all(items, taken, waits);
        let standings = told(items).map(|(place, item)| self.granted(item, amounts.ask(place, item))).collect();
        let first = items[0].action;
        let (amount, alternative) = (first.cost(), first.place.alternative);
        let receipt = if let Some(slot) = slot {
            let given = Given { ready_at: waits, part: amounts.partial, alternative };
            let row = slot.written(charges, decided_at, given);
            let receipt = row.receipt();
            self.write_call(slot, Some(row));
            receipt
        } else {
            Receipt::from(charges)
        };
        let is_unlimited = items.iter().all(|item| item.target.is_unlimited());
        let [stands_at, full_at] = self.stands(items, &receipt);
        let grant = Grant {
            amount: amounts.partial.unwrap_or(amount),
            alternative: alternative.unwrap_or(0),
            remaining,
            observed_at: self.now.into(),
            decided_at: decided_at.into(),
            source: if is_unlimited { Source::Override } else { Source::Database },
            receipt,
            standings,
        };
        Answer::Granted { stands_at, full_at, ready_at: waits.unwrap_or(self.now), grant }
    }

    fn charge_all(&mut self, items: &[Item<Ask>], taken: Vec<ItemCharges>, waits: Option<Timestamp>) -> Vec<Charge> {
        let (mut charges, mut before) = (Vec::with_capacity(items.len()), Tokens::ZERO);
        for (item, mut taken) in items.iter().zip(taken) {
            before = if item.action.continues_split() { before } else { Tokens::ZERO };
            before = taken.charge(item, before, waits, &mut charges);
            self.write(&item.target, taken.portions);
        }
        charges
    }

    /// The instant that the first row stands at, and the instant from which on it is full; both are now if nothing was
    /// taken from it.
    fn stands(&self, items: &[Item<Ask>], receipt: &Receipt) -> [Timestamp; 2] {
        let is_taken = receipt.charges.first().is_some_and(|charge| charge.cost > Tokens::ZERO);
        let first = items.first().filter(|_| is_taken);
        let row = first.and_then(|item| self.states[item.target.rows.place].as_ref());
        row.map_or([self.now; 2], |row| [row.ts, row.full_at])
    }

    /// The standing of a limit that has granted.
    fn granted(&self, item: &Item<Ask>, ask: Ask) -> Standing {
        let standing = self.standing(item, ask);
        Standing { before: standing.remaining.checked_add(standing.cost), ..standing }
    }

    /// The standing of a limit.
    pub(super) fn standing(&self, item: &Item<Ask>, ask: Ask) -> Standing {
        let account = self.account(&item.target);
        let more_at = account.more_at().unwrap_or(Timestamp::MAX);
        item.target.standing(ask.cost(), account.balance(), [more_at, account.full_at()])
    }

    /// The standing of a limit after a refused call. A limit that refuses has one more token at the latest when it
    /// would grant.
    fn untouched(&self, item: &Item<Ask>) -> Standing {
        let (account, needs) = (self.account(&item.target), item.action.needs(&item.target.terms));
        let mut more_at = account.more_at().unwrap_or(Timestamp::MAX);
        if account.balance() < needs {
            more_at = more_at.min(account.first_instant(needs));
        }
        item.target.standing(item.action.cost(), account.balance(), [more_at, account.full_at()])
    }
}

/// The items that an answer reports, each with its place.
fn told(items: &[Item<Ask>]) -> impl Iterator<Item = (usize, &Item<Ask>)> {
    items.iter().enumerate().filter(|(_, item)| !item.target.is_unlimited())
}

/// The tokens that the items of an alternative take, if they depend on the other items.
struct Amounts {
    /// The tokens that each request with a part gets, if there is one: the least that any of their limits has.
    partial: Option<Tokens>,
    /// The piece that each limit of a split gives, at the place of its item; empty for a call that splits no cost.
    given: Vec<Option<Result<Piece, Lacking>>>,
}

impl Amounts {
    fn of(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Self {
        Self { partial: partial(ledger, items), given: given(ledger, items) }
    }

    /// The piece of a split cost that the limit of an item gives.
    fn given(&self, place: usize) -> Option<Result<Piece, Lacking>> {
        self.given.get(place).copied().flatten()
    }

    /// The ask of an item for its amount.
    fn ask(&self, place: usize, item: &Item<Ask>) -> Ask {
        match (self.given(place), self.partial) {
            (Some(Ok(given)), _) => item.action.with_cost(given.cost),
            (_, Some(partial)) => item.action.with_partial(partial),
            (_, None) => item.action,
        }
    }
}

fn partial(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Option<Tokens> {
    let parts = items.iter().filter(|item| item.action.most().is_some());
    let partial = |item: &Item<Ask>| {
        if item.target.is_unlimited() { item.action.most() } else { ledger.account(&item.target).partial(item.action) }
    };
    parts.filter_map(partial).min()
}

fn given(ledger: &Ledger<'_>, items: &[Item<Ask>]) -> Vec<Option<Result<Piece, Lacking>>> {
    if !items.iter().any(|item| item.action.is_split()) {
        return Vec::new();
    }
    let of_items = |items: &[Item<Ask>]| {
        if items[0].target.is_unlimited() || !items[0].action.is_split() {
            return vec![None; items.len()];
        }
        let accounts: Vec<_> = items.iter().map(|item| (ledger.account(&item.target), item.action)).collect();
        match split(&accounts) {
            Ok(given) => given.into_iter().map(|given| Some(Ok(given))).collect(),
            Err(lacking) => vec![Some(Err(lacking)); items.len()],
        }
    };
    decided_together(items).flat_map(of_items).collect()
}

/// The tokens that an item takes.
struct ItemCharges {
    portions: Vec<Portion>,
    remaining: Tokens,
    ready_at: Timestamp,
    /// The instant of its rows: the clock, or the latest that one of them stands at.
    at: Timestamp,
}

impl ItemCharges {
    /// Takes nothing, for an item that is unlimited.
    fn nothing(at: Timestamp) -> Self {
        Self { portions: Vec::new(), remaining: Tokens::MAX, ready_at: at, at }
    }

    /// The charges of an item: one for each row that it takes from, and a charge of nothing where it asks for nothing.
    /// A lease counts from when all of the call is ready. A split charges only the limits that give something, behind
    /// `before`. Returns the sum of `before` and of these charges.
    fn charge(
        &mut self,
        item: &Item<Ask>,
        before: Tokens,
        waits: Option<Timestamp>,
        charges: &mut Vec<Charge>,
    ) -> Tokens {
        let Target { limit, rows, terms, .. } = &item.target;
        // No token is spent before all may be spent, so until then each charge can be cancelled.
        let ready_at = waits.map_or(self.at, |latest| latest.max(self.at));
        let is_unlimited = item.target.is_unlimited();
        let mut charge = Charge {
            version: 0,
            storage: limit.storage,
            limit: limit.name.clone(),
            key: rows.first.key.clone(),
            shard: 0,
            cost: Tokens::ZERO,
            before,
            flat: item.action.flat,
            kind: if is_unlimited { ChargeKind::Free } else { terms.flow.charge_kind() },
            until: None,
            refill: Tokens::ZERO,
            period: match terms.flow {
                Flow::Wallet => 0,
                // Later periods may be longer, and no row may be swept too early.
                Flow::Named { .. } => longest(terms.period),
                _ => terms.period,
            },
            lease: None,
            ready_at,
        };
        let takes_none = is_unlimited || item.action.cost() == Tokens::ZERO;
        let is_first = item.action.place.split.is_none_or(|place| place == 0 && takes_none);
        if self.portions.is_empty() && is_first {
            charges.push(charge.clone());
        }
        for Portion { shard, next, taken } in &mut self.portions {
            let terms = terms.shard(*shard, rows.count);
            (charge.shard, charge.cost, charge.refill) =
                (rows.first.after(*shard).shard, *taken, Tokens::from_micros(terms.rate));
            match charge.kind {
                ChargeKind::Bucket if next.list.period_end().is_none() => {}
                ChargeKind::Bucket | ChargeKind::Window => {
                    let until = terms.same_step_until(next, self.at);
                    charge.until = (until != ready_at).then_some(until);
                }
                ChargeKind::Sliding => charge.until = Some(terms.leaves_at(self.at)),
                ChargeKind::Lease => {
                    charge.lease = item.action.lease;
                    let ends_at = ready_at.after(terms.period);
                    charge.until = Some(ends_at);
                    next.lease_until(charge.lease, ends_at);
                }
                ChargeKind::Wallet | ChargeKind::Free => {}
            }
            charges.push(charge.clone());
            charge.before = charge.before.checked_add(*taken).unwrap_or(Tokens::MAX);
        }
        charge.before
    }
}
