use super::list::List;
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// What a row holds: a balance, the instant at which the balance was that, and for some kinds of limits a list.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct State {
    /// The balance; negative for a debt. It is above the capacity where tokens came back to a full row, until the next
    /// write.
    pub value: Tokens,
    /// When the balance was that: the last write of a continuous refill, the last grid step of a stepped one.
    pub ts: Timestamp,
    /// What comes back by itself, or whose money it is.
    pub list: List,
}

impl State {
    /// A row without a list.
    #[must_use]
    pub const fn new(value: Tokens, ts: Timestamp) -> Self {
        Self { value, ts, list: List::None }
    }

    /// Whether it is money, and was to be capacity, or the reverse. A row that was inserted for a wallet, and never
    /// written, is an empty one.
    pub(super) fn mixes_money(&self, is_wallet: bool) -> bool {
        match self.list {
            List::Wallet => !is_wallet,
            List::None => is_wallet && self.value != Tokens::ZERO,
            List::Grants(_) | List::Leases(_) => is_wallet,
        }
    }
}

/// When a row that is written will be full, and may be swept away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FullAt {
    /// When it was to be full before.
    Keep,
    /// At an instant; at [`Timestamp::MAX`] never.
    At(Timestamp),
    /// So many microseconds later than it was to be full before, or than the row's own instant if that is later.
    Later(i64),
}

impl FullAt {
    /// So much later, for a row that stands at an instant.
    pub(crate) fn later(self, ts: Timestamp, span: i64) -> Self {
        match self {
            Self::Keep => Self::Later(span.min(LONGEST)),
            Self::At(at) => Self::At(at.max(ts).after(span)),
            Self::Later(before) => Self::Later(before.saturating_add(span).min(LONGEST)),
        }
    }
}

/// Thirty thousand years, in microseconds. For so much PostgreSQL has room behind the last instant of a row.
const LONGEST: i64 = 30_000 * 365 * 86_400_000_000;

pub(super) fn wide(tokens: Tokens) -> i128 {
    i128::from(tokens.micros())
}

/// The nearest amount.
pub(super) fn cut(micros: i128) -> Tokens {
    let cut = micros.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Tokens::from_micros(i64::try_from(cut).expect("the line above cuts it to the range of i64"))
}
