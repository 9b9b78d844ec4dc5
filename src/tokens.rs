use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An exact amount of tokens: an integer count of micro-tokens.
///
/// One token is 1 000 000 micro-tokens, so weights such as `0.5` are exact and nothing ever drifts. Amounts reach from
/// about −9.2 to 9.2 million million tokens. A balance may be negative (a debt); a cost may not.
///
/// # Conversions
///
/// Whole numbers convert exactly or fail: `u8`, `u16` and `u32` by [`From`], the wider and the signed ones by
/// [`TryFrom`]. An `f64` goes to the **nearest** micro-token. Negative numbers, numbers that are not finite, numbers
/// too large, and positive ones that would round to nothing are a [`TokensError`]; no amount is lost silently. A debt
/// is made by [`Tokens::from_micros`].
///
/// # Text and serde
///
/// `Display` and [`FromStr`] use plain decimals (`12`, `0.5`, `-3.25`), and more than six decimals are an error. In
/// human-readable formats an amount is a number where a number is exact: every whole one, and fractions up to about a
/// thousand million tokens. Any other amount is a decimal string. All three forms can be read. In binary formats an
/// amount is an `i64` of micro-tokens.
///
/// # Example
///
/// ```
/// use tollgate::Tokens;
///
/// let half = Tokens::try_from(0.5)?;
/// assert_eq!(half.micros(), 500_000);
/// assert_eq!(half.to_string(), "0.5");
/// assert_eq!("0.5".parse::<Tokens>()?, half);
/// assert!(Tokens::try_from(f64::NAN).is_err());
/// # Ok::<(), tollgate::TokensError>(())
/// ```
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tokens(i64);

impl Tokens {
    /// No tokens.
    pub const ZERO: Self = Self(0);
    /// One token.
    pub const ONE: Self = Self(MICROS_PER_TOKEN);
    /// The largest amount.
    pub const MAX: Self = Self(i64::MAX);
    /// The deepest debt.
    pub const MIN: Self = Self(i64::MIN);

    /// Whole tokens. Every `u32` fits; for wider integers use [`TryFrom`].
    #[must_use]
    pub const fn new(whole: u32) -> Self {
        // A lossless widening (`From` is not const), and 2^32 million is far below 2^63.
        Self(whole as i64 * MICROS_PER_TOKEN)
    }

    /// An amount in micro-tokens; negative ones are debts.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The amount in micro-tokens.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// The whole tokens of the amount, rounded down: 2 for 2.9, and -1 for a debt of half a token.
    #[must_use]
    pub const fn whole(self) -> i64 {
        self.0.div_euclid(MICROS_PER_TOKEN)
    }

    /// Whether this is a debt.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The sum, or `None` where it does not fit.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// The difference, or `None` where it does not fit.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// `TryFrom<u64>` for `const` contexts.
    pub(crate) const fn from_whole(whole: u64) -> Result<Self, TokensError> {
        if whole <= (i64::MAX / MICROS_PER_TOKEN) as u64 {
            // Checked on the line above: the product fits.
            #[expect(clippy::cast_possible_wrap)]
            Ok(Self(whole as i64 * MICROS_PER_TOKEN))
        } else {
            Err(TokensError::TooLarge)
        }
    }
}

impl fmt::Display for Tokens {
    /// A plain decimal without trailing zeros. Width, fill and sign flags apply, as for integers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.unsigned_abs();
        let (whole, fraction) = (micros / MICROS_PER_TOKEN_U64, micros % MICROS_PER_TOKEN_U64);
        let digits = if fraction == 0 {
            whole.to_string()
        } else {
            format!("{whole}.{}", format!("{fraction:06}").trim_end_matches('0'))
        };
        f.pad_integral(!self.is_negative(), "", &digits)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({self})")
    }
}

impl FromStr for Tokens {
    type Err = TokensError;

    /// Reads a plain decimal, exactly; unlike a cost, an amount may be negative.
    fn from_str(text: &str) -> Result<Self, TokensError> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let sign = &text[..text.len() - digits.len()];
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return Err(TokensError::Malformed);
        }
        let fraction = fraction.trim_end_matches('0');
        if fraction.len() > DECIMALS {
            return Err(TokensError::TooPrecise);
        }
        // Only digits are left after the sign, so parsing can fail in one way: too many of them.
        format!("{sign}{whole}{fraction:0<DECIMALS$}").parse().map(Self).map_err(|_| TokensError::TooLarge)
    }
}

macro_rules! from_narrow {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Tokens {
            fn from(whole: $integer) -> Self {
                Self::new(u32::from(whole))
            }
        }
    )*};
}
from_narrow!(u8, u16, u32);

macro_rules! try_from_wide {
    ($($integer:ty),*) => {$(
        impl TryFrom<$integer> for Tokens {
            type Error = TokensError;

            fn try_from(whole: $integer) -> Result<Self, TokensError> {
                // `<` only ever holds for the signed ones.
                #[allow(unused_comparisons, clippy::absurd_extreme_comparisons)]
                if whole < 0 {
                    return Err(TokensError::Negative);
                }
                u64::try_from(whole).map_err(|_| TokensError::TooLarge).and_then(Self::from_whole)
            }
        }
    )*};
}
try_from_wide!(u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl TryFrom<f64> for Tokens {
    type Error = TokensError;

    fn try_from(amount: f64) -> Result<Self, TokensError> {
        /// 2^63 as a float: the first one that no `i64` holds.
        const LIMIT: f64 = 9_223_372_036_854_775_808.0;
        if !amount.is_finite() {
            return Err(TokensError::NotFinite);
        }
        if amount < 0.0 {
            return Err(TokensError::Negative);
        }
        let micros = (amount * MICROS_PER_TOKEN_F64).round();
        if micros >= LIMIT {
            return Err(TokensError::TooLarge);
        }
        if micros == 0.0 && amount > 0.0 {
            return Err(TokensError::TooSmall);
        }
        // A whole float in [0, 2^63): the cast is exact.
        #[expect(clippy::cast_possible_truncation)]
        Ok(Self(micros as i64))
    }
}

impl TryFrom<f32> for Tokens {
    type Error = TokensError;

    fn try_from(amount: f32) -> Result<Self, TokensError> {
        Self::try_from(f64::from(amount))
    }
}

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            serializer.serialize_i64(self.0)
        } else if self.0 % MICROS_PER_TOKEN == 0 {
            serializer.serialize_i64(self.0 / MICROS_PER_TOKEN)
        } else if self.0.unsigned_abs() < EXACT_AS_FLOAT {
            // Below 2^50 a float has at least eight times the resolution that rounding back needs.
            #[expect(clippy::cast_precision_loss)]
            serializer.serialize_f64(self.0 as f64 / MICROS_PER_TOKEN_F64)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Amount { largest: None })
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}

/// Reads an amount from a number or a decimal string. Amounts may be debts, so the sign is split off first.
pub(crate) struct Amount {
    /// A word for [`Tokens::MAX`].
    pub(crate) largest: Option<&'static str>,
}

impl Amount {
    fn signed<E: de::Error>(negative: bool, magnitude: Result<Tokens, TokensError>) -> Result<Tokens, E> {
        let Tokens(micros) = magnitude.map_err(E::custom)?;
        Ok(Tokens(if negative { -micros } else { micros }))
    }
}

impl de::Visitor<'_> for Amount {
    type Value = Tokens;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of tokens, or a decimal string")?;
        self.largest.map_or(Ok(()), |word| write!(f, ", or {word:?}"))
    }

    fn visit_i64<E: de::Error>(self, whole: i64) -> Result<Tokens, E> {
        Self::signed(whole < 0, Tokens::from_whole(whole.unsigned_abs()))
    }

    fn visit_u64<E: de::Error>(self, whole: u64) -> Result<Tokens, E> {
        Self::signed(false, Tokens::from_whole(whole))
    }

    fn visit_f64<E: de::Error>(self, amount: f64) -> Result<Tokens, E> {
        Self::signed(amount < 0.0, Tokens::try_from(amount.abs()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Tokens, E> {
        if self.largest == Some(text) {
            return Ok(Tokens::MAX);
        }
        text.parse().map_err(|error| E::custom(format_args!("{text:?}: {error}")))
    }
}

/// Why a number is not an amount of tokens.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TokensError {
    /// The text is no plain decimal.
    #[error("not a plain decimal number such as 12 or 0.5")]
    Malformed,
    /// The number is below zero.
    #[error("a number of tokens is negative")]
    Negative,
    /// The number is NaN or an infinity.
    #[error("a number of tokens is not finite")]
    NotFinite,
    /// The number is more than 9 223 372 036 854.775807 tokens.
    #[error("a number of tokens is too large (at most 9223372036854.775807)")]
    TooLarge,
    /// The text has more than six decimals.
    #[error("a number of tokens has more than six decimals")]
    TooPrecise,
    /// The number is positive, but less than half a micro-token.
    #[error("a number of tokens is positive but below half a millionth")]
    TooSmall,
}

impl From<std::convert::Infallible> for TokensError {
    /// For conversions that cannot fail, so that every cost can be given in the same way.
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

const DECIMALS: usize = 6;
const MICROS_PER_TOKEN: i64 = 1_000_000;
const MICROS_PER_TOKEN_U64: u64 = 1_000_000;
const MICROS_PER_TOKEN_F64: f64 = 1e6;
const EXACT_AS_FLOAT: u64 = 1 << 50;
