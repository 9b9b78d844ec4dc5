use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{iter, mem};

use futures_util::future::{Either, select};
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;

use super::line::{Line, Place, Sleep, look};
use super::{Lines, Waiters};
use crate::algebra::{Ask, Timestamp};
use crate::answer::decision::{Decision, Denied, Grant, Reason, Source};
use crate::plan::{Item, Operation};
use crate::values::lock::lock;

/// One of the callers. When it is dropped, it no longer waits.
pub(crate) struct Waiter<'w> {
    waiters: &'w Waiters,
    number: u64,
    /// Wakes it when it comes first in a line.
    woken: Arc<Notify>,
    places: Vec<Place>,
    /// When it began to ask last.
    asked: Instant,
}

/// The next step of a caller.
pub(crate) enum Turn {
    /// It asks, because its tokens are there, or to see whether they are.
    Ask { is_early: bool },
    /// The overrides have changed.
    Changed,
    /// Its timeout has ended.
    Late,
    /// The gate is closed.
    Closed,
}

/// How a caller stands in its lines.
enum InLine {
    Turn(Turn),
    /// Others are before it.
    Queue,
    /// It is first somewhere. `is_certain`: its tokens come at an instant that is known, and not before.
    Sleep {
        sleep: Sleep,
        is_certain: bool,
    },
}

impl<'w> Waiter<'w> {
    pub(super) fn new(waiters: &'w Waiters, number: u64) -> Self {
        let (woken, asked) = (Arc::new(Notify::new()), Instant::now());
        Self { waiters, number, woken, places: Vec::new(), asked }
    }

    /// Takes a place in a line of each alternative, if each has a line. If an alternative has no line, and its row is
    /// not left to others, the caller asks at once.
    pub(crate) fn join(&mut self, call: &Operation) -> bool {
        let mut lines = lock(&self.waiters.lines);
        let has_line = |item: &&Item<Ask>| {
            lines.by_row.contains_key(&item.target.rows.first) || self.waiters.left_until(item).is_some()
        };
        let Some(items) = call.alternatives().map(|items| items.iter().find(has_line)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let mut places: Vec<Place> = Vec::new();
        for place in items.into_iter().map(|item| Place::of(item, call)) {
            if places.iter().all(|other| other.row() != place.row()) {
                let left_until = self.waiters.left_until(&place.item).unwrap_or_else(Instant::now);
                self.enter(&mut lines, &place, left_until);
                places.push(place);
            }
        }
        self.places = places;
        true
    }

    /// Whether it has a place in a line.
    pub(crate) fn waits(&self) -> bool {
        !self.places.is_empty()
    }

    /// Waits until this is the first place of a line and its tokens are there, as far as is known, and for up to `late`
    /// more. Also returns when it is time to see whether they are there. Then the next caller is the first of the line.
    /// Returns early, and stays the first, if the tokens will not be there by the deadline.
    pub(crate) async fn turn(
        &mut self,
        deadline: Option<tokio::time::Instant>,
        late: Duration,
        news: &mut Option<watch::Receiver<()>>,
    ) -> Turn {
        let turn = self.come_first(deadline, late, news);
        match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.unwrap_or(Turn::Late),
            None => turn.await,
        }
    }

    async fn come_first(
        &mut self,
        deadline: Option<tokio::time::Instant>,
        late: Duration,
        news: &mut Option<watch::Receiver<()>>,
    ) -> Turn {
        loop {
            let (sleep, is_certain) = match self.look() {
                InLine::Turn(turn) => return turn,
                InLine::Queue => {
                    self.woken.notified().await;
                    continue;
                }
                InLine::Sleep { sleep, is_certain } => (sleep, is_certain),
            };
            let now = tokio::time::Instant::now();
            let after = |pause: Duration| now.checked_add(pause);
            let is_in_time = |at: tokio::time::Instant| deadline.is_none_or(|deadline| at <= deadline);
            if is_certain && !sleep.due.and_then(after).is_some_and(is_in_time) {
                return Turn::Ask { is_early: false };
            }
            let pause = sleep.due.map_or(sleep.asks, |due| due.min(sleep.asks));
            let (woken, changed) = (pin!(self.woken.notified()), pin!(changed(news)));
            let either = select(woken, changed);
            let heard = match after(pause.saturating_add(late)) {
                Some(wake) => timeout_at(wake, either).await.ok(),
                None => Some(either.await),
            };
            if let Some(Either::Right(_)) = heard {
                return Turn::Changed;
            }
        }
    }

    fn look(&mut self) -> InLine {
        let mut lines = lock(&self.waiters.lines);
        if self.places.is_empty() {
            return InLine::Turn(Turn::Ask { is_early: false });
        }
        if lines.is_closed {
            return InLine::Turn(Turn::Closed);
        }
        let (mut earliest, mut is_certain) = (None::<Sleep>, true);
        for place in &self.places {
            let line = lines.by_row.get_mut(place.row()).expect("who has a place is in a line");
            if !line.is_first(self.number) {
                is_certain = false;
                continue;
            }
            let sleep = line.sleep(place);
            let is_due = sleep.due.is_some_and(|due| due.is_zero());
            if is_due || sleep.asks.is_zero() {
                line.ask(place, self.number);
                self.asked = Instant::now();
                let is_early = !is_due && !place.is_leased();
                return InLine::Turn(Turn::Ask { is_early });
            }
            is_certain &= sleep.due.is_some();
            let before = earliest.unwrap_or(sleep);
            let due = before.due.into_iter().chain(sleep.due).min();
            earliest = Some(Sleep { due, asks: before.asks.min(sleep.asks) });
        }
        earliest.map_or(InLine::Queue, |sleep| InLine::Sleep { sleep, is_certain })
    }

    /// Goes back to its places after a refusal, and to the lines that refused it: for each alternative, the line of the
    /// limit with the longest wait.
    pub(crate) fn refused(&mut self, call: &Operation, denied: &Denied) {
        let mut lines = lock(&self.waiters.lines);
        let mut places: Vec<(Place, &Denied)> = Vec::new();
        for denied in iter::once(denied).chain(denied.beside.iter()) {
            let is_it = |item: &&Item<Ask>| item.is_of(&denied.limit) && *item.target.key() == denied.key;
            let item = call.alternatives().flatten().find(is_it).expect("a refusal names what was asked");
            if places.iter().all(|(other, _)| *other.row() != item.target.rows.first) {
                places.push((Place::of(item, call), denied));
            }
        }
        let stays = |old: &Place| places.iter().any(|(place, _)| place.row() == old.row());
        let (stay, gone): (Vec<_>, Vec<_>) = mem::take(&mut self.places).into_iter().partition(stays);
        for (place, denied) in &places {
            let is_new = stay.iter().all(|old| old.row() != place.row());
            let is_raised = lines.is_raised(place, self.asked);
            let raised = is_raised.then(|| self.waiters.left_until(&place.item).unwrap_or_else(Instant::now));
            if is_new {
                self.enter(&mut lines, place, Instant::now());
            }
            let line = lines.by_row.get_mut(place.row()).expect("it was entered");
            line.enter(self.number, &self.woken);
            if line.goes_by(self.number) {
                line.hear_refusal(place, denied, raised);
            }
        }
        for place in &gone {
            self.exit(&mut lines, place);
        }
        self.places = places.into_iter().map(|(place, _)| place).collect();
    }

    /// Goes back to its places, because it has asked early and got no answer.
    pub(crate) fn unanswered(&mut self) {
        let mut lines = lock(&self.waiters.lines);
        for place in &self.places {
            let line = lines.by_row.get_mut(place.row()).expect("who has a place is in a line");
            line.enter(self.number, &self.woken);
            if line.awaits(self.number) {
                line.forget(Instant::now() + look());
            }
        }
    }

    /// Lets it ask whether its tokens are there, in lines where it is the first.
    pub(crate) fn ask_anew(&self) {
        let mut lines = lock(&self.waiters.lines);
        for place in &self.places {
            let line = lines.by_row.get_mut(place.row()).expect("who has a place is in a line");
            if line.is_first(self.number) {
                line.raise(Instant::now());
            }
        }
    }

    /// Lets the lines of the limits that granted it go by the balances that it leaves, as far as the grant says them.
    pub(crate) fn granted(&self, grant: &Grant) {
        let mut lines = lock(&self.waiters.lines);
        let is_known = |place: &&Place| grant.source == Source::Database && !place.is_leased();
        for place in self.places.iter().filter(is_known) {
            let is_raised = lines.is_raised(place, self.asked);
            let line = lines.by_row.get_mut(place.row()).expect("who has a place is in a line");
            let standing = grant.standings.iter().find(|standing| place.is_of(standing.limit.name(), &standing.key));
            if let Some(standing) = standing.filter(|_| !is_raised && line.goes_by(self.number)) {
                line.hear_grant(grant, standing, place.grown(standing.remaining, self.asked.elapsed()));
            }
        }
    }

    /// Waits for nothing any longer.
    pub(crate) fn leave(&mut self) {
        let places = mem::take(&mut self.places);
        if !places.is_empty() {
            let mut lines = lock(&self.waiters.lines);
            for place in &places {
                self.exit(&mut lines, place);
            }
        }
    }

    /// Whether it is the first in some line.
    pub(crate) fn is_first(&self) -> bool {
        let lines = lock(&self.waiters.lines);
        let is_first = |line: &Line| line.is_first(self.number);
        self.places.iter().any(|place| lines.by_row.get(place.row()).is_some_and(is_first))
    }

    /// The refusal of a caller whose timeout ends while others are before it. If its tokens are there, theirs are there
    /// too, so it may ask again at once.
    pub(crate) fn out_of_turn(&self, checked: Decision) -> Denied {
        let Place { item, .. } = self.places.first().expect("it waits");
        match checked {
            Decision::Denied(denied) => denied,
            Decision::Granted(Grant { remaining, observed_at, decided_at, source, standings, .. }) => {
                let soon = Timestamp::from(observed_at).after(1);
                let refusal = vec![item.target.refusal(Reason::OutOfTurn, remaining, soon)];
                Denied::among(refusal, || standings, observed_at, decided_at, source).expect("there is one refusal")
            }
        }
    }

    /// Takes a place in a line. If there was no line, its first caller asks at an instant.
    fn enter(&self, lines: &mut Lines, place: &Place, asks_at: Instant) {
        let line = lines.by_row.entry(place.row().clone()).or_insert_with(|| Line::asking_at(asks_at));
        line.places += 1;
        line.enter(self.number, &self.woken);
        for other in &place.others {
            lines.split.entry(other.clone()).or_default().insert((self.number, place.row().clone()));
        }
    }

    fn exit(&self, lines: &mut Lines, place: &Place) {
        for other in &place.others {
            if let Some(split) = lines.split.get_mut(other) {
                split.remove(&(self.number, place.row().clone()));
                if split.is_empty() {
                    lines.split.remove(other);
                }
            }
        }
        let line = lines.by_row.get_mut(place.row()).expect("who has a place is in a line");
        if line.awaits(self.number) {
            line.forget(self.waiters.left_until(&place.item).unwrap_or_else(Instant::now));
        }
        line.leave(self.number);
        line.places -= 1;
        if line.places == 0 {
            lines.by_row.remove(place.row());
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns when the overrides have changed.
async fn changed(news: &mut Option<watch::Receiver<()>>) {
    if let Some(news) = news
        && news.changed().await.is_ok()
    {
        return;
    }
    pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algebra::{State, Timestamp};
    use crate::plan::{Answer, Plan, Under, Verb};
    use crate::tokens::Tokens;
    use crate::{HOUR, Limit};

    const LIMIT: Limit = Limit::token_bucket("one", 1, HOUR);

    /// Whether a caller has a turn at once after a refusal during which others did something.
    fn refused(meanwhile: impl FnOnce(&Waiters, &Operation)) -> bool {
        let waiters = Waiters::default();
        let call = || Verb::consume(LIMIT.key("k"));
        let empty = State::new(Tokens::from_micros(-1_000_000), Timestamp::from_micros(0));
        let plan = Plan::new([call()]).unwrap();
        let answer = plan.decide(&[Some(empty)], &[], Timestamp::from_micros(0)).answers.remove(0).unwrap();
        let (call, Answer::Denied(denied)) = (Operation::of(call(), &Under::NOTHING).unwrap(), answer) else {
            panic!("it is refused")
        };
        let mut waiter = waiters.arrive();
        meanwhile(&waiters, &call);
        waiter.refused(&call, &denied);
        matches!(waiter.look(), InLine::Turn(Turn::Ask { is_early: true }))
    }

    #[test]
    fn what_is_raised_while_a_caller_is_being_refused_is_asked_for_again() {
        assert!(!refused(|_, _| {}));
        assert!(refused(|waiters, call| call.first_rows().for_each(|row| waiters.raise(row, false))));
    }
}
