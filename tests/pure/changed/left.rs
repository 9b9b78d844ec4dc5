//! Rows that say how many tokens are left: the model for one definition.

use tollgate::{Limit, LimitKind};

use super::story::{Event, Op};
use crate::world::{at, terms_of};

/// A row that holds the tokens that are left at an instant.
#[derive(Default)]
pub(super) struct Left {
    row: Option<(i64, i64)>,
}

impl Left {
    fn read(&self, limit: &Limit, now: i64) -> (i64, i64) {
        let spec = limit.spec();
        let capacity = spec.capacity.unwrap().micros();
        let Some((left, ts)) = self.row else { return (capacity, terms_of(&limit.global()).full(at(now)).ts.micros()) };
        let (now, rate, period) = (now.max(ts), spec.rate.micros(), i64::try_from(spec.period.as_micros()).unwrap());
        let (gained, ts) = match spec.kind {
            LimitKind::TokenBucket => (rate * (now - ts) / period, now),
            LimitKind::SteppedBucket => (rate * ((now - ts) / period), ts + (now - ts) / period * period),
            _ => {
                let step = |now| terms_of(&limit.global()).full(at(now)).ts.micros();
                let steps = (step(now) - step(ts)) / period;
                (rate * steps, if steps > 0 { step(now) } else { ts })
            }
        };
        (capacity.min(left + gained), ts)
    }

    /// The grants, and the balance after each step.
    pub(super) fn tell(&mut self, limit: &Limit, story: &[(i64, Op)]) -> (Vec<Event>, Vec<i64>) {
        let spec = limit.spec();
        let capacity = spec.capacity.unwrap().micros();
        // Each open charge: its cost, and the instants of the decision and of its end.
        let (mut now, mut id, mut open) = (1_000_i64, 0, Vec::<(i64, i64, i64)>::new());
        let (mut grants, mut balances) = (Vec::new(), Vec::new());
        for (gap, op) in story {
            now += gap;
            let (left, ts) = self.read(limit, now);
            let decided_at = self.row.map_or(now, |(_, ts)| ts.max(now));
            match *op {
                Op::Take { cost, reserving, .. } => {
                    let bound = if reserving { spec.max_reserved.micros() } else { 0 };
                    let cost = cost.min(capacity + bound);
                    if left - cost >= -bound && cost > 0 {
                        self.row = Some((left - cost, ts));
                        let ready_at = self.ready_at(limit, decided_at);
                        grants.push(Event::Granted { id, which: 0, at: decided_at, cost });
                        open.push((cost, decided_at, ready_at));
                        id += 1;
                    }
                }
                Op::Credit { amount, .. } => {
                    let given = amount.min(capacity - left);
                    if given > 0 {
                        self.row = Some((left + given, ts));
                    }
                }
                Op::Debit { amount, .. } => self.row = Some((left - amount, ts)),
                Op::Settle { which, .. } | Op::Cancel { which } => {
                    let Some(which) = which.checked_rem(open.len()) else { continue };
                    let (cost, charged_at, ready_at) = open.swap_remove(which);
                    let is_late = matches!(op, Op::Cancel { .. }) && decided_at > ready_at;
                    let until = if ready_at > charged_at { ready_at - 1 } else { charged_at };
                    let row = self.row.filter(|(_, ts)| spec.kind != LimitKind::FixedWindow || *ts <= until);
                    // The next reader cuts it at the capacity.
                    if let (Some((left, ts)), false) = (row, is_late) {
                        self.row = Some((left + cost, ts));
                    }
                }
                Op::Reset { .. } => {
                    self.row = self.row.map(|_| (capacity, terms_of(&limit.global()).full(at(decided_at)).ts.micros()));
                }
                Op::Sweep => {}
                Op::Back(span) => now -= span,
            }
            balances.push(self.read(limit, now).0);
        }
        (grants, balances)
    }

    /// The first instant from one on at which the row is out of debt.
    fn ready_at(&self, limit: &Limit, now: i64) -> i64 {
        (now..now + 100_000).find(|now| self.read(limit, *now).0 >= 0).unwrap()
    }
}
