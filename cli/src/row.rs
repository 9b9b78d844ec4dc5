//! A row of either table as it is on disk, and its place in the definition of its limit.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::json;
use sqlx::FromRow;
use tollgate::algebra::{Entry, List, State, Timestamp};
use tollgate::{Limit, Storage, Tokens};

use crate::output::instant;
use crate::storage;

/// Instants are in microseconds since the Unix epoch, the value is in micro-tokens, counted from a full row.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) shard: i16,
    pub(crate) storage: String,
    pub(crate) value: i64,
    pub(crate) as_of: i64,
    /// From when on it is as a missing row; null for never.
    full_at: Option<i64>,
    /// As text: a list that somebody else wrote may be one that no type reads.
    list: Option<String>,
}

impl Row {
    /// The state as it was written: it does not contain tokens that came back since.
    pub(crate) fn state(&self) -> State {
        let list = self.list.as_deref().and_then(List::from_text).unwrap_or_default();
        let full_at = self.full_at.map_or(Timestamp::MAX, Timestamp::from_micros);
        let row = State::new(Tokens::from_micros(self.value), Timestamp::from_micros(self.as_of));
        State { list, ..row.full_at(full_at) }
    }

    /// The used tokens, as of when it was written.
    pub(crate) fn used(&self) -> Tokens {
        Tokens::from_micros(self.value.min(0).saturating_neg())
    }

    /// The money, if it is a wallet's.
    pub(crate) fn balance(&self) -> Option<Tokens> {
        self.state().list.is_wallet().then_some(Tokens::from_micros(self.value))
    }

    /// Why each call that asks the row is an error, if it is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_readable = self.list.as_deref().is_none_or(|list| List::from_text(list).is_some());
        (!is_readable).then_some("its list cannot be read")
    }

    pub(crate) fn full_at(&self) -> Option<Timestamp> {
        self.full_at.map(Timestamp::from_micros).filter(|at| *at < Timestamp::MAX)
    }

    pub(crate) fn storage(&self) -> Storage {
        storage::of(&self.storage)
    }

    /// Its number among the rows that the limit keeps for each key. None for a row in the other table, and for a stale
    /// shard.
    pub(crate) fn index(&self, limit: &Limit) -> Option<usize> {
        let spec = limit.spec();
        let shard = u16::try_from(self.shard).ok().filter(|shard| *shard < spec.shards)?;
        (spec.storage == self.storage()).then_some(shard.into())
    }
}

/// The leases of a row that have not ended.
pub(crate) fn live_leases(state: &State, now: Timestamp) -> impl Iterator<Item = &Entry> {
    let leases = if let List::Leases(leases) = &state.list { leases.as_slice() } else { &[] };
    leases.iter().filter(move |lease| lease.ends_at > now)
}

/// How long it is until an instant; zero for one that has passed.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(at.micros().saturating_sub(now.micros())).unwrap_or(0))
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let State { ts, list, .. } = self.state();
        let full_at = self.full_at().map(instant);
        let Self { storage, shard, .. } = self;
        let as_of = instant(ts);
        let entry = |entry: &Entry| json!({ "amount": entry.amount, "ends_at": instant(entry.ends_at) });
        let entries = |is_listed: bool| list.entries().iter().filter(|_| is_listed).map(entry).collect::<Vec<_>>();
        let (grants, leases) = (entries(matches!(list, List::Grants(_))), entries(matches!(list, List::Leases(_))));
        json!({
            "storage": storage, "shard": shard, "used": self.used(), "balance": self.balance(), "as_of": as_of,
            "full_at": full_at, "grants": grants, "leases": leases, "fault": self.fault()
        })
        .serialize(serializer)
    }
}
