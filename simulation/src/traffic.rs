use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::str::FromStr;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use tollgate::algebra::Timestamp;
use tollgate::{Key, Limit, Span, SpanError, Tokens};

use crate::arrival::{Arrival, cost_of};

/// When synthetic traffic begins: midnight of 1 January 2025, UTC. Windows that are aligned to the clock are aligned to
/// it.
pub const START: Timestamp = Timestamp::from_micros(1_735_689_600_000_000);

/// Calls that follow a pattern, made by one client or by several.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The text that it is read from: a pattern and its fields, as in `poisson rate=12 per=1s for=5m`.
    pub text: String,
    pattern: Pattern,
    calls: u32,
    /// Spans are in microseconds, and at most [`Limit::MAX_PERIOD`] long.
    per: u64,
    from: u64,
    lasting: u64,
    cost: Tokens,
    /// One for each client, which makes all of the calls.
    keys: Vec<Key>,
}

/// How calls follow each other.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// So many at one instant, again and again.
    Burst,
    /// Evenly spaced.
    Constant,
    /// At random, each call independent of all others.
    Poisson,
}

impl Traffic {
    /// When the last of its calls has been made.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        START.plus(Duration::from_micros(self.from + self.lasting))
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let (pattern, calls, per) = match words.next().unwrap_or_default() {
            "burst" => (Pattern::Burst, "size", "every"),
            "constant" => (Pattern::Constant, "rate", "per"),
            "poisson" => (Pattern::Poisson, "rate", "per"),
            other => return Err(format!("{other:?} is no pattern of traffic (burst, constant or poisson)")),
        };
        let (text, keys, cost) = (text.to_owned(), Vec::new(), Tokens::ONE);
        let mut traffic = Self { text, pattern, calls: 0, per: 0, from: 0, lasting: 60_000_000, cost, keys };
        let (mut key, mut clients) = ("client", 1_u16);
        for word in words {
            let (field, value) = word.split_once('=').unwrap_or((word, ""));
            let read = match field {
                "key" => {
                    key = value;
                    Ok(())
                }
                "clients" => count(value).map(|count| clients = count),
                "cost" => cost_of(value).map(|cost| traffic.cost = cost),
                "for" => span(value).map(|lasting| traffic.lasting = lasting),
                "from" => span(value).map(|from| traffic.from = from),
                field if field == calls => count(value).map(|calls| traffic.calls = calls),
                field if field == per => span(value).map(|per| traffic.per = per),
                _ => Err(format!("there is no such field ({calls}, {per}, for, from, clients, cost, key)")),
            };
            read.map_err(|what| format!("{word:?}: {what}"))?;
        }
        if traffic.calls == 0 || traffic.per == 0 || traffic.lasting == 0 || clients == 0 {
            return Err(format!("this traffic makes no calls (give {calls} and {per}, each more than zero)"));
        }
        let key_of = |number| Key::new(if clients == 1 { key.to_owned() } else { format!("{key}-{number}") });
        let keys = (1..=clients).map(key_of).collect::<Result<_, _>>();
        Ok(Self { keys: keys.map_err(|error| format!("the key: {error}"))?, ..traffic })
    }
}

pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it is no whole number, or too large".to_owned())
}

pub(crate) fn span(text: &str) -> Result<u64, String> {
    let Span(span) = text.parse().map_err(|error: SpanError| error.to_string())?;
    let micros = u64::try_from(span.as_micros()).ok().filter(|_| span <= Limit::MAX_PERIOD);
    micros.ok_or_else(|| "it is longer than 1000 years".to_owned())
}

/// The calls of all traffic in the order of their instants; at one instant in the order given.
///
/// The same traffic and seed make the same calls.
#[derive(Debug)]
pub struct Arrivals<'t> {
    clients: Vec<Client<'t>>,
    /// The next call of each client that has one: when, and whose.
    next: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl<'t> Arrivals<'t> {
    /// The calls of each client of each traffic.
    #[must_use]
    pub fn new(traffic: &'t [Traffic], seed: u64) -> Self {
        let keys = traffic.iter().flat_map(|traffic| traffic.keys.iter().map(move |key| (traffic, key)));
        let clients = (1..).zip(keys).map(|(number, (traffic, key))| Client::new(traffic, key, seed, number));
        let mut arrivals = Self { clients: clients.collect(), next: BinaryHeap::new() };
        (0..arrivals.clients.len()).for_each(|client| arrivals.draw(client));
        arrivals
    }

    fn draw(&mut self, client: usize) {
        let next = self.clients[client].next();
        self.next.extend(next.map(|at| Reverse((at, client))));
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, client)) = self.next.pop()?;
        self.draw(client);
        let Client { traffic, key, .. } = self.clients[client];
        Some(Arrival { at, key: key.clone(), cost: traffic.cost })
    }
}

/// The calls of one client.
#[derive(Debug)]
struct Client<'t> {
    traffic: &'t Traffic,
    key: &'t Key,
    made: u64,
    chance: Pcg64Mcg,
    /// The sum of the random gaps, in microseconds.
    elapsed: f64,
}

impl<'t> Client<'t> {
    fn new(traffic: &'t Traffic, key: &'t Key, seed: u64, number: u64) -> Self {
        // Each client draws from a generator of its own, so that one more client changes nothing for the others.
        let chance = Pcg64Mcg::seed_from_u64(seed ^ number.wrapping_mul(GOLDEN));
        Self { traffic, key, made: 0, chance, elapsed: 0.0 }
    }

    fn next(&mut self) -> Option<Timestamp> {
        let Traffic { pattern, calls, per, from, lasting, .. } = *self.traffic;
        let offset = match pattern {
            Pattern::Burst => u128::from(self.made / u64::from(calls)) * u128::from(per),
            Pattern::Constant => u128::from(self.made) * u128::from(per) / u128::from(calls),
            Pattern::Poisson => self.at_random(),
        };
        self.made += 1;
        let offset = u64::try_from(offset).ok().filter(|offset| *offset < lasting)?;
        Some(START.plus(Duration::from_micros(from + offset)))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "positive; what comes at random is not asked to the microsecond"
    )]
    fn at_random(&mut self) -> u128 {
        // Never 0, which has no logarithm: from 2^-53 to 1.
        let chance = ((self.chance.next_u64() >> 11) + 1) as f64 * (f64::EPSILON / 2.0);
        self.elapsed -= libm::log(chance) * (self.traffic.per as f64 / f64::from(self.traffic.calls));
        self.elapsed as u128
    }
}

/// 2^64 over the golden ratio, by which neighbouring numbers end far from each other.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    /// Of gaps that are independent of each other, e^(-n / 2) are longer than n halves of the mean.
    #[test]
    fn random_gaps_are_those_of_independent_calls() {
        let traffic = ["poisson rate=1 per=1s for=100000s".parse().unwrap()];
        let instants: Vec<_> = Arrivals::new(&traffic, 1).map(|call| call.at.micros()).collect();
        for (halves, thousandths) in [(1, 607), (2, 368), (4, 135), (8, 18)] {
            let longer = instants.windows(2).filter(|pair| pair[1] - pair[0] > halves * 500_000).count();
            let found = longer * 1_000 / instants.len();
            assert!(
                found.abs_diff(thousandths) <= 4,
                "{found} of a thousand are longer than {halves} halves of the mean"
            );
        }
    }
}
