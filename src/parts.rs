use crate::hash::stable_hash;
use crate::key::Key;

/// Over how many parts Citus distributes the tables; none on plain PostgreSQL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Parts(u16);

impl Parts {
    /// So many parts; 0 for plain PostgreSQL.
    ///
    /// # Panics
    ///
    /// Unless the number is 0 or a power of two, at most 16 384.
    #[track_caller]
    pub(crate) const fn new(parts: u16) -> Self {
        assert!(
            parts == 0 || parts.is_power_of_two() && parts <= 1 << 14,
            "parts must be a power of two, at most 16384"
        );
        Self(parts)
    }

    pub(crate) fn is_distributed(self) -> bool {
        self.0 > 0
    }

    /// The part of a key; 0 where nothing is distributed. All limits of a key are in one part, so a call about one key
    /// is one part's affair. Stored rows lie in these parts: the hash never changes.
    ///
    /// N parts are numbered from N to 2N − 1. So a part tells N, and a CHECK of the tables refuses a process that was
    /// told another one.
    pub(crate) fn of(self, key: &Key) -> u16 {
        if !self.is_distributed() {
            return 0;
        }
        let index = stable_hash(key.as_str().bytes()) % u64::from(self.0);
        self.0 + u16::try_from(index).expect("there are at most 16384 parts")
    }
}
