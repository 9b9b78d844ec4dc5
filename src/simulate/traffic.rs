use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand_distr::{Distribution, Exp1, StandardUniform};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::words::{Words, WordsError};
use crate::algebra::Timestamp;
use crate::key::{Key, KeyError};
use crate::limit::Limit;
use crate::tokens::{Tokens, TokensError};

/// When synthetic traffic begins: midnight of 1 January 2025, UTC. Windows that are aligned to the clock are aligned to it.
pub const START: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);

/// One call of the traffic.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// When it is made.
    pub at: Timestamp,
    /// Who makes it.
    pub key: Key,
    /// How many tokens it asks for.
    pub cost: Tokens,
}

/// Calls that follow a pattern, made by one client or by several.
///
/// As a text it is a kind and its fields: `rate` and `per` (or `size` and `every` for bursts), `for` how long, `from` when,
/// how many `clients`, each of whom makes all of it, the `cost` of each call, and a `key`.
///
/// # Example
///
/// ```
/// use tollgate::SECOND;
/// use tollgate::simulate::{Traffic, arrivals};
///
/// let flood = Traffic::constant(60, SECOND).lasting(10 * SECOND).clients(2);
/// assert_eq!("constant rate=60 per=1s for=10s clients=2".parse(), Ok(flood.clone()));
/// assert_eq!(arrivals(&[flood], 1)?.count(), 1_200);
/// # Ok::<(), tollgate::simulate::TrafficError>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Traffic {
    pattern: Pattern,
    calls: u32,
    per: Duration,
    from: Duration,
    lasting: Duration,
    clients: u32,
    cost: Tokens,
    key: String,
}

impl Traffic {
    /// The most clients.
    pub const MAX_CLIENTS: u32 = 100_000;

    /// `calls` in each `per`, evenly spaced; the first at once.
    #[must_use]
    pub fn constant(calls: u32, per: Duration) -> Self {
        Self::of(Pattern::Constant, calls, per)
    }

    /// `calls` in each `per` on average, each of them independent of all others.
    #[must_use]
    pub fn poisson(calls: u32, per: Duration) -> Self {
        Self::of(Pattern::Poisson, calls, per)
    }

    /// `size` calls at one instant, again after each `every`; the first at once.
    #[must_use]
    pub fn burst(size: u32, every: Duration) -> Self {
        Self::of(Pattern::Burst, size, every)
    }

    /// At random, `calls` in each `per` on the day's average: 1.8 times that at noon, and a fifth of it at midnight.
    #[must_use]
    pub fn diurnal(calls: u32, per: Duration) -> Self {
        Self::of(Pattern::Diurnal, calls, per).lasting(DAY)
    }

    /// For how long: a minute unless set, a day for [`diurnal`](Self::diurnal). The end itself is not in it.
    #[must_use]
    pub fn lasting(self, lasting: Duration) -> Self {
        Self { lasting, ..self }
    }

    /// How long after [`START`] it begins.
    #[must_use]
    pub fn from(self, from: Duration) -> Self {
        Self { from, ..self }
    }

    /// How many clients, each of whom makes all of these calls under a key of its own.
    #[must_use]
    pub fn clients(self, clients: u32) -> Self {
        Self { clients, ..self }
    }

    /// How many tokens each call asks for; 1 unless set.
    #[must_use]
    pub fn cost(self, cost: Tokens) -> Self {
        Self { cost, ..self }
    }

    /// The client's key, `client` unless set; several are numbered `client-1`, `client-2`, and so on.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self }
    }

    fn of(pattern: Pattern, calls: u32, per: Duration) -> Self {
        let key = CLIENT.to_owned();
        let (from, lasting) = (Duration::ZERO, Duration::from_mins(1));
        Self { pattern, calls, per, from, lasting, clients: 1, cost: Tokens::ONE, key }
    }

    fn check(&self) -> Result<(), TrafficError> {
        let longest = Limit::MAX_PERIOD;
        if self.calls == 0 || self.clients == 0 || self.lasting < MICROSECOND || self.per < MICROSECOND {
            return Err(TrafficError::Nothing);
        }
        if self.from > longest || self.lasting > longest || self.per > longest {
            return Err(TrafficError::TooLong);
        }
        if self.clients > Self::MAX_CLIENTS {
            return Err(TrafficError::TooManyClients);
        }
        if self.cost.is_negative() { Err(TokensError::Negative.into()) } else { Ok(()) }
    }

    fn end(&self) -> Duration {
        self.from.saturating_add(self.lasting)
    }

    /// One source for each client, counted over all traffic from `first` on.
    fn sources(&self, seed: u64, first: usize) -> Result<Vec<Source>, TrafficError> {
        self.check()?;
        let key = |number: u32| if self.clients == 1 { self.key.clone() } else { format!("{}-{number}", self.key) };
        let source = |number: u32| {
            Ok(Source {
                key: Key::new(key(number))?,
                cost: self.cost,
                from: micros(self.from),
                lasting: micros(self.lasting),
                pace: Pace::of(self, seed, first as u64 + u64::from(number)),
            })
        };
        (1..=self.clients).map(source).collect()
    }
}

impl FromStr for Traffic {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let Words { kind, fields, flags } = Words::of(text)?;
        let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name() == kind);
        let pattern = pattern.ok_or_else(|| TrafficError::UnknownKind { kind: kind.to_owned() })?;
        if let Some(word) = flags.first() {
            return Err(TrafficError::UnknownField { field: (*word).to_owned() });
        }
        let [calls, per] = pattern.fields();
        let mut traffic = match pattern {
            Pattern::Diurnal => Self::diurnal(0, Duration::ZERO),
            other => Self::of(other, 0, Duration::ZERO),
        };
        for (field, value) in fields {
            let bad = |fault: String| TrafficError::Field { field: field.to_owned(), fault };
            let span = || humantime::parse_duration(value).map_err(|error| bad(error.to_string()));
            let count = || value.parse::<u32>().map_err(|_| bad("it is no whole number up to 4294967295".to_owned()));
            match field {
                field if field == calls => traffic.calls = count()?,
                field if field == per => traffic.per = span()?,
                "for" => traffic.lasting = span()?,
                "from" => traffic.from = span()?,
                "clients" => traffic.clients = count()?,
                "cost" => traffic.cost = value.parse().map_err(|error: TokensError| bad(error.to_string()))?,
                "key" => value.clone_into(&mut traffic.key),
                _ => return Err(TrafficError::UnknownField { field: field.to_owned() }),
            }
        }
        traffic.check()?;
        Ok(traffic)
    }
}

impl fmt::Display for Traffic {
    /// The text that it is read from, without what is so by default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [calls, per] = self.pattern.fields();
        write!(f, "{} {calls}={} {per}={}", self.pattern.name(), self.calls, one_word(self.per))?;
        write!(f, " for={}", one_word(self.lasting))?;
        if !self.from.is_zero() {
            write!(f, " from={}", one_word(self.from))?;
        }
        if self.clients > 1 {
            write!(f, " clients={}", self.clients)?;
        }
        if self.cost != Tokens::ONE {
            write!(f, " cost={}", self.cost)?;
        }
        if self.key == CLIENT { Ok(()) } else { write!(f, " key={}", self.key) }
    }
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Pattern {
    Burst,
    Constant,
    Diurnal,
    Poisson,
}

impl Pattern {
    const ALL: [Self; 4] = [Self::Burst, Self::Constant, Self::Diurnal, Self::Poisson];

    const fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Constant => "constant",
            Self::Diurnal => "diurnal",
            Self::Poisson => "poisson",
        }
    }

    /// What a text calls the number of calls, and the span that it is meant for.
    const fn fields(self) -> [&'static str; 2] {
        match self {
            Self::Burst => ["size", "every"],
            Self::Constant | Self::Diurnal | Self::Poisson => ["rate", "per"],
        }
    }
}

/// The calls of all traffic in the order of their instants; at one instant in the order given.
///
/// The same traffic and seed make the same calls.
///
/// # Errors
///
/// [`TrafficError`] for a pattern without calls or beyond all bounds, and for a key that is none.
pub fn arrivals(traffic: &[Traffic], seed: u64) -> Result<Arrivals, TrafficError> {
    let mut sources = Vec::new();
    for traffic in traffic {
        sources.extend(traffic.sources(seed, sources.len())?);
    }
    let mut arrivals = Arrivals { sources, next: BinaryHeap::new() };
    (0..arrivals.sources.len()).for_each(|source| arrivals.draw(source));
    Ok(arrivals)
}

/// How long after [`START`] the last of the traffic ends.
#[must_use]
pub fn span(traffic: &[Traffic]) -> Duration {
    traffic.iter().map(Traffic::end).max().unwrap_or_default()
}

/// The calls of traffic, in order; see [`arrivals`].
#[derive(Clone, Debug)]
pub struct Arrivals {
    sources: Vec<Source>,
    /// The next call of each source that has one: when, and whose.
    next: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl Arrivals {
    fn draw(&mut self, source: usize) {
        let next = self.sources[source].next();
        self.next.extend(next.map(|at| Reverse((at, source))));
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, source)) = self.next.pop()?;
        self.draw(source);
        let Source { key, cost, .. } = &self.sources[source];
        Some(Arrival { at, key: key.clone(), cost: *cost })
    }
}

/// The calls of one client.
#[derive(Clone, Debug)]
struct Source {
    key: Key,
    cost: Tokens,
    /// Microseconds after [`START`], and from there to the end.
    from: u64,
    lasting: u64,
    pace: Pace,
}

impl Source {
    fn next(&mut self) -> Option<Timestamp> {
        let offset = self.pace.next(self.from).filter(|offset| *offset < self.lasting)?;
        // Both are at most a thousand years.
        Some(START.plus(Duration::from_micros(self.from + offset)))
    }
}

/// Where in its pattern a client is; instants are microseconds after the pattern began.
#[derive(Clone, Debug)]
enum Pace {
    Constant { calls: u64, per: u64, made: u64 },
    Burst { size: u64, every: u64, made: u64 },
    Random { chance: Box<Pcg64Mcg>, mean_gap: f64, last: f64, is_daily: bool },
}

impl Pace {
    fn of(traffic: &Traffic, seed: u64, source: u64) -> Self {
        let (calls, per) = (u64::from(traffic.calls), micros(traffic.per));
        // Each client draws lots of its own, so that one more of them changes nothing for the others.
        let chance = || Box::new(Pcg64Mcg::seed_from_u64(seed ^ source.wrapping_mul(GOLDEN)));
        #[expect(clippy::cast_precision_loss, reason = "what comes at random is not asked to the microsecond")]
        let mean_gap = |peak: f64| per as f64 / (f64::from(traffic.calls) * peak);
        match traffic.pattern {
            Pattern::Burst => Self::Burst { size: calls, every: per, made: 0 },
            Pattern::Constant => Self::Constant { calls, per, made: 0 },
            Pattern::Diurnal => {
                Self::Random { chance: chance(), mean_gap: mean_gap(1.0 + SWING), last: 0.0, is_daily: true }
            }
            Pattern::Poisson => Self::Random { chance: chance(), mean_gap: mean_gap(1.0), last: 0.0, is_daily: false },
        }
    }

    fn next(&mut self, from: u64) -> Option<u64> {
        match self {
            Self::Constant { calls, per, made } => {
                let offset = u128::from(*made) * u128::from(*per) / u128::from(*calls);
                *made += 1;
                u64::try_from(offset).ok()
            }
            Self::Burst { size, every, made } => {
                let offset = (*made / *size).checked_mul(*every);
                *made += 1;
                offset
            }
            Self::Random { chance, mean_gap, last, is_daily } => loop {
                let gap: f64 = Exp1.sample(chance);
                *last += gap * *mean_gap;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "positive; a float too large becomes the largest"
                )]
                let offset = *last as u64;
                // Of the calls of an even peak, as many are kept as the hour has of it.
                let kept: f64 = if *is_daily { StandardUniform.sample(chance) } else { 0.0 };
                if !*is_daily || kept * (1.0 + SWING) < 1.0 + SWING * of_day(from.saturating_add(offset)) {
                    return Some(offset);
                }
            },
        }
    }
}

/// From -1 at midnight to 1 at noon.
fn of_day(offset: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "less than a day in microseconds is exact")]
    let share = (offset % micros(DAY)) as f64 / micros(DAY) as f64;
    -(share * std::f64::consts::TAU).cos()
}

fn one_word(span: Duration) -> String {
    humantime::format_duration(span).to_string().replace(' ', "")
}

/// Spans of traffic are checked before: a thousand years at most.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Why a pattern of traffic cannot be followed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// A cost that is no amount of tokens.
    #[error("the cost: {0}")]
    Cost(#[from] TokensError),
    /// A field whose value is malformed.
    #[error("{field} of the traffic: {fault}")]
    Field {
        /// Which.
        field: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A key that cannot name anybody.
    #[error("the key: {0}")]
    Key(#[from] KeyError),
    /// No calls: a rate, a number of clients or a span that is missing or zero.
    #[error(
        "this traffic makes no calls (give rate and per, for bursts size and every, each more than zero, and for how long)"
    )]
    Nothing,
    /// A span beyond a thousand years.
    #[error("a span of the traffic is longer than 1000 years")]
    TooLong,
    /// More than [`Traffic::MAX_CLIENTS`].
    #[error("there are more than {} clients", Traffic::MAX_CLIENTS)]
    TooManyClients,
    /// A field that this kind of traffic does not have.
    #[error(
        "{field:?} is no field of this traffic (rate and per, for bursts size and every; for, from, clients, cost, key)"
    )]
    UnknownField {
        /// Which.
        field: String,
    },
    /// A pattern that there is not.
    #[error("{kind:?} is no kind of traffic (burst, constant, diurnal or poisson)")]
    UnknownKind {
        /// Which.
        kind: String,
    },
    /// Not a kind and its fields.
    #[error("{0}")]
    Words(#[from] WordsError),
}

const CLIENT: &str = "client";
const DAY: Duration = crate::DAY;
const MICROSECOND: Duration = Duration::from_micros(1);
/// How far the day's rate swings to either side of its mean.
const SWING: f64 = 0.8;
/// 2^64 over the golden ratio, by which neighbouring numbers end far from each other.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
