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

const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;
