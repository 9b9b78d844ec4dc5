use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Mutex;

use crate::decision::Denied;
use crate::key::Key;
use crate::lock::lock;

/// A key that a gate has refused, and how often; see [`Gate::most_refused`](super::Gate::most_refused).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Refused {
    /// The limit that refused.
    pub limit: Cow<'static, str>,
    /// The key that was refused.
    pub key: Key,
    /// The number of refusals, at most.
    pub times: u64,
    /// By how much [`times`](Self::times) may be too high: 0 while no more keys were refused than are counted.
    pub excess: u64,
}

/// Counts refusals by key, in bounded memory: Space-Saving, after Metwally, Agrawal and El Abbadi, 2005.
///
/// A key that is not counted takes the place and the count of the key with the fewest refusals. So no count is too low,
/// and a key with more than an equal share of all refusals is always counted.
pub(super) struct Tally {
    bound: usize,
    counts: Mutex<HashMap<(Cow<'static, str>, Key), Count>>,
}

#[derive(Clone, Copy)]
struct Count {
    times: u64,
    excess: u64,
}

impl Tally {
    pub(super) fn new(bound: usize) -> Self {
        Self { bound, counts: Mutex::default() }
    }

    pub(super) fn note(&self, denied: &Denied) {
        let mut counts = lock(&self.counts);
        let key = (denied.limit.clone(), denied.key.clone());
        if let Some(count) = counts.get_mut(&key) {
            count.times += 1;
            return;
        }
        let mut excess = 0;
        if counts.len() >= self.bound {
            let least = counts.iter().min_by_key(|(_, count)| count.times);
            let Some((least, times)) = least.map(|(key, count)| (key.clone(), count.times)) else { return };
            counts.remove(&least);
            excess = times;
        }
        counts.insert(key, Count { times: excess + 1, excess });
    }

    /// The keys with the most refusals, in falling order.
    pub(super) fn most(&self, n: usize) -> Vec<Refused> {
        let counts = lock(&self.counts);
        let mut most: Vec<_> = counts.iter().collect();
        most.sort_by(|(key, count), (other, others)| others.times.cmp(&count.times).then_with(|| key.cmp(other)));
        let refused = |((limit, key), count): (&(Cow<'static, str>, Key), &Count)| Refused {
            limit: limit.clone(),
            key: key.clone(),
            times: count.times,
            excess: count.excess,
        };
        most.into_iter().take(n).map(refused).collect()
    }
}
