use std::iter;

use super::timestamp::Timestamp;
use crate::hold::HoldId;
use crate::tokens::Tokens;

/// Tokens that were taken, and may come back.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Hold {
    /// When it goes by itself.
    pub lapses_at: Timestamp,
    /// What comes back then; of a hold that keeps, the most that a settlement gives back.
    pub amount: Tokens,
    /// Names it for a receipt.
    pub id: HoldId,
    /// Whether its tokens stay spent when it lapses.
    pub keeps: bool,
}

/// The holds of a row.
///
/// First those that give back, by lapse; then those that keep, the last to lapse first. So both ends lapse, and a lapse
/// of one leaves the sums of the others alone.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Holds(Vec<Hold>);

impl Holds {
    /// The most holds that a row has room for: more would cost each write a millisecond.
    pub const MAX: usize = 1_000;

    /// None.
    pub const NONE: Self = Self(Vec::new());

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The holds, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter()
    }

    /// Those that give tokens back when they lapse.
    pub(super) fn returning(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter().filter(|hold| !hold.keeps)
    }

    /// When the first of them lapses.
    pub(super) fn first_lapse(&self) -> Option<Timestamp> {
        self.lapses().min()
    }

    /// When the last of them has lapsed.
    pub(super) fn last_lapse(&self) -> Option<Timestamp> {
        self.lapses().max()
    }

    fn lapses(&self) -> impl Iterator<Item = Timestamp> {
        self.0.iter().map(|hold| hold.lapses_at)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.0.iter_mut()
    }

    /// Removes those that have lapsed; what they give back.
    pub(super) fn lapse(&mut self, now: Timestamp) -> i128 {
        let mut back = 0;
        self.0.retain(|hold| {
            let is_live = hold.lapses_at > now;
            if !is_live && !hold.keeps {
                back += i128::from(hold.amount.micros());
            }
            is_live
        });
        back
    }

    /// Adds a hold in its place, under its id or, where that is taken, the next free one; which one.
    pub(crate) fn insert(&mut self, mut hold: Hold) -> HoldId {
        while self.0.iter().any(|other| other.id == hold.id) {
            hold.id = hold.id.next();
        }
        let order = |hold: &Hold| {
            let lapse = hold.lapses_at.micros();
            (hold.keeps, if hold.keeps { -lapse } else { lapse })
        };
        let place = self.0.partition_point(|other| order(other) <= order(&hold));
        self.0.insert(place, hold);
        hold.id
    }

    pub(super) fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let place = self.0.iter().position(|hold| hold.id == id)?;
        Some(self.0.remove(place))
    }

    /// As the column `holds` has them, `None` for null: for each hold the instant of its lapse in microseconds since
    /// the Unix epoch, −1 − its micro-tokens, and its id doubled, plus 1 if it keeps.
    #[must_use]
    pub fn to_column(&self) -> Option<Vec<i64>> {
        let numbers = |hold: &Hold| {
            let id = hold.id.get() << 1 | i64::from(hold.keeps);
            [hold.lapses_at.micros(), -1 - hold.amount.micros(), id]
        };
        (!self.is_empty()).then(|| self.0.iter().flat_map(numbers).collect())
    }

    /// Reads what [`to_column`](Self::to_column) wrote; `None` for anything else.
    #[must_use]
    pub fn from_column(column: &[i64]) -> Option<Self> {
        let mut rest = column;
        let holds = iter::from_fn(|| {
            let (numbers, left) = rest.split_first_chunk()?;
            rest = left;
            Some(numbers)
        });
        let hold = |[lapse, amount, id]: &[i64; 3]| {
            let id_bits = u64::try_from(*id).ok()? >> 1;
            let hold = Hold {
                lapses_at: Timestamp::from_micros(*lapse),
                amount: Tokens::from_micros(-1_i64.checked_add(*amount)?),
                id: HoldId::new(id_bits),
                keeps: id & 1 == 1,
            };
            (id_bits > 0 && *amount < 0).then_some(hold)
        };
        let holds: Vec<_> = holds.map(hold).collect::<Option<_>>()?;
        (rest.is_empty() && holds.len() <= Self::MAX).then_some(Self(holds))
    }
}
