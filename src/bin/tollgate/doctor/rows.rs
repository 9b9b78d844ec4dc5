use std::time::Duration;

use sqlx::{FromRow, PgConnection};
use tollgate::{Limit, Limits, Storage, Tokens};

use super::finding::Finding;
use crate::error::CommandError;
use crate::output::{counted, printable, span};

pub(super) async fn check(conn: &mut PgConnection, limits: Option<&Limits>) -> Result<Vec<Finding>, CommandError> {
    let known: Vec<_> = limits.iter().flat_map(|limits| limits.iter()).map(Limit::spec).collect();
    let seen: Vec<Seen> = sqlx::query_as(include_str!("sql/rows.sql"))
        .bind(known.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>())
        .bind(known.iter().map(|spec| about(spec.rate)).collect::<Vec<_>>())
        .bind(known.iter().map(|spec| spec.period.as_secs_f64()).collect::<Vec<_>>())
        .bind(known.iter().map(|spec| about(spec.max_reserved)).collect::<Vec<_>>())
        .persistent(false)
        .fetch_all(conn)
        .await?;
    let mut findings: Vec<_> = seen.iter().flat_map(|seen| seen.findings(limits)).collect();
    if limits.is_none() && !seen.is_empty() {
        findings.push(not_compared());
    }
    Ok(findings)
}

/// For comparisons that need no exactness.
#[expect(clippy::cast_precision_loss, reason = "a deep debt is one whether or not a millionth is missing")]
fn about(tokens: Tokens) -> f64 {
    tokens.micros() as f64 / 1e6
}

/// The rows of one limit in one table.
#[derive(FromRow)]
struct Seen {
    name: String,
    storage: String,
    rows: i64,
    ahead: i64,
    furthest: f64,
    unreserved: i64,
    clears_in: Option<f64>,
}

impl Seen {
    fn findings(&self, limits: Option<&Limits>) -> impl Iterator<Item = Finding> {
        let name = printable(&self.name);
        let limit = limits.map(|limits| limits.get(&self.name));
        let unknown = limit.as_ref().and_then(|limit| Some(self.unknown(limit.as_ref().err()?.nearest.as_deref())));
        let misplaced = limit.and_then(Result::ok).and_then(|limit| self.misplaced(limit));
        [unknown, misplaced, self.future(&name), self.deep(&name), self.slow(&name)].into_iter().flatten()
    }

    fn unknown(&self, nearest: Option<&str>) -> Finding {
        let Self { name, rows, .. } = self;
        let slip = nearest.map(|nearest| format!(" (did somebody mean {nearest:?}?)")).unwrap_or_default();
        Finding::warning("unknown_limit", format!("{} of {name:?}, which the limits file does not know{slip}", self.counted(*rows)))
            .means("A limit that was renamed or removed leaves its rows behind; a service that still asks it has another definition.")
            .remedy(format!("Add {name:?} to the limits file, or if nobody asks it: delete from {} where name = '{}';", self.table(), name.replace('\'', "''")))
    }

    fn misplaced(&self, limit: &Limit) -> Option<Finding> {
        let Self { name, storage, rows, .. } = self;
        let is_ephemeral = limit.spec().storage == Storage::Ephemeral;
        ((storage == "ephemeral") != is_ephemeral).then(|| {
            let now = if is_ephemeral { "ephemeral" } else { "durable" };
            Finding::warning("moved_limit", format!("{} left of {name:?}, which is {now} now", self.counted(*rows)))
                .means("They count no more; what they had spent or owed was forgiven when the storage changed.")
                .remedy(format!(
                    "Once no service of the old definition runs: delete from {} where name = '{}';",
                    self.table(),
                    name.replace('\'', "''")
                ))
        })
    }

    fn future(&self, name: &str) -> Option<Finding> {
        let Self { ahead, furthest, .. } = self;
        (*ahead > 0).then(|| {
            let furthest = span(seconds(*furthest));
            Finding::error("future_rows", format!("{} of {name:?} in the future, up to {furthest} ahead", self.counted(*ahead)))
                .means("The database's clock has gone back since they were written. They get no tokens until it has caught up.")
                .remedy(format!("Find them with `tollgate inspect {name}`, and mend them with `tollgate reset {name} KEY`."))
        })
    }

    fn deep(&self, name: &str) -> Option<Finding> {
        let Self { unreserved, .. } = self;
        (*unreserved > 0).then(|| {
            Finding::warning("deep_debts", format!("{} of {name:?} with a debt deeper than it lets anybody reserve", self.counted(*unreserved)))
                .means("A debit, a settlement above the estimate, or an older definition did that. They are refused until it is repaid.")
                .remedy(format!("See `tollgate inspect {name}`; forgive with `tollgate reset {name} KEY` what should not be."))
        })
    }

    fn slow(&self, name: &str) -> Option<Finding> {
        let clears_in = seconds(self.clears_in?);
        (clears_in > LONG).then(|| {
            let clears_in = humantime::format_duration(Duration::from_hours(clears_in.as_secs() / 3600));
            Finding::warning("old_debts", format!("a debt of {name:?} is repaid only in {clears_in}"))
                .means("Its key is refused until then: longer than anybody waits.")
                .remedy(format!(
                    "See `tollgate inspect {name}`; forgive it with `tollgate reset {name} KEY`, or raise the rate."
                ))
        })
    }

    fn counted(&self, rows: i64) -> String {
        counted(rows, &format!("{} row", self.storage))
    }

    fn table(&self) -> &'static str {
        if self.storage == "ephemeral" { "tollgate.buckets" } else { "tollgate.rate_limits" }
    }
}

fn not_compared() -> Finding {
    Finding::note("unknown_limit", "the rows were not compared with a limits file")
        .means("Rows of limits that no longer exist, and debts deeper than their limit allows, go unnoticed.")
        .remedy("Pass --limits FILE.")
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

const LONG: Duration = Duration::from_hours(30 * 24);
