use super::Plan;
use super::ledger::Change;
use super::row::{Stranger, place_of};
use super::steps::{Head, Steps};
use crate::algebra::{Pool, State, Terms, Timestamp, TooDeep};
use crate::error::Error;

impl Plan {
    /// What to write of our rows so that they stand for strangers as well, which then may go.
    ///
    /// What those lack to be full at `now` is taken from ours, whatever is there. So no token is made by a change of
    /// the number of shards, and no debt forgiven. `found` is what our rows hold, `None` where one is absent. The
    /// strangers come key by key.
    ///
    /// # Errors
    ///
    /// [`Error::DebtTooDeep`] where a debt would not fit.
    pub fn adopt(&self, found: &[Option<State>], strangers: &[Stranger], now: Timestamp) -> Result<Vec<Change>, Error> {
        let mut changes = Vec::new();
        for strangers in strangers.chunk_by(|one, other| one.beside == other.beside) {
            let Some(head) = self.head_of(strangers[0].beside) else { continue };
            let whole = Terms::of(head.limit, head.key);
            // Whoever locks them may have waited, while they were written: what came back until then is theirs already.
            let now = strangers.iter().fold(now, |now, stranger| now.max(stranger.state.ts));
            let lacking: i128 = strangers.iter().map(|stranger| lacks(&whole, stranger, now)).sum();
            // All that the plan asks, also one by one: a receipt names some.
            let beside = &self.rows[strangers[0].beside];
            let ours = (0..self.rows.len()).filter(|place| self.rows[*place].is_beside(beside));
            let ours: Vec<_> = ours.map(|place| (place, self.terms_of(place, &whole))).collect();
            // An absent row is full from now on, not from its last step: what came back since then, a stranger of another
            // kind has counted.
            let full = |terms: &Terms| State { ts: now, ..terms.full(now) };
            let read = ours.iter().map(|(place, terms)| (*terms, Some(found[*place].unwrap_or_else(|| full(terms)))));
            let pool = Pool::of_shards(&whole, read, now);
            let too_deep = |TooDeep| Error::DebtTooDeep { limit: head.limit.name.clone().into() };
            for part in pool.lower(lacking).map_err(too_deep)? {
                let (row, terms) = ours[part.shard];
                changes.push(Change { row, state: part.next, full_at: terms.full_at(part.next) });
            }
        }
        Ok(changes)
    }

    /// The step that asks a row.
    fn head_of(&self, place: usize) -> Option<Head<'_, usize>> {
        let asks = |head: &Head<'_, usize>| (*head.row..*head.row + head.rows).contains(&place);
        self.calls.iter().flat_map(Steps::heads).find(asks)
    }

    /// The terms of one of our rows.
    fn terms_of(&self, place: usize, whole: &Terms) -> Terms {
        let (shards, index) = place_of(self.rows[place].shard);
        whole.shard(index.into(), shards.into())
    }
}

/// What a stranger lacks to be full, as one of so many shards as its number says.
fn lacks(whole: &Terms, stranger: &Stranger, now: Timestamp) -> i128 {
    let (shards, index) = place_of(stranger.shard);
    let terms = whole.shard(index.into(), shards.into());
    i128::from(terms.capacity) - i128::from(terms.refill(stranger.state, now).value.micros())
}
