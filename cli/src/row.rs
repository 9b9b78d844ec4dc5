//! A row of either table as it is on disk, and its place in the definition of its limit.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::json;
use sqlx::FromRow;
use tollgate::algebra::{Hold, Holds, State, Timestamp};
use tollgate::{Limit, Storage, Tokens};

use crate::output::instant;
use crate::storage;

/// Instants are in microseconds since the Unix epoch, the balance is in micro-tokens.
#[derive(Clone, Debug, FromRow)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) shard: i16,
    pub(crate) storage: String,
    pub(crate) value: i64,
    pub(crate) as_of: i64,
    /// When it is full again, by the definition that wrote it; null for never.
    full_at: Option<i64>,
    /// As text: a list that somebody else wrote may be one that no type reads.
    holds: Option<String>,
}

impl Row {
    /// The balance at `ts`: what came back since is not in it.
    pub(crate) fn state(&self) -> State {
        let holds = self.holds.as_deref().and_then(Holds::from_text).unwrap_or_default();
        State { value: Tokens::from_micros(self.value), ts: Timestamp::from_micros(self.as_of), holds }
    }

    /// Why each call that asks the row is an error, if it is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_readable = self.holds.as_deref().is_none_or(|holds| Holds::from_text(holds).is_some());
        (!is_readable).then_some("its holds cannot be read")
    }

    pub(crate) fn full_at(&self) -> Option<Timestamp> {
        self.full_at.map(Timestamp::from_micros)
    }

    pub(crate) fn storage(&self) -> Storage {
        storage::of(&self.storage)
    }

    /// Which of the rows it is that the limit keeps for each key. None for a row in the other table, and for a stale
    /// shard.
    pub(crate) fn index(&self, limit: &Limit) -> Option<usize> {
        let spec = limit.spec();
        let shard = u16::try_from(self.shard).ok().filter(|shard| *shard < spec.shards)?;
        (spec.storage == self.storage()).then_some(shard.into())
    }
}

/// How long it is until an instant; zero for one that has passed.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(u64::try_from(at.micros().saturating_sub(now.micros())).unwrap_or(0))
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let State { value, ts, holds } = self.state();
        let full_at = self.full_at().map(instant);
        let Self { storage, shard, .. } = self;
        let as_of = instant(ts);
        let hold = |hold: &Hold| {
            let lapses_at = instant(hold.lapses_at);
            json!({
                "id": hold.id, "amount": hold.amount, "lapses_at": lapses_at, "keeps": hold.keeps, "used": hold.used
            })
        };
        let holds: Vec<_> = holds.iter().map(hold).collect();
        json!({
            "storage": storage, "shard": shard, "value": value, "as_of": as_of, "full_at": full_at, "holds": holds,
            "fault": self.fault()
        })
        .serialize(serializer)
    }
}
