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
    /// Names it for a receipt; `None` for what a sliding window counts, and nobody can give back.
    pub id: Option<HoldId>,
    /// Whether its tokens stay spent when it lapses.
    pub keeps: bool,
    /// Whether its receipt was used: of no amount, it tells who asks [once](crate::Request::once) more.
    pub used: bool,
}

/// The holds of a row.
///
/// First those that give back, by lapse; then those that keep, the last to lapse first. So both ends lapse, and a lapse
/// of one leaves the sums of the others alone.
///
/// An empty list is not the same as [`NONE`](Self::NONE): a limit that counts what is held has written it, so nothing is
/// spent besides.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Holds(Option<Vec<Hold>>);

impl Holds {
    /// The most named holds that a row has room for: more would cost each write a millisecond.
    pub const MAX: usize = 1_000;

    /// Of more unnamed holds than these, neighbours become one.
    pub(super) const MAX_UNNAMED: usize = 64;

    /// No list.
    pub const NONE: Self = Self(None);

    /// Whether there is no list: nobody has counted what is held.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Whether there is no hold.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }

    /// The holds, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.0.iter().flatten()
    }

    /// As a list, also where there is no hold.
    pub(super) fn counted(self) -> Self {
        Self(Some(self.0.unwrap_or_default()))
    }

    /// As a list only where there is some hold.
    pub(super) fn uncounted(self) -> Self {
        Self(self.0.filter(|holds| !holds.is_empty()))
    }

    /// Those that give tokens back when they lapse.
    pub(super) fn returning(&self) -> impl Iterator<Item = &Hold> {
        self.iter().filter(|hold| !hold.keeps)
    }

    /// When the last of them has lapsed.
    pub(super) fn last_lapse(&self) -> Option<Timestamp> {
        self.iter().map(|hold| hold.lapses_at).max()
    }

    /// When the first that has a name lapses, if there is no room for another one.
    pub(super) fn room_at(&self) -> Option<Timestamp> {
        let named = || self.iter().filter(|hold| hold.id.is_some());
        if named().count() < Self::MAX { None } else { named().map(|hold| hold.lapses_at).min() }
    }

    pub(super) fn sum(&self) -> i128 {
        self.iter().map(|hold| i128::from(hold.amount.micros())).sum()
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&Hold) -> bool) {
        if let Some(holds) = &mut self.0 {
            holds.retain(keep);
        }
    }

    /// Makes one of unnamed holds that lapse together. Where there are too many, their lapses are rounded up to a 63rd
    /// of the period: later is never too much.
    pub(super) fn merge(&mut self, period: i64) {
        self.join_equals();
        if self.iter().filter(|hold| hold.id.is_none()).count() > Self::MAX_UNNAMED {
            let step = period.unsigned_abs().div_ceil(Self::MAX_UNNAMED as u64 - 1);
            let step = i64::try_from(step).expect("it is shorter than the period");
            for hold in self.iter_mut().filter(|hold| hold.id.is_none()) {
                hold.lapses_at = hold.lapses_at.round_up(step);
            }
            self.join_equals();
        }
    }

    fn join_equals(&mut self) {
        let Some(holds) = &mut self.0 else { return };
        holds.sort_by_key(Hold::order);
        holds.dedup_by(|next, hold| {
            let is_one = next.id.is_none() && hold.id.is_none() && next.lapses_at == hold.lapses_at;
            if is_one {
                hold.amount = hold.amount.checked_add(next.amount).unwrap_or(Tokens::MAX);
            }
            is_one
        });
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        self.0.iter_mut().flatten()
    }

    /// Removes those that have lapsed; what they give back.
    pub(super) fn lapse(&mut self, now: Timestamp) -> i128 {
        let mut back = 0;
        self.retain(|hold| {
            let is_live = hold.is_live(now);
            if !is_live && !hold.keeps {
                back += i128::from(hold.amount.micros());
            }
            is_live
        });
        back
    }

    /// A name for a new hold: this one, or, where that is taken, the next free one.
    pub(crate) fn free_id(&self, mut id: HoldId) -> HoldId {
        while self.iter().any(|other| other.id == Some(id)) {
            id = id.next();
        }
        id
    }

    /// Adds a hold in its place.
    pub(crate) fn insert(&mut self, hold: Hold) {
        let holds = self.0.get_or_insert_default();
        let place = holds.partition_point(|other| other.order() <= hold.order());
        holds.insert(place, hold);
    }

    /// The hold of a call of this name, used or not, whatever it asked.
    pub(super) fn namesake(&self, id: HoldId) -> Option<Hold> {
        self.iter().find(|hold| hold.id.is_some_and(|other| other.is_namesake(id))).copied()
    }

    /// Removes a hold that was not used. One that its caller has named stays until it lapses, and counts nothing.
    pub(super) fn use_up(&mut self, id: HoldId) -> Option<Hold> {
        let hold = *self.iter().find(|hold| hold.id == Some(id) && !hold.used)?;
        self.retain(|other| other.id != Some(id));
        if id.is_once() {
            self.insert(Hold { amount: Tokens::ZERO, used: true, ..hold });
        }
        Some(hold)
    }

    /// As the column `holds` has them, `None` for null, which is no list: for each hold the instant of its lapse in
    /// microseconds since the Unix epoch, and its micro-tokens; of one with a name −1 − its micro-tokens, and its id
    /// doubled, plus 1 if it keeps. One that was used has the least number for an amount, so others have a micro-token
    /// less than the most.
    #[must_use]
    pub fn to_column(&self) -> Option<Vec<i64>> {
        let mut column = Vec::new();
        for hold in self.0.as_ref()? {
            column.push(hold.lapses_at.micros());
            match hold.id {
                Some(id) => {
                    let amount = if hold.used { USED } else { (-1 - hold.amount.micros()).max(USED + 1) };
                    column.extend([amount, id.get() << 1 | i64::from(hold.keeps)]);
                }
                None => column.push(hold.amount.micros()),
            }
        }
        Some(column)
    }

    /// Reads what [`to_column`](Self::to_column) wrote as PostgreSQL has it as text, `{1,2,3}`; `None` for anything else.
    #[must_use]
    pub fn from_text(column: &str) -> Option<Self> {
        let numbers = column.strip_prefix('{')?.strip_suffix('}')?.split_terminator(',');
        Self::from_column(&numbers.map(str::parse).collect::<Result<Vec<_>, _>>().ok()?)
    }

    /// Reads what [`to_column`](Self::to_column) wrote; `None` for anything else.
    #[must_use]
    pub fn from_column(column: &[i64]) -> Option<Self> {
        let (mut holds, mut rest) = (Vec::new(), column);
        while let [lapse, amount, left @ ..] = rest {
            let used = *amount == USED;
            let (amount, name, left) = match (amount, left) {
                (0.., _) => (*amount, None, left),
                (_, [name, left @ ..]) => {
                    let amount = if used { 0 } else { -1 - amount };
                    (amount, Some(u64::try_from(*name).ok().filter(|name| *name > 1)?), left)
                }
                (_, []) => return None,
            };
            let id = name.map(|name| HoldId::stored(name >> 1));
            if used && !id.is_some_and(HoldId::is_once) {
                return None;
            }
            holds.push(Hold {
                lapses_at: Timestamp::from_micros(*lapse),
                amount: Tokens::from_micros(amount),
                id,
                keeps: name.is_some_and(|name| name & 1 == 1),
                used,
            });
            rest = left;
        }
        (rest.is_empty() && holds.len() <= Self::MAX + 2 * Self::MAX_UNNAMED).then_some(Self(Some(holds)))
    }
}

impl Hold {
    /// Whether it has not lapsed yet. What would lapse after the end of time never does.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.lapses_at > now || self.lapses_at == Timestamp::MAX
    }

    /// Where it lies among others; the unnamed first of those that lapse together.
    fn order(&self) -> (bool, i64, bool) {
        let lapse = self.lapses_at.micros();
        (self.keeps, if self.keeps { -lapse } else { lapse }, self.id.is_some())
    }
}

/// What a sliding window counts until an instant.
pub(super) fn unnamed(lapses_at: Timestamp, amount: Tokens) -> Hold {
    Hold { lapses_at, amount, id: None, keeps: false, used: false }
}

/// What stands for the amount of a hold that was used.
const USED: i64 = i64::MIN;
