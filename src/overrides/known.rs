use std::collections::{BTreeMap, HashMap};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use tokio::sync::watch;

use super::precedence::applied;
use super::row::Override;
use super::ruling::AppliedOverride;
use crate::algebra::Timestamp;
use crate::key::Key;
use crate::limit::Limit;
use crate::values::lock;

/// The overrides of the table, as far as this process knows them.
pub(super) struct Known {
    /// Spares the lock where there is no override.
    pub(super) is_empty: AtomicBool,
    reading: RwLock<LastReading>,
    /// Reports go over this pool; `None` for overrides that were read once.
    pub(super) pool: Option<PgPool>,
    /// Notified when the map was swapped.
    pub(super) changed: watch::Sender<()>,
}

/// The last reading.
pub(super) struct LastReading {
    pub(super) map: Map,
    /// Tells whether the table has changed; `None` if this process knows more than it has read.
    pub(super) stamp: Option<Stamp>,
    /// The reports of this process since that reading began, and when each was noted.
    pub(super) noted: Vec<(Instant, Override)>,
    /// The reading of the database's clock, and in `read` when its answer came.
    pub(super) now: Timestamp,
    pub(super) read: Instant,
}

/// Tells versions of the table apart: the number of rows, and a hash over each row's key and the transaction that wrote
/// it. The sum of all `xmin` is no stamp. A transaction that begins before another and ends after it can lower the
/// `xmin` of one row by as much as it raises that of another.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Stamp {
    pub(super) rows: i64,
    pub(super) versions: i64,
}

/// The table, as a statement found it.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The clock, read after the snapshot.
    pub(super) now: Timestamp,
    pub(super) stamp: Stamp,
    /// `None` if nothing has changed.
    pub(super) map: Option<Map>,
}

impl Known {
    pub(super) fn new(reading: LastReading, pool: Option<PgPool>) -> Self {
        let is_empty = AtomicBool::new(reading.map.is_empty());
        let (reading, changed) = (RwLock::new(reading), watch::Sender::new(()));
        Self { is_empty, reading, pool, changed }
    }

    pub(super) fn known<T>(&self, of: impl FnOnce(&LastReading) -> T) -> T {
        of(&lock::read(&self.reading))
    }

    /// Goes by an override that this process has just reported. A reading that begins from now on includes it.
    pub(super) fn note(&self, said: Override) {
        let mut reading = lock::write(&self.reading);
        reading.noted.push((Instant::now(), said.clone()));
        reading.map.note(said);
        reading.stamp = None;
        drop(reading);
        self.is_empty.store(false, Ordering::Relaxed);
        self.changed.send_replace(());
    }

    /// Replaces the whole map, if it has changed, by a reading that began at an instant. Reports that were noted since
    /// may not be in it, and stay.
    pub(super) fn swap(&self, Snapshot { now, stamp, map }: Snapshot, began: Instant) {
        let mut reading = lock::write(&self.reading);
        (reading.now, reading.read) = (now, Instant::now());
        reading.noted.retain(|(at, _)| *at >= began);
        if let Some(mut map) = map {
            reading.noted.iter().for_each(|(_, said)| map.note_again(said));
            reading.stamp = Some(stamp);
            self.is_empty.store(map.is_empty(), Ordering::Relaxed);
            reading.map = map;
            drop(reading);
            self.changed.send_replace(());
        }
    }
}

impl LastReading {
    /// A reading whose answer has just come.
    pub(super) fn new(map: Map, stamp: Option<Stamp>, now: Timestamp) -> Self {
        Self { map, stamp, noted: Vec::new(), now, read: Instant::now() }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now.plus(self.read.elapsed())
    }
}

/// All overrides, by limit and key.
#[derive(Debug, Default)]
pub(crate) struct Map {
    limits: HashMap<String, OfLimit>,
}

#[derive(Debug, Default)]
struct OfLimit {
    /// The override that was set last comes first, here and in `keys`.
    every_key: Vec<Override>,
    keys: HashMap<Key, Vec<Override>>,
}

impl Map {
    pub(super) fn of(mut all: Vec<Override>) -> Self {
        all.sort_by(|one, other| (other.set_at, &other.label).cmp(&(one.set_at, &one.label)));
        let mut map = Self::default();
        for said in all {
            let limit = map.limits.entry(said.limit.clone()).or_default();
            match said.key.clone() {
                Some(key) => limit.keys.entry(key).or_default().push(said),
                None => limit.every_key.push(said),
            }
        }
        map
    }

    /// Puts an override in, instead of the one with its label.
    pub(super) fn note(&mut self, said: Override) {
        let limit = self.limits.entry(said.limit.clone()).or_default();
        let same = match said.key.clone() {
            Some(key) => limit.keys.entry(key).or_default(),
            None => &mut limit.every_key,
        };
        same.retain(|other| other.label != said.label);
        same.insert(0, said);
    }

    /// Puts a report into a reading that may have missed it, unless the reading has a later one in its place.
    pub(super) fn note_again(&mut self, said: &Override) {
        let key = said.key.as_ref().unwrap_or(&Key::GLOBAL);
        let is_same = |other: &&Override| (&other.key, &other.label) == (&said.key, &said.label);
        if self.set_for(&said.limit, key).find(is_same).is_none_or(|found| found.set_at < said.set_at) {
            self.note(said.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        self.limits.values().flat_map(|limit| limit.every_key.iter().chain(limit.keys.values().flatten()))
    }

    /// The least share of its rate that is left to a key of each limit that is slowed down.
    pub(super) fn shares(&self, now: DateTime<Utc>) -> BTreeMap<String, u32> {
        let mut shares = BTreeMap::new();
        for (said, share) in self.iter().filter_map(|said| Some((said, said.share(now)?))) {
            let least = shares.entry(said.limit.clone()).or_insert(share);
            *least = share.min(*least);
        }
        shares
    }

    /// The effect of the overrides on a limit for a key at an instant.
    pub(super) fn applied(&self, limit: &Limit, key: &Key, now: DateTime<Utc>) -> Option<AppliedOverride> {
        applied(limit, now, || self.set_for(limit.name(), key))
    }

    /// The overrides of a key, and then those of every key.
    pub(super) fn set_for(&self, limit: &str, key: &Key) -> impl Iterator<Item = &Override> {
        let of_limit = self.limits.get(limit);
        of_limit.into_iter().flat_map(|limit| limit.keys.get(key).into_iter().flatten().chain(&limit.every_key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::Effect;
    use crate::{DAY, HOUR};

    const LIMIT: Limit = Limit::token_bucket("their_service", 10, HOUR);

    /// A pause until the end of some hour, reported in the first.
    fn pause(set_at: i64, hours: u32) -> Override {
        let instant = |second| DateTime::<Utc>::from_timestamp(second, 0).unwrap();
        Override {
            limit: LIMIT.name().to_owned(),
            key: None,
            label: AppliedOverride::PAUSE.to_owned(),
            effect: Effect::Deny,
            starts_at: instant(set_at),
            ends_at: Some(instant(0) + HOUR * hours),
            reason: String::new(),
            set_by: String::new(),
            set_at: instant(set_at),
        }
    }

    fn reading(said: Vec<Override>) -> Snapshot {
        Snapshot { now: Timestamp::from_micros(0), stamp: Stamp::default(), map: Some(Map::of(said)) }
    }

    fn known() -> Known {
        let Snapshot { now, map, .. } = reading(Vec::new());
        Known::new(LastReading::new(map.unwrap(), None, now), None)
    }

    /// The end of the pause that counts, in hours.
    fn ends(known: &Known) -> Option<u64> {
        known.known(|known| {
            let of_key = known.map.set_for(LIMIT.name(), &Key::GLOBAL).find(|said| said.is_live(known.now().into()));
            of_key.and_then(|said| Some(said.ends_at?.timestamp().unsigned_abs() / HOUR.as_secs()))
        })
    }

    /// The clock of the last reading lags, so the report lies ahead of it.
    #[test]
    fn a_report_counts_at_once_though_the_clock_of_the_last_reading_is_behind() {
        let known = known();
        known.note(pause(1_800, 24));
        assert_eq!(ends(&known), Some(24));
        assert!(known.known(|known| known.map.applied(&LIMIT, &Key::GLOBAL, known.now().into())).is_some());
    }

    #[test]
    fn a_reading_that_began_before_a_report_leaves_it() {
        let (known, began) = (known(), Instant::now());
        known.note(pause(1, 1));
        known.swap(reading(Vec::new()), began);
        assert_eq!((ends(&known), known.is_empty.load(Ordering::Relaxed)), (Some(1), false));
        // It has seen a later report of another process.
        known.swap(reading(vec![pause(2, 2)]), began);
        assert_eq!(ends(&known), Some(2));
        // An earlier one.
        known.swap(reading(vec![pause(0, 3)]), began);
        assert_eq!(ends(&known), Some(1));
        // Somebody has lifted the pause.
        known.swap(reading(Vec::new()), Instant::now() + DAY);
        assert_eq!(ends(&known), None);
    }
}
