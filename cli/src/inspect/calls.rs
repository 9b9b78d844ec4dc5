use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{FromRow, PgConnection};
use tollgate::algebra::Timestamp;
use tollgate::{Charge, Key, Tokens};

/// A call that is known by its name, and what it has charged of the limit.
#[derive(Serialize)]
pub(super) struct StoredCall {
    pub(super) id: String,
    /// Null where its charges cannot be read.
    pub(super) charged: Option<Tokens>,
    pub(super) reported: Tokens,
    pub(super) charged_at: DateTime<Utc>,
    pub(super) lapses_at: Option<DateTime<Utc>>,
    pub(super) kept_until: DateTime<Utc>,
    pub(super) used: bool,
}

/// The calls that a limit and a key name, those that can still be settled first.
pub(super) async fn stored_calls(
    conn: &mut PgConnection,
    limit: &str,
    key: &Key,
    part: i16,
    most: u32,
) -> Result<Vec<StoredCall>, sqlx::Error> {
    let sql = "select id, charges::text as charges, reported,
                      (extract(epoch from charged_at) * 1000000)::int8 as charged_at,
                      (extract(epoch from lapses_at) * 1000000)::int8 as lapses_at,
                      (extract(epoch from kept_until) * 1000000)::int8 as kept_until, used
                 from tollgate.calls
                where part = $1 and name = $2 and key = $3
                order by used, calls.lapses_at, calls.kept_until
                limit $4";
    let query = sqlx::query_as(sql).bind(part).bind(limit).bind(key.as_str()).bind(i64::from(most));
    let calls: Vec<FoundCall> = query.persistent(false).fetch_all(conn).await?;
    Ok(calls.into_iter().map(|call| call.of(limit, key)).collect())
}

#[derive(FromRow)]
struct FoundCall {
    id: String,
    /// As text: a charge that somebody else wrote may be one that no type reads.
    charges: String,
    reported: i64,
    charged_at: i64,
    lapses_at: Option<i64>,
    kept_until: i64,
    used: bool,
}

impl FoundCall {
    fn of(self, limit: &str, key: &Key) -> StoredCall {
        let Self { id, charges, reported, charged_at, lapses_at, kept_until, used } = self;
        let charged = serde_json::from_str::<Vec<Charge>>(&charges).ok().map(|charges| {
            let of_limit = charges.iter().filter(|charge| charge.limit() == limit && charge.key == *key);
            Tokens::from_micros(of_limit.fold(0, |sum, charge| charge.cost.micros().saturating_add(sum)))
        });
        let reported = Tokens::from_micros(reported);
        let at = |micros| Timestamp::from_micros(micros).into();
        let [charged_at, kept_until] = [charged_at, kept_until].map(at);
        StoredCall { id, charged, reported, charged_at, lapses_at: lapses_at.map(at), kept_until, used }
    }
}
