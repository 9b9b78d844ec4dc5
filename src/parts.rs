use std::ops::RangeInclusive;

use crate::key::Key;
use crate::values::hash::stable_hash;

/// The number of parts over which Citus distributes the tables; 0 on plain PostgreSQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Parts(u16);

impl Parts {
    /// The most parts for which the column can hold all numbers.
    pub(crate) const MAX: u16 = 2048;

    /// So many parts; 0 for plain PostgreSQL.
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 2048.
    #[track_caller]
    pub(crate) const fn new(parts: u16) -> Self {
        assert!(
            parts == 0 || parts.is_power_of_two() && parts <= Self::MAX,
            "parts must be a power of two, at most 2048"
        );
        Self(parts)
    }

    /// The parts that a table says it has, unless somebody made its CHECK by hand.
    pub(crate) fn read(parts: i32) -> Option<Self> {
        let is_right = |parts: &u16| *parts == 0 || parts.is_power_of_two() && *parts <= Self::MAX;
        u16::try_from(parts).ok().filter(is_right).map(Self)
    }

    pub(crate) fn count(self) -> u16 {
        self.0
    }

    pub(crate) fn is_distributed(self) -> bool {
        self.0 > 0
    }

    /// The range of the numbers of N parts: from 8N to 16N − 1. So the number of a part determines N, and a CHECK of
    /// the tables refuses a process that was given another N.
    pub(crate) const fn numbers(self) -> RangeInclusive<u16> {
        if self.0 == 0 { 0..=0 } else { 8 * self.0..=16 * self.0 - 1 }
    }

    /// The part of a key; 0 where nothing is distributed. All limits of a key are in one part, so a call about one key
    /// touches one part only. Stored rows lie in these parts, so neither hash may ever change.
    ///
    /// Citus hashes the number of a part once more, and cuts the range of these hashes into N shards. Each part has the
    /// first number that falls into its own shard; consecutive numbers would leave many shards empty.
    pub(crate) fn of(self, key: &Key) -> u16 {
        if !self.is_distributed() {
            return 0;
        }
        self.number(stable_hash(key.as_str().bytes()) % u64::from(self.0))
    }

    /// All numbers, in the order of the shards.
    pub(crate) fn all(self) -> impl Iterator<Item = u16> {
        (0..u64::from(self.0).max(1)).map(move |shard| self.number(shard))
    }

    fn number(self, shard: u64) -> u16 {
        let falls_into_it = |number: &u16| (u64::from(hashint2(*number)) * u64::from(self.0)) >> 32 == shard;
        self.numbers().find(falls_into_it).expect("a test finds a number for each shard, whatever the number of parts")
    }
}

/// PostgreSQL's function of this name, counted from its least result: the final mix of lookup3 (Bob Jenkins), for one
/// word.
fn hashint2(number: u16) -> u32 {
    let mut words = [0x9E37_79B9 + 4 + 3_923_095_u32; 3];
    words[0] = words[0].wrapping_add(number.into());
    for (word, other, bits) in [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)] {
        words[word] = (words[word] ^ words[other]).wrapping_sub(words[other].rotate_left(bits));
    }
    words[2] ^ (1 << 31)
}
