use std::hash::{DefaultHasher, Hash, Hasher};

use crate::key::Key;

/// A hash that is the same in every process and release: 64-bit FNV-1a (Fowler, Noll and Vo), followed by the finalizer
/// of MurmurHash3 (A. Appleby). FNV alone leaves the high bits of short texts alike.
pub(crate) fn stable_hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let mut hash = bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}

/// The phase of a spread grid, in `[0, period)`: the hash `tollgate-spread-1` of name and key, scaled to the period.
///
/// `tollgate-spread-1` is [`stable_hash`] over the name, a byte 0xFF, which occurs in no UTF-8 text, and the key.
/// Stored rows stand on these grids. So the hash is never edited: another hash gets another name, and is a new option.
pub(crate) fn spread(name: &str, key: &Key, period: i64) -> i64 {
    let hash = stable_hash(name.bytes().chain([0xFF]).chain(key.as_str().bytes()));
    let scaled = (u128::from(hash) * u128::from(period.unsigned_abs())) >> 64;
    i64::try_from(scaled).expect("it is less than the period")
}

/// A hash for this process alone.
pub(crate) fn local_hash(value: &impl Hash) -> usize {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    // Any bits will do, if `usize` has fewer.
    #[expect(clippy::cast_possible_truncation, reason = "a hash")]
    let hash = hasher.finish() as usize;
    hash
}

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    /// The values were computed once, outside of this crate; stored rows rely on them.
    #[test]
    fn the_hash_never_changes() {
        assert_eq!(spread("sign_up", &Key::GLOBAL, HOUR), 1_452_967_941);
        assert_eq!(spread("sign_up", &Key::new(42).unwrap(), HOUR), 1_626_849_123);
    }

    #[test]
    fn phases_are_spread_evenly_over_the_period() {
        let mut tenths = [0_u32; 10];
        for id in 0..10_000 {
            let phase = spread("sign_up", &Key::new(id).unwrap(), HOUR);
            tenths[usize::try_from(phase * 10 / HOUR).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (850..1_150).contains(count)), "{tenths:?}");
    }
}
