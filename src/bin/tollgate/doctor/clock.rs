use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::PgConnection;

use super::finding::Finding;
use crate::error::CommandError;
use crate::output::span;

pub(super) async fn check(conn: &mut PgConnection) -> Result<Vec<Finding>, CommandError> {
    let mut closest = None;
    // The quickest of a few round trips tells most.
    for _ in 0..3 {
        let before = here();
        let there: i64 = sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1000000)::int8")
            .persistent(false)
            .fetch_one(&mut *conn)
            .await?;
        let skew = skew(before, there, here());
        closest = closest.into_iter().chain([skew]).min_by_key(|skew: &i64| skew.unsigned_abs());
    }
    Ok(closest.and_then(finding).into_iter().collect())
}

fn finding(skew: i64) -> Option<Finding> {
    let apart = Duration::from_micros(skew.unsigned_abs());
    (apart > TOLERABLE).then(|| {
        let direction = if skew > 0 { "ahead of" } else { "behind" };
        Finding::warning("clock", format!("the database's clock is {} {direction} this machine's", span(apart)))
            .means("Decisions go by the database's clock alone and are right; instants in logs of the two do not fit together.")
            .remedy("Synchronise both machines' clocks (NTP), and let callers wait for `retry_after`, not until `retry_at`.")
    })
}

/// How far `there` is outside of what passed here meanwhile, in microseconds: positive where it is ahead.
fn skew(before: i64, there: i64, after: i64) -> i64 {
    if there > after { there - after } else { (there - before).min(0) }
}

/// This machine's clock, in microseconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "to compare it with the database's, which alone decides")]
fn here() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

const TOLERABLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_wrong_only_by_what_the_round_trip_does_not_explain() {
        assert_eq!(skew(10, 10, 20), 0);
        assert_eq!(skew(10, 20, 20), 0);
        assert_eq!(skew(10, 25, 20), 5);
        assert_eq!(skew(10, 3, 20), -7);
    }

    #[test]
    fn a_second_is_tolerable_and_more_is_reported_with_its_direction() {
        assert!(finding(1_000_000).is_none() && finding(-1_000_000).is_none());
        let told = |skew| finding(skew).map(|finding| finding.what).unwrap_or_default();
        assert_eq!(told(1_500_000), "the database's clock is 1s 500ms ahead of this machine's");
        assert_eq!(told(-60_000_000), "the database's clock is 1m behind this machine's");
    }
}
