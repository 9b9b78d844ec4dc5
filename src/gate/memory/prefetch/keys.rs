#![expect(clippy::disallowed_methods, reason = "a hash that no other process needs, by a seed that nobody can guess")]

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::demand::Demand;
use super::slice::Slice;
use crate::call::Request;
use crate::key::Key;
use crate::limit::Limit;
use crate::tokens::Tokens;
use crate::values::lock::{read, write};

/// The keys of recent calls, with their slices.
#[derive(Debug)]
pub(super) struct Keys {
    hasher: RandomState,
    shards: Box<[RwLock<Cell>]>,
    count: AtomicUsize,
}

/// Keys by their hash. If a key has the hash of another key, its calls go to the database.
pub(super) type Cell = HashMap<u64, Followed, BuildHasherDefault<Hashed>>;

/// A key of a limit that recent calls have asked.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) limit: Limit,
    pub(super) key: Key,
    pub(super) max_age: Duration,
    pub(super) demand: Demand,
    pub(super) slice: Option<Box<Slice>>,
    /// Whether a slice is being charged.
    pub(super) is_pending: bool,
    /// How often its slice was forfeited. A charge that was sent before the last time is forfeited when its answer
    /// comes.
    pub(super) forfeits: u64,
}

impl Keys {
    pub(super) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { hasher: RandomState::new(), shards, count: AtomicUsize::new(0) }
    }

    pub(super) fn hash(&self, limit: &Limit, key: &Key) -> u64 {
        self.hasher.hash_one((limit.name(), key.as_str()))
    }

    /// The shard of a hash, locked for reading.
    pub(super) fn read(&self, hash: u64) -> RwLockReadGuard<'_, Cell> {
        read(self.shard(hash))
    }

    pub(super) fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Cell> {
        write(self.shard(hash))
    }

    fn shard(&self, hash: u64) -> &RwLock<Cell> {
        // A map looks first at other bits of the hash.
        let place = (hash >> 40) as usize % SHARDS;
        &self.shards[place]
    }

    /// All shards, one after another.
    pub(super) fn shards(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, Cell>> {
        self.shards.iter().map(write)
    }

    /// Follows a key from now on, if no other key has its hash and there is room.
    pub(super) fn follow<'s>(&self, shard: &'s mut Cell, hash: u64, key: Followed) -> Option<&'s mut Followed> {
        let Entry::Vacant(place) = shard.entry(hash) else { return None };
        let has_room = self.count.load(Ordering::Relaxed) < MAX_KEYS;
        has_room.then(|| {
            self.count.fetch_add(1, Ordering::Relaxed);
            place.insert(key)
        })
    }

    pub(super) fn forget(&self, shard: &mut Cell, hash: u64) {
        if shard.remove(&hash).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Followed {
    pub(super) fn new(limit: &Limit, key: &Key, max_age: Duration, now: Instant) -> Self {
        let (limit, key, demand) = (limit.clone(), key.clone(), Demand::new(now));
        Self { limit, key, max_age, demand, slice: None, is_pending: false, forfeits: 0 }
    }

    pub(super) fn is_of(&self, limit: &Limit, key: &Key) -> bool {
        self.limit.name == limit.name && self.key == *key
    }

    pub(super) fn request(&self) -> Request {
        self.limit.ask(Ok(self.key.clone()))
    }

    /// The tokens that can be spent of its slice.
    pub(super) fn held(&self) -> Tokens {
        self.slice.as_ref().map_or(Tokens::ZERO, |slice| slice.left())
    }

    /// Drops the slice, even one that is being charged.
    pub(super) fn forfeit(&mut self, limit: &Limit, now: Instant) {
        self.slice = None;
        self.forfeits += 1;
        if self.limit != *limit {
            (self.limit, self.demand) = (limit.clone(), Demand::new(now));
        }
    }
}

/// A number that is already a hash.
#[derive(Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// With so many shards, batches and calls of different keys seldom meet.
const SHARDS: usize = 64;

/// These take some tens of megabytes, with keys of the usual length. Calls of further keys ask the database.
const MAX_KEYS: usize = 100_000;
