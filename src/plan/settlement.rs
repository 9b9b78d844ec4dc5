use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::algebra::{State, Terms};
use crate::answer::receipt::Charge;
use crate::answer::standing::{CrossedError, fell_below};
use crate::limit::Limit;

/// The charges of a receipt after it was settled, cancelled, released or renewed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settlement {
    /// The charges with their settled costs. A cost is reduced only by tokens that came back to the row.
    pub charges: Vec<Charge>,
    /// The instant of the settlement, by the database's clock.
    pub observed_at: DateTime<Utc>,
    /// The rows that paid for use beyond a charge, before and after.
    #[serde(skip)]
    pub(crate) overdrawn: Vec<(Charge, [Option<State>; 2])>,
}

impl Settlement {
    /// Whether use beyond a charge took a balance of the limit below a share of the capacity, from at or above it; see
    /// [`Standing::crossed`](crate::Standing::crossed). Always false for a settlement that was stored and read again.
    ///
    /// # Errors
    ///
    /// Those of [`Standing::crossed`](crate::Standing::crossed).
    pub fn crossed(&self, limit: &Limit, share: f64) -> Result<bool, CrossedError> {
        fell_below(limit, share, None)?;
        let of_limit = self.overdrawn.iter().filter(|(charge, _)| charge.limit == limit.name);
        let falls = of_limit.map(|(charge, rows)| {
            let terms = Terms::of(limit, &charge.key);
            let now = self.observed_at.into();
            let left = |row: &Option<State>| terms.balance(row.as_ref().unwrap_or(&terms.full(now)), now);
            let [before, after] = rows.each_ref().map(left);
            fell_below(limit, share, Some((before, after)))
        });
        falls.into_iter().try_fold(false, |crossed, falls| Ok(crossed | falls?))
    }
}
