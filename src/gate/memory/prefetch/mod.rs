#![expect(clippy::disallowed_methods, reason = "the monotonic clock measures the age of a slice")]

mod demand;
mod keys;
mod rounds;
mod slice;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::answer::decision::Grant;
use crate::answer::standing::Standing;
use crate::call::{Call, Request};
use crate::error::Error;
use crate::gate::memory::Touch;
use crate::gate::reply::{QueuedCall, Reply};
use crate::key::Key;
use crate::limit::{Limit, Storage};
use crate::overrides::{OverrideOf, Overrides};
use crate::parts::Parts;
use crate::plan::{Answer, Operation, Under, Verb};
use crate::tokens::Tokens;
use crate::values::clock::Clock;
use demand::BatchDemand;
use keys::{Cell, Followed, Keys};
use rounds::Rounds;
pub(crate) use slice::Ages;
use slice::{Paid, Slice};

/// Tokens taken ahead: for keys with many calls, this process's memory holds tokens that later calls will spend.
///
/// A batch that asks for such a key charges a **slice** for calls to come, as one more call of the batch. While the
/// slice lasts, calls are granted from memory. The call that spends the last of it, or is the first one after three
/// quarters of its time, has the next slice charged, and does not wait for it. The rest is given back, less the tokens
/// that time has brought back: with that charge, by a later batch that asks for the key, or alone if no call comes. A
/// slice leaves this table before its rest is sent, so it is given back at most once. If anything goes wrong after
/// that, the rest is forfeited, and no call is granted too much.
///
/// A call takes a read lock of one of many shards, and swaps one number. Only batches, and calls that have the
/// next slice charged, take a write lock. A settlement by this gate leaves slices alone: the tokens that it adds are
/// within the bound for settlements.
pub(crate) struct Prefetch {
    /// Whether it serves any limit. Else it holds nothing.
    pub(crate) is_on: bool,
    ages: Ages,
    parts: Parts,
    /// What the gate goes by, and its clock.
    overrides: Option<Overrides>,
    clock: Clock,
    keys: Keys,
    /// The number of the next slice.
    next_id: AtomicU64,
    /// How many connections have broken so far. After each, the table of ephemeral limits may be empty.
    breaks: AtomicU64,
    /// How long the last batch took, in microseconds, and whether an event has said that it is too long.
    batch_took: AtomicU64,
    said_slow: AtomicBool,
    /// Whether the gate is closed. Each call of this memory's own listens until it is answered.
    closed: watch::Sender<bool>,
    rounds: Rounds,
}

impl Prefetch {
    pub(crate) fn new(
        ages: Ages,
        parts: Parts,
        overrides: Option<Overrides>,
        clock: Clock,
        closed: watch::Sender<bool>,
    ) -> Self {
        Self {
            is_on: ages.shortest().is_some(),
            rounds: Rounds::new(ages.shortest()),
            ages,
            parts,
            overrides,
            clock,
            keys: Keys::new(),
            next_id: AtomicU64::new(1),
            breaks: AtomicU64::new(0),
            batch_took: AtomicU64::new(0),
            said_slow: AtomicBool::new(false),
            closed,
        }
    }

    /// Grants a call from memory, if all its tokens are there; else it takes nothing.
    pub(crate) fn grant(self: &Arc<Self>, call: &Call) -> Option<Grant> {
        let mut requests = call.plain()?;
        let (first, mut taken) = (self.take(requests.next()?, false)?, Vec::new());
        for request in requests {
            // Two requests for one key are one charge, which memory does not make.
            let is_another = |paid: &Paid| !paid.is_of(request);
            let is_new = taken.len() < FEW && is_another(&first) && taken.iter().all(is_another);
            let Some(other) = is_new.then(|| self.take(request, true)).flatten() else {
                taken.iter().chain([&first]).for_each(|taken| self.put_back(taken));
                return None;
            };
            taken.push(other);
        }
        taken.iter().chain([&first]).filter(|paid| paid.renews).for_each(|paid| self.renew(paid));
        Some(first.grant(taken))
    }

    fn take(&self, request: &Request, is_beside: bool) -> Option<Paid> {
        let asked = request.plain()?;
        let hash = self.keys.hash(asked.limit, asked.key);
        let shard = self.keys.read(hash);
        let known = shard.get(&hash).filter(|known| known.limit == *asked.limit && known.key == *asked.key)?;
        known.slice.as_ref()?.take(&asked, is_beside)
    }

    fn put_back(&self, taken: &Paid) {
        let hash = self.keys.hash(&taken.standing.limit, &taken.standing.key);
        let shard = self.keys.read(hash);
        let slice = shard.get(&hash).and_then(|known| known.slice.as_ref());
        // If the slice is gone by now, these tokens are forfeited with it.
        if let Some(slice) = slice.filter(|slice| slice.id == taken.id) {
            slice.put_back(taken);
        }
    }

    /// Has the next slice of a key charged, and the rest of this one given back.
    fn renew(self: &Arc<Self>, paid: &Paid) {
        let Standing { limit, key, cost, .. } = &paid.standing;
        let hash = self.keys.hash(limit, key);
        let mut shard = self.keys.write(hash);
        let is_spent = |known: &&mut Followed| known.slice.as_ref().is_some_and(|slice| slice.id == paid.id);
        let Some(known) = shard.get_mut(&hash).filter(is_spent) else { return };
        let before = self.detach(known);
        let next = self.take_ahead(known, hash, *cost, Instant::now());
        // A call that cannot be queued is answered at once, and its answer locks the shard.
        drop(shard);
        before.into_iter().chain(next).for_each(|call| self.rounds.send(call));
    }

    /// The tokens that lie in memory for a key.
    pub(crate) fn held(&self, limit: &Limit, key: &Key) -> Tokens {
        let hash = self.keys.hash(limit, key);
        let shard = self.keys.read(hash);
        let known = shard.get(&hash).filter(|known| known.is_of(limit, key));
        known.map_or(Tokens::ZERO, Followed::held)
    }

    /// Whether tokens lie in memory for a key that a call asks.
    pub(crate) fn holds(&self, call: &Operation) -> bool {
        self.is_on && Touch::of(call).any(|touch| self.held(touch.limit, touch.key) > Tokens::ZERO)
    }

    /// A batch of these calls, with the calls that go along: first those that give slices of their keys back, last
    /// those that take new slices. None of them is sent yet.
    pub(crate) fn accompany(self: &Arc<Self>, calls: Vec<QueuedCall>) -> Vec<QueuedCall> {
        let now = Instant::now();
        let of_callers = calls.iter().filter(|call| call.reply.has_caller()).map(|call| &call.call);
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        for (hash, asked) in BatchDemand::by(of_callers, &self.ages, |limit, key| self.keys.hash(limit, key)) {
            let mut shard = self.keys.write(hash);
            let Some(known) = self.know(&mut shard, hash, &asked, now) else { continue };
            if asked.differs || known.limit != *asked.limit {
                known.forfeit(asked.limit, now);
            }
            if known.demand.since == now {
                continue;
            }
            known.demand.add(asked.tokens, asked.calls);
            before.extend(self.detach(known));
            // A slice that is charged beside a raise would be forfeited.
            if asked.calls > 0 && !asked.replenishes {
                behind.extend(self.take_ahead(known, hash, asked.cost, now));
            }
        }
        if before.is_empty() && behind.is_empty() {
            return calls;
        }
        before.into_iter().chain(calls).chain(behind).collect()
    }

    /// The key that a batch asks. A new key that can be served is followed from now on, if there is room.
    fn know<'s>(
        &self,
        shard: &'s mut Cell,
        hash: u64,
        asked: &BatchDemand<'_>,
        now: Instant,
    ) -> Option<&'s mut Followed> {
        let (limit, key) = (asked.limit, asked.key);
        if shard.contains_key(&hash) {
            return shard.get_mut(&hash).filter(|known| known.is_of(limit, key));
        }
        let max_age = self.ages.of(limit);
        let new = (asked.calls > 0).then(|| Followed::new(limit, key, max_age, now))?;
        let followed = self.keys.follow(shard, hash, new)?;
        self.rounds.look_at(now + 2 * max_age, hash, 0);
        Some(followed)
    }

    /// Takes a key's slice out of memory. Returns the call that gives the rest back, if there is a rest.
    fn detach(&self, known: &mut Followed) -> Option<QueuedCall> {
        let slice = known.slice.take()?;
        let (tokens, calls) = slice.spent();
        known.demand.add(tokens, calls);
        let is_lost = known.limit.storage == Storage::Ephemeral && slice.breaks != self.breaks.load(Ordering::Relaxed);
        let rest = slice.rest().filter(|_| !is_lost)?;
        self.queued(&known.limit, Verb::GiveBack(known.request(), rest), |_| {})
    }

    /// The call that takes the expected tokens of a key ahead, if that is worth it.
    fn take_ahead(
        self: &Arc<Self>,
        known: &mut Followed,
        hash: u64,
        cost: Tokens,
        sent: Instant,
    ) -> Option<QueuedCall> {
        if known.is_pending || *self.closed.borrow() || self.is_slow(known.max_age) {
            return None;
        }
        let most = comes_back(&known.limit, known.max_age.max(SHORTLY));
        let wanted = known.demand.next(cost, most, known.max_age, sent);
        let least = cost.checked_add(cost)?;
        if wanted < least || cost == Tokens::ZERO {
            return None;
        }
        let (prefetch, forfeits, breaks) = (self.clone(), known.forfeits, self.breaks.load(Ordering::Relaxed));
        let opened = move |answer| prefetch.opened(hash, forfeits, breaks, sent, answer);
        let call = Verb::Ahead(known.request().cost(wanted).up_to(least));
        let queued = self.queued(&known.limit, call, opened);
        known.is_pending = queued.is_some();
        queued
    }

    /// Handles the answer to a charge for calls to come.
    fn opened(&self, hash: u64, forfeits: u64, breaks: u64, sent: Instant, answer: Result<Answer, Error>) {
        let mut shard = self.keys.write(hash);
        let Some(known) = shard.get_mut(&hash) else { return };
        known.is_pending = false;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let slice = answer.ok().and_then(|answer| Slice::of(answer, id, sent, known.max_age, breaks));
        known.demand.sliced(slice.as_ref().map_or(Tokens::ZERO, Slice::left));
        if let Some(slice) = slice.filter(|_| known.forfeits == forfeits) {
            known.slice = Some(Box::new(slice));
            self.rounds.look_at(sent + known.demand.quiet, hash, id);
        }
    }

    /// Forfeits the slice of a key, also one that is being charged: its row was raised, or its definition changes.
    pub(crate) fn forget(&self, limit: &Limit, key: &Key) {
        let hash = self.keys.hash(limit, key);
        if let Some(known) = self.keys.write(hash).get_mut(&hash).filter(|known| known.is_of(limit, key)) {
            known.forfeit(limit, Instant::now());
        }
    }

    /// Notes how long a batch took.
    pub(crate) fn saw(&self, took: Duration) {
        self.batch_took.store(took.as_micros().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Notes that a connection broke: ephemeral limits may have lost their rows.
    pub(crate) fn broke(&self) {
        self.breaks.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether batches take too much of the time in which a slice is spent.
    fn is_slow(&self, max_age: Duration) -> bool {
        let took = Duration::from_micros(self.batch_took.load(Ordering::Relaxed));
        let is_slow = took > max_age / 4;
        if is_slow && !self.said_slow.swap(true, Ordering::Relaxed) {
            tracing::warn!(?took, ?max_age, "batches take too long to take tokens ahead: raise max_age");
        }
        is_slow
    }

    /// Takes all slices out of memory. Returns the calls that give their rests back.
    pub(crate) fn give_back_all(&self) -> Vec<QueuedCall> {
        let mut calls = Vec::new();
        for mut shard in self.keys.shards() {
            calls.extend(shard.values_mut().filter_map(|known| self.detach(known)));
        }
        calls
    }

    /// A call that no caller waits for.
    fn queued(
        &self,
        limit: &Limit,
        verb: Verb,
        then: impl FnOnce(Result<Answer, Error>) + Send + 'static,
    ) -> Option<QueuedCall> {
        // A call that can never be granted is not made.
        let under = |overrides: Option<&OverrideOf<'_>>| {
            Operation::of(verb, &Under { overrides, parts: self.parts, ..Under::NOTHING }).ok()
        };
        let call = match &self.overrides {
            Some(overrides) => overrides.each(self.clock.at(), under),
            None => under(None),
        }?;
        let mut reply = Reply::then(limit.name.clone(), then);
        reply.owing = Some(self.closed.subscribe());
        Some(QueuedCall { call, reply, blocked_since: None })
    }
}

/// Slices that were not given back by now are forfeited.
impl Drop for Prefetch {
    fn drop(&mut self) {
        let holding = |shard: &Cell| shard.values().filter(|known| known.held() > Tokens::ZERO).count();
        let keys: usize = self.keys.shards().map(|shard| holding(&shard)).sum();
        if keys > 0 {
            tracing::warn!(keys, "a gate was dropped without being closed: what it had taken ahead is forfeited");
        }
    }
}

/// The tokens that the rate of a limit brings back in such a span. For a limit that refills in steps it is a share of a
/// step, because a step falls due whether or not tokens were lost.
fn comes_back(limit: &Limit, span: Duration) -> Tokens {
    let micros =
        |span: Duration| i128::try_from(span.as_micros()).expect("a gate knows no span beyond a thousand years");
    let most = i128::from(limit.rate.micros()) * micros(span) / micros(limit.period).max(1);
    Tokens::from_micros(i64::try_from(most).unwrap_or(i64::MAX))
}

/// A slice holds no more tokens than come back in this span, or in `max_age` if that is longer. An accident that loses
/// the slice sets its key back by as long. With 100 000 tokens at one a minute, a sixteenth takes four days to come
/// back.
const SHORTLY: Duration = Duration::from_secs(10);

/// A call with more requests asks the database.
const FEW: usize = 16;
