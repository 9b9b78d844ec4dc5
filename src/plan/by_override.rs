//! An operation under the overrides of its limits, and the answers that follow from overrides alone, whatever the rows
//! hold.

use super::Plan;
use super::answer::Answer;
use super::operation::Operation;
use super::take::{alternatives, denied, possible};
use super::target::{Item, Target};
use crate::algebra::{Ask, Terms, Timestamp};
use crate::answer::decision::Denied;
use crate::overrides::{AppliedOverride, OverrideOf, Ruling};

impl Operation {
    /// Puts each limit and key under its override.
    pub(super) fn put_under(&mut self, overrides: &OverrideOf<'_>) {
        self.each_target(|target| {
            if let Some(applied) = overrides(&target.limit, target.key()) {
                target.put_under(applied);
            }
        });
        // If one limit of a split is unlimited, the others give nothing.
        let items = self.asked_mut().map_or(&mut [][..], Vec::as_mut_slice);
        for together in items.chunk_by_mut(|_, next| next.action.continues_split()) {
            if together.iter().any(|item| item.target.is_unlimited()) {
                for item in together {
                    item.target.lift();
                }
            } else if possible(together).is_err() {
                for item in together {
                    item.target.await_whole();
                }
            }
        }
    }

    /// Whether an override applies to a limit that it asks.
    pub(crate) fn is_overridden(&self) -> bool {
        self.targets().any(Target::is_overridden)
    }

    /// The first alternative that is not denied; the refusal where each is.
    pub(crate) fn undenied(&self, now: Timestamp) -> Result<usize, Denied> {
        let mut soonest = None::<Denied>;
        for (alternative, items) in self.alternatives().enumerate() {
            let Some(denied) = denied(items, now) else { return Ok(alternative) };
            soonest = Some(Denied::soonest(soonest, denied));
        }
        soonest.map_or(Ok(0), Err)
    }

    /// The answer that follows from overrides of its limits, whatever the rows hold. A call with an id may be a repeat,
    /// so it has no such answer.
    pub(crate) fn overruled(&self, now: Timestamp) -> Option<Answer> {
        if self.asked().is_empty() || self.is_once() {
            return None;
        }
        let alternative = match self.undenied(now) {
            Ok(alternative) => alternative,
            Err(denied) => return Some(Answer::Denied(denied)),
        };
        let is_unlimited = |items: &[Item<Ask>]| items.iter().all(|item| item.target.is_unlimited());
        if self.slot.is_some() || !alternatives(self.asked()).nth(alternative).is_some_and(is_unlimited) {
            return None;
        }
        // The alternatives before it are denied, so no row is needed.
        let plan = Plan::of(vec![self.clone()]);
        plan.decide(&vec![None; plan.rows().len()], &[], now).answers.pop()?.ok()
    }

    /// The names of the limits to which an override applies, and its label.
    pub(crate) fn overridden(&self) -> impl Iterator<Item = (&str, &str)> {
        let overridden = self.targets().filter(|target| target.is_overridden());
        overridden.map(|target| (target.limit.name(), target.override_label()))
    }

    /// Whether the same overrides apply to it as to another call with the same requests.
    pub(crate) fn is_overridden_as(&self, other: &Self) -> bool {
        self.targets().map(Target::overridden).eq(other.targets().map(Target::overridden))
    }
}

impl Target {
    /// Puts the limit under an override, which holds the definition's own numbers from now on.
    fn put_under(&mut self, mut applied: AppliedOverride) {
        if let Some(numbers) = applied.numbers.take() {
            self.terms = self.named_alike(Terms::of(&numbers, self.key()));
            applied.numbers = Some(std::mem::replace(&mut self.limit, numbers));
        }
        self.terms = self.terms.paused(applied.pause);
        self.applied = Some(Box::new(applied));
    }

    /// Makes it unlimited, unless it is denied.
    fn lift(&mut self) {
        let applied = self.applied.get_or_insert_default();
        applied.ruling = applied.ruling.or(Some(Ruling::Unlimited));
    }

    /// Refuses until its `n` is whole again, a call that costs more than a slow-down leaves of it.
    fn await_whole(&mut self) {
        let Some(applied) = &mut self.applied else { return };
        let Some((whole, until)) = applied.whole.take() else { return };
        applied.ruling = applied.ruling.or(Some(Ruling::Deny { until }));
        self.terms = Terms::of(&whole, &self.rows.first.key);
        self.limit = whole;
    }
}
