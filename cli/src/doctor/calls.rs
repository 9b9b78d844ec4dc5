use std::time::Duration;

use sqlx::{FromRow, PgConnection};

use super::finding::Finding;
use crate::output::{counted, printable, span};

/// Calls that have lapsed, and whose charges nobody has given back.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    calls: i64,
    first: Option<Call>,
}

/// The one that lapsed first.
#[derive(Debug, FromRow)]
struct Call {
    calls: i64,
    name: String,
    key: String,
    id: String,
    /// In seconds.
    age: f64,
}

impl Overdue {
    pub(super) async fn note(&mut self, conn: &mut PgConnection, part: i16) -> Result<(), sqlx::Error> {
        let sql = "select pg_catalog.count(*) over () as calls, name, key, id,
                          extract(epoch from pg_catalog.clock_timestamp() - lapses_at)::float8 as age
                     from tollgate.calls
                    where part = $1 and lapses_at < pg_catalog.clock_timestamp() - interval '1 minute'
                    order by lapses_at
                    limit 1";
        let first: Option<Call> = sqlx::query_as(sql).bind(part).persistent(false).fetch_optional(conn).await?;
        self.calls += first.as_ref().map_or(0, |first| first.calls);
        let ages = |call: &Call| call.age;
        self.first = self.first.take().into_iter().chain(first).max_by(|one, other| ages(one).total_cmp(&ages(other)));
        Ok(())
    }

    pub(super) fn finding(&self) -> Option<Finding> {
        let Call { name, key, id, age, .. } = self.first.as_ref()?;
        let age = span(Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default());
        let (name, key, id) = (printable(name), printable(key), printable(id));
        let calls = counted(self.calls, "call");
        let what =
            format!("{calls} lapsed more than a minute ago, the first {age} ago ({id:?} of {name:?}, key {key:?})");
        let meaning = "Nobody gives back what they have charged, so it is missing from their limits.";
        let remedy = "Run a Sweeper's task (`Sweeper::spawn`) in a service, or `tollgate sweep --every 1s`; if one \
                      runs, its \
                      log says what keeps it.";
        Some(Finding::warning("overdue_calls", what, meaning, remedy))
    }
}
