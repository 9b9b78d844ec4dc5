use std::collections::HashMap;
use std::ptr;
use std::time::Duration;

use super::alternatives::{alternatives, decided_together, enforced, exceeded, keep_right, possible};
use super::exception::Exception;
use super::item::{Alteration, End, Item, OwnRow, Role, Settling, Target};
use super::row::Row;
use crate::algebra::{Ask, Flow, Rest, Timestamp};
use crate::call_error::CallError;
use crate::call_name::{CallName, Drawn, Keeping, Once};
use crate::error::Error;
use crate::hash::stable_hash;
use crate::key::Key;
use crate::limit::{Limit, LimitKind};
use crate::parts::Parts;
use crate::receipt::{Charge, ChargeKind, Receipt, by_request};
use crate::request::{CheckedRequest, Request};
use crate::stored_call::CallRow;
use crate::text::Text;
use crate::tokens::{Tokens, TokensError};

/// What one caller asks: tokens from every limit or from none, or a change that always succeeds.
///
/// A wrong request is reported by [`Plan::new`](super::Plan::new).
#[derive(Debug)]
#[must_use = "a call does nothing until it is planned"]
pub struct Call {
    checked: Result<CheckedCall, Error>,
}

impl Call {
    /// Takes tokens from every limit, or from none.
    pub fn consume(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::consume, Action::Take) }
    }

    /// Takes tokens from every limit, now or for later, or from none.
    pub fn reserve(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::reserve, Action::Take) }
    }

    /// Says whether tokens could be taken from every limit, and takes none.
    pub fn check(requests: impl IntoIterator<Item = Request>) -> Self {
        Self { checked: asks(requests, Ask::consume, Action::Check) }
    }

    /// Takes tokens for calls to come, for good: a sixteenth of what is there, and no more than the cost; or nothing
    /// where that is less than the least of [`Request::up_to`].
    pub fn ahead(request: Request) -> Self {
        let ahead = |mut items: Vec<Item<Ask>>| {
            for item in &mut items {
                item.action = item.action.ahead();
            }
            Action::Take(items)
        };
        Self { checked: asks([request], Ask::consume, ahead) }
    }

    /// Gives back what was taken ahead and not spent, as far as time has not brought it back. Nothing to a missing row.
    /// It must be asked once at most.
    pub fn give_back(request: Request, rest: Rest) -> Self {
        let give_back = |request| CheckedCall::of_one(request, Alteration::GiveBack(rest));
        Self { checked: request.checked().map(give_back) }
    }

    /// Gives tokens back, up to the capacity.
    pub fn credit(request: Request) -> Self {
        Self { checked: request.checked().and_then(|request| alter(request, Alteration::Credit)) }
    }

    /// Takes tokens, whatever is there.
    pub fn debit(request: Request) -> Self {
        Self { checked: request.checked().and_then(|request| alter(request, Alteration::Debit)) }
    }

    /// Fills a key up, and brings a row from the future back to the present.
    pub fn reset(request: Request) -> Self {
        Self { checked: request.checked().map(|request| CheckedCall::of_one(request, Alteration::Reset)) }
    }

    /// Reads a balance.
    pub fn look(request: Request) -> Self {
        Self { checked: request.checked().map(|request| CheckedCall::of_one(request, Alteration::Look)) }
    }

    /// Brings each request of a receipt to its actual cost: the difference is given back or taken, whatever is there. A
    /// lease ends, and what is [flat](Request::flat) stays as it is.
    ///
    /// One request may have charged several rows. Each is settled at what earlier ones leave of the cost, up to what it
    /// was charged; the last one takes what lies above.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    pub fn settle(receipt: Receipt, actual: Tokens) -> Self {
        settle(&receipt, |_, charges| Ok(charges[0].is_counted().then_some(actual)))
    }

    /// The same with a cost for each request, in the order asked.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is used up by move")]
    pub fn settle_each(receipt: Receipt, costs: &[Tokens]) -> Self {
        let requests = receipt.by_request().count();
        settle(&receipt, |request, charges| {
            let missing = CallError::CostsMissing { costs: costs.len(), requests };
            if costs.len() == requests { Ok(Some(costs[request])) } else { Err(fault(&charges[0].limit, missing)) }
        })
    }

    /// Gives back each charge of a receipt that is not ready to be spent. A lease ends.
    pub fn cancel(receipt: Receipt) -> Self {
        Self {
            checked: Settling::of(receipt.charges, End::Cancelled)
                .and_then(|call| call.using(receipt.call, receipt.lapses_at)),
        }
    }

    /// Lets each lease of a receipt last for its limit's period from now on. Its other charges stay as they are.
    pub fn renew(receipt: &Receipt) -> Self {
        Self { checked: Settling::of(receipt.leases().cloned().collect(), End::Renewed) }
    }

    /// Ends each lease of a receipt. Its other charges stay as they are.
    pub fn release(receipt: &Receipt) -> Self {
        Self { checked: Settling::of(receipt.leases().cloned().collect(), End::Released) }
    }

    /// Gives back what a stored call took and did not report, if it is due. Otherwise nothing changes.
    pub fn lapse(row: CallRow) -> Self {
        let lapse = |call| CheckedCall { stored: Some(Box::new(OwnRow { name: row.name, role: Role::Lapse })), ..call };
        Self { checked: Settling::of(row.charges, End::Reported).map(lapse) }
    }

    /// Whether [`with_id`](Self::with_id) must name something: a lease, or a stored call without an id of its caller's.
    #[must_use]
    pub fn needs_id(&self) -> bool {
        self.checked.as_ref().is_ok_and(|call| {
            let leases = |item: &Item<Ask>| item.target.limit.lease().is_some();
            matches!(&call.action, Action::Take(items) if call.is_fresh() || items.iter().any(leases))
        })
    }

    /// Names the leases of this call, and its row where [`Request::once`] does not. An id is never used again: a
    /// `Limiter` and a `Gate` draw one for each call, of the time and of chance.
    pub fn with_id(mut self, id: u128) -> Self {
        if let Ok(call) = &mut self.checked
            && let Action::Take(items) = &mut call.action
        {
            for item in items.iter_mut().filter(|item| item.target.limit.lease().is_some()) {
                item.action = item.action.named(Drawn(id));
            }
            if call.is_fresh()
                && let Some(stored) = &mut call.stored
            {
                stored.name.id = Drawn(id).to_string().into();
            }
        }
        self
    }

    /// The same under the override of each limit and key that it asks.
    pub fn under(mut self, mut said: impl FnMut(&Limit, &Key) -> Option<Exception>) -> Self {
        for target in self.checked.iter_mut().flat_map(CheckedCall::targets_mut) {
            if let Some(exception) = said(&target.limit, target.key()) {
                target.except(exception);
            }
        }
        // A cost that is split takes from the others what is not unlimited: nothing.
        let items = match &mut self.checked {
            Ok(CheckedCall { action: Action::Take(items) | Action::Check(items), .. }) => items.as_mut_slice(),
            _ => &mut [],
        };
        for together in items.chunk_by_mut(|_, next| next.action.continues_split()) {
            if together.iter().any(|item| item.target.is_free()) {
                for item in together {
                    item.target.free();
                }
            }
        }
        self
    }

    /// The call, if it is right.
    pub(crate) fn checked(self) -> Result<CheckedCall, Error> {
        let mut call = self.checked?;
        if call.first_rows().next().is_none() {
            return Err(Error::Call { limit: None, source: CallError::NothingAsked });
        }
        // One that is perhaps a repeat is answered as before, also under numbers that grant it no more.
        let is_once = call.is_once();
        if let Action::Take(items) | Action::Check(items) = &mut call.action
            && !is_once
        {
            keep_right(items, possible)?;
        }
        Ok(call)
    }

    /// The call, if it is right, over tables with so many parts.
    pub(crate) fn checked_for(self, parts: Parts) -> Result<CheckedCall, Error> {
        let mut call = self.checked()?;
        if parts.is_distributed() {
            call.first_rows_mut().for_each(|row| row.part = parts.of(&row.key));
            if let Some(stored) = &mut call.stored {
                stored.name.part = parts.of(&stored.name.key);
            }
        }
        Ok(call)
    }
}

/// A call that can be decided: nothing is wrong with what it asks.
#[derive(Clone, Debug)]
pub(crate) struct CheckedCall {
    pub(super) action: Action,
    /// The row that it has for itself, if it has one.
    pub(super) stored: Option<Box<OwnRow>>,
}

/// What a call does to a limit and key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch<'c> {
    pub(crate) limit: &'c Limit,
    pub(crate) key: &'c Key,
    /// A cost to pay at once, if that is all.
    pub(crate) pays: Option<Tokens>,
    /// Whether it gives what nobody has charged.
    pub(crate) replenishes: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// The first alternative that is granted, all or nothing; each limit and key once in it.
    Take(Vec<Item<Ask>>),
    /// What a `Take` would come to.
    Check(Vec<Item<Ask>>),
    Alter(Item<Alteration>),
    /// All or nothing.
    Settle(Settling),
}

impl CheckedCall {
    fn of_one(CheckedRequest { limit, key, period, .. }: CheckedRequest, action: Alteration) -> Self {
        Self { action: Action::Alter(Item { target: Target::new(limit, key, period), action }), stored: None }
    }

    /// The same, which uses up a stored call.
    fn using(mut self, name: Option<CallName>, lapses_at: Option<Timestamp>) -> Result<Self, Error> {
        if let Some(name) = name {
            if !name.is_right() {
                return Err(fault(&name.name, CallError::CorruptReceipt));
            }
            self.stored = Some(Box::new(OwnRow { name, role: Role::Use { lapses_at } }));
        }
        Ok(self)
    }

    /// The name of its row.
    pub(super) fn name(&self) -> Option<&CallName> {
        self.stored.as_ref().map(|stored| &stored.name)
    }

    /// Whether its row has no id of its caller's, so that nobody has written it before.
    pub(super) fn is_fresh(&self) -> bool {
        self.stored.as_ref().is_some_and(|stored| matches!(stored.role, Role::Write { once: None, .. }))
    }

    /// Whether it settles what was charged before.
    pub(crate) fn settles(&self) -> bool {
        matches!(self.action, Action::Settle(_))
    }

    /// The stored call that it uses up, as its receipt tells of it, where that says all that it needs: costs are the
    /// same whether the call lapses, and how much of it was reported.
    pub(super) fn assumed(&self) -> Option<CallRow> {
        let Action::Settle(Settling { charges, end: End::Costs(_), .. }) = &self.action else { return None };
        let OwnRow { name, role: Role::Use { .. } } = self.stored.as_deref()? else { return None };
        Some(CallRow {
            name: name.clone(),
            asked: 0,
            charges: charges.clone(),
            charged_at: Timestamp::MIN,
            reported: Tokens::ZERO,
            lapses_at: None,
            kept_until: Timestamp::MIN,
            used: false,
            answer: None,
        })
    }

    /// After how long what it takes comes back by itself, if it does.
    pub(crate) fn lapses(&self) -> Option<Duration> {
        let Role::Write { keeping: Some(keeping), .. } = self.stored.as_ref()?.role else { return None };
        keeping.lapses().then(|| keeping.span())
    }

    /// Whether it was perhaps carried out before.
    pub(crate) fn is_once(&self) -> bool {
        self.stored.is_some() && !self.is_fresh()
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        let (asks, altered) = match &self.action {
            Action::Take(items) | Action::Check(items) => (items.as_slice(), None),
            Action::Alter(item) => ([].as_slice(), Some(&item.target)),
            Action::Settle(_) => ([].as_slice(), None),
        };
        asks.iter().map(|item| &item.target).chain(altered)
    }

    fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (asks, altered) = match &mut self.action {
            Action::Take(items) | Action::Check(items) => (items.as_mut_slice(), None),
            Action::Alter(item) => ([].as_mut_slice(), Some(&mut item.target)),
            Action::Settle(_) => ([].as_mut_slice(), None),
        };
        asks.iter_mut().map(|item| &mut item.target).chain(altered)
    }

    /// The rows that it settles.
    pub(super) fn settled(&self) -> &[Row] {
        if let Action::Settle(settling) = &self.action { &settling.rows } else { &[] }
    }

    /// The first row of each limit and key that it asks, or each row that it settles.
    pub(crate) fn first_rows(&self) -> impl Iterator<Item = &Row> {
        self.targets().map(|target| &target.first).chain(self.settled())
    }

    /// How many rows it asks for behind each of these, and with it.
    pub(super) fn widths(&self) -> impl Iterator<Item = usize> {
        self.targets().map(|target| target.rows).chain(self.settled().iter().map(|_| 1))
    }

    /// Whether it may insert a row: whether it takes more than nothing, or more than was charged, or gives money back.
    pub(super) fn inserts(&self) -> bool {
        match &self.action {
            Action::Take(items) => items.iter().any(|item| item.action.cost() > Tokens::ZERO && !item.target.is_free()),
            Action::Check(_) => false,
            Action::Alter(Item { target, action }) => match action {
                Alteration::Debit(cost) => *cost > Tokens::ZERO,
                Alteration::Credit(_) => target.limit.kind == LimitKind::Wallet,
                Alteration::GiveBack(_) | Alteration::Look | Alteration::Reset => false,
            },
            Action::Settle(settling) => settling.inserts(),
        }
    }

    /// The limit that stands for the call in traces and errors: the first that was asked.
    pub(crate) fn limit(&self) -> &Text {
        &self.first_rows().next().expect("a checked call asks something").name
    }

    /// The first stale shard of the limit and key that it resets.
    pub(super) fn stale(&self) -> Option<Row> {
        match &self.action {
            Action::Alter(Item { target, action: Alteration::Reset }) => Some(target.first.after(target.rows)),
            _ => None,
        }
    }

    fn first_rows_mut(&mut self) -> impl Iterator<Item = &mut Row> {
        let (asks, altered, settled) = match &mut self.action {
            Action::Take(items) | Action::Check(items) => (items.as_mut_slice(), None, [].as_mut_slice()),
            Action::Alter(item) => ([].as_mut_slice(), Some(&mut item.target.first), [].as_mut_slice()),
            Action::Settle(settling) => ([].as_mut_slice(), None, settling.rows.as_mut_slice()),
        };
        asks.iter_mut().map(|item| &mut item.target.first).chain(altered).chain(settled)
    }

    /// The part that all its rows lie in; `None` for a call over several parts.
    pub(crate) fn part(&self) -> Option<u16> {
        let mut parts = self.first_rows().map(|row| row.part);
        let first = parts.next();
        first.filter(|first| parts.all(|part| part == *first))
    }

    /// Its alternatives: what may refuse each.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = &[Item<Ask>]> {
        let asked = if let Action::Take(items) | Action::Check(items) = &self.action { items } else { [].as_slice() };
        alternatives(asked).map(enforced)
    }

    /// That one actual cost can settle what it takes: in each alternative, requests that are counted cost the same.
    pub(crate) fn expect_one_cost(&self) -> Result<(), Error> {
        let Action::Take(items) = &self.action else { return Ok(()) };
        let is_counted =
            |item: &Item<Ask>| !item.action.flat && !item.target.is_free() && item.target.limit.lease().is_none();
        let is_one_cost = |items: &[Item<Ask>]| {
            let mut asked = decided_together(items).map(|items| &items[0]).filter(|item| is_counted(item));
            let first = asked.next();
            asked.all(|item| first.is_some_and(|first| item.action.is_charged_as(first.action)))
        };
        if alternatives(items).all(is_one_cost) { Ok(()) } else { Err(fault(self.limit(), CallError::MixedCosts)) }
    }

    /// The same, without alternatives behind this one.
    pub(super) fn up_to(&self, alternative: usize) -> Self {
        let mut call = self.clone();
        if let Action::Take(items) | Action::Check(items) = &mut call.action {
            items.retain(|item| item.action.place.alternative.is_none_or(|number| number <= alternative));
        }
        call
    }

    /// What it does to each limit and key that it asks, for who holds tokens of them; nothing where it settles.
    pub(crate) fn touches(&self) -> impl Iterator<Item = Touch<'_>> {
        let items = if let Action::Take(items) = &self.action { items.as_slice() } else { &[] };
        // Of what is overridden nothing is taken ahead.
        let plain = |item: &&Item<Ask>| {
            let is_named = matches!(item.target.terms.flow, Flow::Named { .. });
            item.action.is_plain() && !is_named && !item.target.is_overridden()
        };
        let mut pays = items
            .iter()
            .map(move |item| Some(item).filter(plain).filter(|_| self.stored.is_none()).map(|item| item.action.cost()));
        let altered = if let Action::Alter(item) = &self.action { Some(item.action) } else { None };
        let replenishes = matches!(altered, Some(Alteration::Credit(_) | Alteration::Reset));
        self.targets().map(move |target| Touch {
            limit: &target.limit,
            key: target.key(),
            pays: pays.next().flatten(),
            replenishes,
        })
    }

    /// The rows that it may raise, and whether what it gives there was held.
    pub(crate) fn raises(&self) -> impl Iterator<Item = (&Row, bool)> {
        let altered = self.targets().filter(|_| self.raises_balance());
        let altered = altered.map(|target| (&target.first, target.limit.lease().is_some()));
        let settling = if let Action::Settle(settling) = &self.action { Some(settling) } else { None };
        altered.chain(settling.into_iter().flat_map(Settling::raises))
    }

    /// Whether it asks a limit that counts its holders.
    pub(crate) fn is_held(&self) -> bool {
        self.alternatives().flatten().any(|item| item.target.limit.lease().is_some())
    }

    /// The others that the cost of an item of it is split over.
    pub(crate) fn split_with<'c>(&'c self, item: &'c Item<Ask>) -> impl Iterator<Item = &'c Item<Ask>> {
        let mut together = self.alternatives().flat_map(decided_together);
        let of_item = together.find(move |items| items.iter().any(|other| ptr::eq(other, item)));
        of_item.into_iter().flatten().filter(move |other| !ptr::eq(*other, item))
    }

    /// Whether the same overrides apply to it as to another of the same requests.
    pub(crate) fn is_overridden_as(&self, other: &Self) -> bool {
        self.targets().map(Target::overridden).eq(other.targets().map(Target::overridden))
    }

    /// What it is granted where everything is.
    pub(crate) fn most(&self) -> Tokens {
        let (Action::Take(items) | Action::Check(items)) = &self.action else { return Tokens::ZERO };
        let part = alternatives(items).next().and_then(|items| items.iter().find_map(|item| item.action.most()));
        part.unwrap_or_else(|| items[0].action.cost())
    }

    /// How many rows it asks for.
    pub(crate) fn rows(&self) -> usize {
        self.widths().sum()
    }

    /// How many keys of limits it asks for.
    pub(crate) fn keys(&self) -> usize {
        self.first_rows().count()
    }

    /// Whether it may raise a balance.
    pub(crate) fn raises_balance(&self) -> bool {
        match &self.action {
            Action::Take(_) | Action::Check(_) => false,
            Action::Alter(item) => !matches!(item.action, Alteration::Debit(_) | Alteration::Look),
            Action::Settle(settling) => !matches!(settling.end, End::Renewed),
        }
    }

    /// The same call on a fraction of each limit, from 0 to 1, in one row each: nobody waits for a lock in memory.
    /// Without the alternatives that the fraction could never grant, and those of what memory cannot take back: leases
    /// and money. `None` where none is left. Nothing is tried out.
    pub(crate) fn fraction(mut self, fraction: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number up to a million; NaN is 0")]
        let millionths = (fraction.clamp(0.0, 1.0) * 1e6).floor() as i64;
        let (Action::Take(items) | Action::Check(items)) = &mut self.action else { return None };
        items.retain(|item| !item.action.shadow);
        for item in items.iter_mut() {
            item.target.terms = item.target.terms.fraction(millionths);
            (item.target.rows, item.target.limit) = (1, item.target.limit.clone().shards(1));
        }
        let is_no_bucket =
            |item: &Item<Ask>| matches!(item.target.limit.kind, LimitKind::Concurrency | LimitKind::Wallet);
        let check =
            |items: &[Item<Ask>]| if items.iter().any(is_no_bucket) { Err(()) } else { possible(items).map_err(drop) };
        keep_right(items, check).is_ok().then_some(Self { stored: None, ..self })
    }

    /// What each of its alternatives asks, where one row's balance can refuse it: it takes or checks without reserving,
    /// has not been granted before, and the limit has one row, from which nothing is released, and gives all of the
    /// cost.
    pub(crate) fn refusable(&self) -> impl Iterator<Item = impl Iterator<Item = &Item<Ask>>> {
        let escapes = self.is_once()
            || self.alternatives().flatten().any(|item| item.action.is_reserving() || item.action.is_ahead());
        let is_certain = |item: &&Item<Ask>| {
            let is_sole = item.target.rows == 1 && !item.action.is_split();
            is_sole && item.target.limit.lease().is_none() && item.target.ruling().is_none()
        };
        self.alternatives().filter(move |_| !escapes).map(move |items| items.iter().filter(is_certain))
    }
}

impl Settling {
    /// The rows that may hold more when it is done, and whether a lease ends there.
    fn raises(&self) -> impl Iterator<Item = (&Row, bool)> {
        let charged = self.charges.iter().zip(&self.rows).enumerate();
        charged
            .filter(|(place, (charge, _))| self.gives_back(*place, charge))
            .map(|(_, (charge, row))| (row, charge.kind == ChargeKind::Lease))
    }

    fn gives_back(&self, place: usize, charge: &Charge) -> bool {
        match (&self.end, charge.kind) {
            (_, ChargeKind::Free) | (End::Renewed, _) | (End::Reported, ChargeKind::Lease) => false,
            (End::Costs(costs), kind) => kind == ChargeKind::Lease || costs[place] < charge.cost,
            (End::Cancelled | End::Reported | End::Released, _) => true,
        }
    }

    fn of(charges: Vec<Charge>, end: End) -> Result<CheckedCall, Error> {
        if let Some(charge) = charges.iter().find(|charge| !charge.is_right()) {
            return Err(fault(&charge.limit, CallError::CorruptReceipt));
        }
        let rows = charges.iter().map(Row::of_charge).collect();
        Ok(CheckedCall { action: Action::Settle(Self { charges, rows, end }), stored: None })
    }

    /// What was reported of a call may be more than it was charged.
    fn inserts(&self) -> bool {
        let takes_more = match &self.end {
            End::Costs(costs) => self.charges.iter().zip(costs).any(|(charge, cost)| charge.cost < *cost),
            End::Reported => true,
            End::Cancelled | End::Released | End::Renewed => false,
        };
        takes_more || self.charges.iter().any(|charge| charge.kind == ChargeKind::Wallet)
    }
}

/// What each charge comes to, where each request comes to a cost: at most what was charged, but the last charge of a
/// request takes what lies above. A request without a cost stays as it is.
pub(super) fn line(charges: &[Charge], costs: impl Iterator<Item = Option<Tokens>>) -> Vec<Tokens> {
    let of_request = |(charges, cost): (&[Charge], Option<Tokens>)| {
        let last = charges.len() - 1;
        let of_charge = move |(place, charge): (usize, &Charge)| {
            let Some(cost) = cost else { return charge.cost };
            // Neither is negative: the difference fits.
            let left = Tokens::from_micros((cost.micros() - charge.before.micros()).max(0));
            if place == last { left } else { left.min(charge.cost) }
        };
        charges.iter().enumerate().map(of_charge).collect::<Vec<_>>()
    };
    by_request(charges).zip(costs).flat_map(of_request).collect()
}

fn settle(receipt: &Receipt, cost: impl Fn(usize, &[Charge]) -> Result<Option<Tokens>, Error>) -> Call {
    let costs = || {
        let of_request = |(place, charges): (usize, &[Charge])| {
            let cost = cost(place, charges)?;
            cost.map_or(Ok(()), |cost| not_negative(&charges[0].limit, cost)).map(|()| cost)
        };
        let costs = receipt.by_request().enumerate().map(of_request).collect::<Result<Vec<_>, Error>>()?;
        let costs = line(&receipt.charges, costs.into_iter());
        Settling::of(receipt.charges.clone(), End::Costs(costs))?.using(receipt.call.clone(), receipt.lapses_at)
    };
    Call { checked: costs() }
}

/// A cost that came from outside.
fn not_negative(limit: &Text, cost: Tokens) -> Result<(), Error> {
    if cost.is_negative() {
        return Err(fault(limit, CallError::Cost(TokensError::Negative)));
    }
    Ok(())
}

/// A credit or a debit: of no limit that counts who holds it, and with nothing to settle.
fn alter(request: CheckedRequest, alteration: fn(Tokens) -> Alteration) -> Result<CheckedCall, Error> {
    let source = match request.consumed_with().or(request.shadow.then_some("shadow")) {
        Some(option) => CallError::NotConsumed { option },
        None if request.limit.lease().is_some() => CallError::Counted,
        None if request.keeping.is_some() => CallError::WithoutReceipt,
        None => {
            let (cost, once) = (request.cost, request.once.clone());
            let mut call = CheckedCall::of_one(request, alteration(cost));
            if let (Some(Once { id, span }), Action::Alter(item)) = (once, &call.action) {
                let verb = if matches!(item.action, Alteration::Credit(_)) { b'c' } else { b'd' };
                let asked = print(verb, None, [(&item.target.first, Ask::consume(cost))].into_iter());
                let name = name(&item.target.first, String::from(id).into());
                let role = Role::Write { asked, keeping: None, once: Some(span) };
                call.stored = Some(Box::new(OwnRow { name, role }));
            }
            return Ok(call);
        }
    };
    Err(fault(&request.limit.name, source))
}

fn asks(
    requests: impl IntoIterator<Item = Request>,
    ask: fn(Tokens) -> Ask,
    action: fn(Vec<Item<Ask>>) -> Action,
) -> Result<CheckedCall, Error> {
    asks_in_turn(&mut requests.into_iter(), ask, action)
}

/// The same, compiled once, however the requests come.
fn asks_in_turn(
    requests: &mut dyn Iterator<Item = Request>,
    ask: fn(Tokens) -> Ask,
    action: fn(Vec<Item<Ask>>) -> Action,
) -> Result<CheckedCall, Error> {
    let mut items = Items { asked: Vec::with_capacity(requests.size_hint().0.min(FEW)), ..Items::default() };
    // What some request says for the whole call, or for its alternative.
    let (mut keeping, mut once, mut part, mut last) = (None, None, None, None);
    for request in requests {
        let request = request.checked()?;
        let option = request.consumed_with();
        let CheckedRequest { limit, key, cost, least, leaving, keeping: kept, once: id, flat, shadow, period, place } =
            request;
        let conflict = |source| fault(&limit.name, source);
        if let Some(fault) = place.fault(last.replace(place)) {
            return Err(conflict(fault));
        }
        if let Some(kept) = kept
            && *keeping.get_or_insert(kept) != kept
        {
            return Err(conflict(CallError::SpansDiffer));
        }
        if id.is_some() && once.is_some() {
            return Err(conflict(CallError::TwoIds));
        }
        let asked = ask(cost).up_to(least).leaving(leaving).marked(flat, shadow).at(place);
        if let Some(option) = option.filter(|_| asked.is_reserving()) {
            return Err(conflict(CallError::NotConsumed { option }));
        }
        if least.is_some() {
            let (of, agreed) = *part.get_or_insert((place.alternative, (cost, least)));
            if of != place.alternative {
                part = Some((place.alternative, (cost, least)));
            } else if agreed != (cost, least) {
                return Err(conflict(CallError::PartsDiffer));
            }
        }
        let item = Item { target: Target::new(limit, key, period), action: asked };
        once = once.or(id.map(|id| (item.target.first.clone(), id)));
        items.add(item)?;
    }
    let items = items.all()?;
    let stored = stored(&items, keeping, once).map(Box::new);
    Ok(CheckedCall { action: action(items), stored })
}

/// The row of a call that takes, if it asks for one.
fn stored(items: &[Item<Ask>], keeping: Option<Keeping>, once: Option<(Row, Once)>) -> Option<OwnRow> {
    if keeping.is_none() && once.is_none() {
        return None;
    }
    let verb = if items.iter().any(|item| item.action.is_reserving()) { b'r' } else { b't' };
    let asked = items.iter().map(|item| (&item.target.first, item.action));
    let asked = print(verb, keeping, asked);
    let (name, once) = match once {
        Some((row, Once { id, span })) => (name(&row, String::from(id).into()), Some(span)),
        None => (name(items.iter().map(|item| &item.target.first).min()?, Drawn::default().to_string().into()), None),
    };
    Some(OwnRow { name, role: Role::Write { asked, keeping, once } })
}

fn name(row: &Row, id: Text) -> CallName {
    CallName { part: row.part, name: row.name.clone(), key: row.key.clone(), id }
}

/// The fingerprint of a call, in whatever order it names its requests. Rows keep it, so every release and platform must
/// compute the same one.
fn print<'r>(verb: u8, keeping: Option<Keeping>, requests: impl Iterator<Item = (&'r Row, Ask)>) -> i64 {
    let kept = keeping.map_or((0, 0), |keeping| (keeping.span().as_micros(), u8::from(keeping.lapses()) + 1));
    let of_call = stable_hash([verb, kept.1].into_iter().chain(kept.0.to_le_bytes()));
    let of_request = |(row, ask): (&Row, Ask)| {
        let names = row.name().bytes().chain([0xFF]).chain(row.key.as_str().bytes()).chain([0xFF]);
        stable_hash(names.chain(ask.print()))
    };
    requests.map(of_request).fold(of_call, u64::wrapping_add).cast_signed()
}

/// The items of a call while its requests are added up.
#[derive(Default)]
struct Items {
    /// Those of alternatives before the last.
    before: Vec<Item<Ask>>,
    /// What the last alternative asks.
    asked: Vec<Item<Ask>>,
    /// Where the items of a long alternative are: to search them each time would take the square of their number.
    places: HashMap<Row, usize>,
    /// What the last alternative tries out.
    shadows: Vec<Item<Ask>>,
}

impl Items {
    fn add(&mut self, item: Item<Ask>) -> Result<(), Error> {
        let last = self.asked.first().or(self.shadows.first());
        if last.is_some_and(|last| last.action.place.alternative != item.action.place.alternative) {
            self.end_alternative()?;
        }
        if item.action.shadow {
            self.shadows.push(item);
            return Ok(());
        }
        self.add_up(item)
    }

    fn all(mut self) -> Result<Vec<Item<Ask>>, Error> {
        if self.before.is_empty() && self.shadows.is_empty() {
            return Ok(self.asked);
        }
        self.end_alternative()?;
        Ok(self.before)
    }

    fn end_alternative(&mut self) -> Result<(), Error> {
        if let ([], [shadow, ..]) = (&*self.asked, &*self.shadows)
            && shadow.action.place.alternative.is_some()
        {
            return Err(fault(&shadow.target.limit.name, CallError::OnlyShadows));
        }
        self.places.clear();
        self.before.append(&mut self.asked);
        self.before.append(&mut self.shadows);
        Ok(())
    }

    /// Adds an item, or adds its cost to the item that asks the same limit and key already.
    fn add_up(&mut self, item: Item<Ask>) -> Result<(), Error> {
        let Self { asked, places, .. } = self;
        let place = if asked.len() < FEW {
            asked.iter().position(|other| other.target.first.is_of_same_key(&item.target.first))
        } else {
            for (place, item) in asked.iter().enumerate().skip(places.len()) {
                places.insert(item.target.first.in_one_table(), place);
            }
            places.get(&item.target.first.in_one_table()).copied()
        };
        let previous = asked.last().map(|previous| previous.action.flat);
        let Some(other) = place.map(|place| &mut asked[place]) else {
            if item.action.continues_split() && previous != Some(item.action.flat) {
                return Err(fault(&item.target.limit.name, CallError::FlatDiffers));
            }
            asked.push(item);
            return Ok(());
        };
        if item.action.is_split() || other.action.is_split() {
            return Err(fault(&item.target.limit.name, CallError::SplitTwice));
        }
        if (&other.target.limit, other.target.terms) != (&item.target.limit, item.target.terms) {
            return Err(fault(&item.target.limit.name, CallError::ConflictingDefinitions));
        }
        if other.action.flat != item.action.flat {
            return Err(fault(&item.target.limit.name, CallError::FlatDiffers));
        }
        // A sum that does not fit is beyond every capacity.
        other.action = other
            .action
            .checked_add(item.action)
            .ok_or_else(|| exceeded(other, Tokens::MAX, other.action.max_cost(&other.target.terms)))?;
        Ok(())
    }
}

fn fault(limit: &Text, source: CallError) -> Error {
    Error::Call { limit: Some(limit.clone().into()), source }
}

/// So many items are searched faster than they are looked up.
const FEW: usize = 16;
