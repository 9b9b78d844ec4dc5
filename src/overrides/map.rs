use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};

use super::applied::AppliedOverride;
use super::choose::applied;
use super::row::Override;
use crate::key::Key;
use crate::limit::Limit;

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
