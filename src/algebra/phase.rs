use crate::key::Key;

/// The phase of a spread grid, in `[0, period)`: the hash `tollgate-spread-1` of name and key, scaled to the period.
///
/// `tollgate-spread-1` is 64-bit FNV-1a (Fowler, Noll and Vo) over the name, a byte 0xFF, which occurs in no UTF-8 text, and
/// the key, followed by the finalizer of MurmurHash3 (A. Appleby), for FNV alone leaves the high bits of short texts alike.
/// Stored rows stand on these grids: another hash would be another name and a choice, never an edit.
pub(super) fn spread(name: &str, key: &Key, period: i64) -> i64 {
    let bytes = name.bytes().chain([0xFF]).chain(key.as_str().bytes());
    let hash = bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    let scaled = (u128::from(mixed(hash)) * u128::from(period.unsigned_abs())) >> 64;
    // Less than the period, which is an `i64`; the fallback is never taken.
    i64::try_from(scaled).unwrap_or_default()
}

fn mixed(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^ (hash >> 33)
}

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    /// Computed once, outside this crate; a row on disk relies on each of them.
    #[test]
    fn the_hash_never_changes() {
        assert_eq!(spread("sign_up", &Key::GLOBAL, HOUR), SIGN_UP);
        assert_eq!(spread("sign_up", &Key::new(42).unwrap(), HOUR), SIGN_UP_42);
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

    const SIGN_UP: i64 = 1_452_967_941;
    const SIGN_UP_42: i64 = 1_626_849_123;
}
