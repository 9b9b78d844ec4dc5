//! How this run of the tests is set up, by environment variables: with parts or without, through a pooler or not.

/// Whether the tables have parts.
pub(crate) fn is_distributed() -> bool {
    std::env::var_os(DISTRIBUTED).is_some()
}

/// Whether the tables lie on the nodes of a cluster.
pub(crate) fn is_on_citus() -> bool {
    let url = std::env::var_os("DATABASE_URL");
    is_distributed() && url.is_some() && url == std::env::var_os(CITUS_URL)
}

/// How many parts the tables have; 0 for plain ones.
pub(crate) fn parts() -> u16 {
    if is_distributed() { PARTS } else { 0 }
}

/// The parts that the tables have.
pub(crate) fn numbers() -> &'static [i16] {
    if is_distributed() { &NUMBERS } else { &[0] }
}

/// The part that a row of this key lies in: for rows that a test writes by hand.
pub(crate) fn part(key: &str) -> i16 {
    if is_distributed() { part_of(key) } else { 0 }
}

/// The part that a row of this key lies in where there are [`PARTS`].
pub(crate) fn part_of(key: &str) -> i16 {
    NUMBERS[usize::from(shard_of(key, PARTS))]
}

/// The shard of Citus, of so many, that a key falls into. The hash is written down once more, because stored rows lie
/// where it says.
pub(crate) fn shard_of(key: &str, parts: u16) -> u16 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    let mut hash = key.bytes().fold(0xCBF2_9CE4_8422_2325, fnv);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^= hash >> 33;
    (hash % u64::from(parts)).try_into().unwrap()
}

/// Whether the code under test goes through a pooler.
pub(crate) fn is_pooled() -> bool {
    std::env::var_os(POOLER).is_some()
}

/// Whether statements are to have no names.
pub(crate) fn is_unnamed() -> bool {
    is_pooled() && !is_named()
}

pub(super) fn is_named() -> bool {
    std::env::var_os(POOLER).is_some_and(|chosen| chosen == NAMED)
}

pub(crate) const POOLER: &str = "TOLLGATE_TEST_POOLER";
/// The value of [`POOLER`] where the pooler follows named statements.
pub(crate) const NAMED: &str = "named";
pub(crate) const DISTRIBUTED: &str = "TOLLGATE_TEST_DISTRIBUTED";
/// Names the URL of an administrator of a Citus cluster, on its coordinator.
pub(crate) const CITUS_URL: &str = "CITUS_URL";
/// The number of parts of distributed tables.
pub(crate) const PARTS: u16 = 8;
/// Their numbers, in the order of the shards that they fall into.
pub(crate) const NUMBERS: [i16; PARTS as usize] = [79, 77, 85, 64, 97, 66, 95, 67];
