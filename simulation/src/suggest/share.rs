use std::fmt;
use std::str::FromStr;

use tollgate::Tokens;

/// A share of calls, or of keys: `0.1%`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    /// Exact to the millionth of a per cent, as amounts of tokens are.
    percent: Tokens,
}

impl Share {
    /// The whole number of things that are at most this share of so many.
    #[must_use]
    pub fn of(self, count: usize) -> usize {
        let share = count as u128 * u128::from(self.percent.micros().unsigned_abs()) / ALL;
        usize::try_from(share).unwrap_or(count)
    }

    /// The least number of things of which one is within this share; none if nothing is.
    #[must_use]
    pub fn least(self) -> Option<u128> {
        let percent = u128::from(self.percent.micros().unsigned_abs());
        (percent > 0).then(|| ALL.div_ceil(percent))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').ok_or("it has no per cent sign (write 0.1%)")?;
        let percent: Tokens = number.trim_end().parse().map_err(|_| "it is no share (write 0.1%)".to_owned())?;
        let is_share = (0..=ALL).contains(&u128::try_from(percent.micros()).unwrap_or(u128::MAX));
        if is_share { Ok(Self { percent }) } else { Err("a share is from 0% to 100%".to_owned()) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.percent)
    }
}

/// Millionths of a per cent.
const ALL: u128 = 100_000_000;
