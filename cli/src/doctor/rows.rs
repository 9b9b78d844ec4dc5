use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::{FromRow, PgConnection};
use tollgate::algebra::List;
use tollgate::{Limit, LimitKind, LimitSpec, Limits, Tokens};

use super::calls::Overdue;
use super::finding::Finding;
use crate::database::read_only;
use crate::limits_file::period;
use crate::output::{about, counted, printable, span};
use crate::parts::Away;
use crate::storage;

/// Looks at all rows, part by part.
pub(super) async fn look(
    conn: &mut PgConnection,
    timeout: Duration,
    limits: Option<&Limits>,
) -> Result<Vec<Finding>, sqlx::Error> {
    let (mut away, mut rows, mut corrupt) = (Away::of_tables(conn, timeout).await?, Vec::new(), Corrupt::new());
    let mut overdue = Overdue::default();
    for part in away.parts() {
        let mut tx = read_only(conn, timeout).await?;
        let found = seen(&mut tx, part, limits).await;
        if let Some(found) = away.answer(part, found)? {
            rows.extend(found);
            note_corrupt(&mut tx, part, &mut corrupt).await?;
            overdue.note(&mut tx, part).await?;
        }
    }
    let mut findings = findings(&merged(rows), limits);
    findings.extend(corrupt.iter().map(|((name, storage), corrupt)| unreadable(name, storage, corrupt)));
    findings.extend(overdue.finding());
    if let Err(away) = away.check() {
        let remedy = away.remedy.unwrap_or_default();
        findings.push(Finding::error("parts", away.what, "Calls of their keys fail.", remedy));
    }
    Ok(findings)
}

async fn seen(conn: &mut PgConnection, part: i16, limits: Option<&Limits>) -> Result<Vec<Seen>, sqlx::Error> {
    let known: Vec<_> = limits.iter().flat_map(|limits| limits.iter()).map(Limit::spec).collect();
    let share = |tokens: Tokens, shards: u16| about(tokens) / f64::from(shards);
    sqlx::query_as(include_str!("sql/rows.sql"))
        .bind(known.iter().map(LimitSpec::name).collect::<Vec<_>>())
        .bind(known.iter().map(per_second).collect::<Vec<_>>())
        .bind(known.iter().map(|spec| share(spec.capacity.unwrap_or(spec.rate), spec.shards)).collect::<Vec<_>>())
        .bind(known.iter().map(|spec| share(deepest(spec), spec.shards)).collect::<Vec<_>>())
        .bind(part)
        .persistent(false)
        .fetch_all(conn)
        .await
}

/// The tokens that one row gets each second; none for a wallet, which has no rate.
fn per_second(spec: &LimitSpec) -> f64 {
    about(spec.rate) / f64::from(spec.shards) / period(spec).as_secs_f64()
}

/// How far below zero it may go.
fn deepest(spec: &LimitSpec) -> Tokens {
    if spec.kind == LimitKind::Meter { Tokens::MAX } else { spec.max_reserved }
}

/// By name and storage, how many rows the limiter cannot read, and the key and the list of one.
type Corrupt = BTreeMap<(String, String), (u64, String, String)>;

async fn note_corrupt(conn: &mut PgConnection, part: i16, corrupt: &mut Corrupt) -> Result<(), sqlx::Error> {
    let sql = "select name, storage, key, list::text from tollgate.balances where part = $1 and list is not null";
    let mut rows = sqlx::query_as::<_, (_, _, _, String)>(sql).bind(part).persistent(false).fetch(conn);
    while let Some((name, storage, key, list)) = rows.try_next().await? {
        if List::from_text(&list).is_none() {
            corrupt.entry((name, storage)).or_insert((0, key, list)).0 += 1;
        }
    }
    Ok(())
}

/// The rows of all parts together, by limit and storage.
fn merged(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_by(|one, other| (&one.name, &one.storage).cmp(&(&other.name, &other.storage)));
    seen.dedup_by(|more, seen| {
        let is_same = (&more.name, &more.storage) == (&seen.name, &seen.storage);
        if is_same {
            seen.rows += more.rows;
            seen.ahead += more.ahead;
            seen.furthest = seen.furthest.max(more.furthest);
            seen.unreserved += more.unreserved;
            seen.laden += more.laden;
            seen.lapsed += more.lapsed;
            seen.clears_in = seen.clears_in.into_iter().chain(more.clears_in).reduce(f64::max);
        }
        is_same
    });
    seen
}

fn findings(seen: &[Seen], limits: Option<&Limits>) -> Vec<Finding> {
    let mut findings: Vec<_> = seen.iter().flat_map(|seen| seen.findings(limits)).collect();
    let by_name = seen.chunk_by(|one, other| one.name == other.name);
    findings.extend(by_name.filter_map(|tables| if let [one, other] = tables { Some(one.twice(other)) } else { None }));
    if limits.is_none() && !seen.is_empty() {
        let what = "the rows were not compared with any definitions";
        let meaning = "Rows of limits that no longer exist, and debts deeper than their limit allows, go unnoticed.";
        findings.push(Finding::note(
            "unknown_limit",
            what,
            meaning,
            "Pass --limits FILE, or `tollgate limits push FILE`.",
        ));
    }
    findings
}

fn unreadable(name: &str, storage: &str, (rows, key, list): &(u64, String, String)) -> Finding {
    let what =
        format!("{} of {:?} whose list cannot be read", counted(*rows, &format!("{storage} row")), printable(name));
    // A wallet's mark stays: without it the row is no wallet's.
    let lean = if list.starts_with("{3,") { "'{3}'" } else { "null" };
    let quoted = |text: &str| format!("'{}'", printable(text).replace('\'', "''"));
    let (table, name, key) = (storage::table(storage::of(storage)), quoted(name), quoted(key));
    let remedy =
        format!("Drop their lists, such as: update {table} set list = {lean} where name = {name} and key = {key};");
    Finding::error("corrupt_rows", what, "Somebody else wrote them, and each call of their keys is an error.", remedy)
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
    laden: i64,
    lapsed: i64,
    clears_in: Option<f64>,
}

impl Seen {
    fn findings(&self, limits: Option<&Limits>) -> impl Iterator<Item = Finding> {
        let name = printable(&self.name);
        let limit = limits.and_then(|limits| limits.get(&self.name).ok());
        let clears_in = self.clears_in.map(seconds).filter(|clears_in| *clears_in > LONG);
        let found = [
            limits.and_then(|limits| self.misplaced(limits)),
            (self.ahead > 0).then(|| {
                let (rows, furthest) = (self.counted(self.ahead), span(seconds(self.furthest)));
                let what = format!("{rows} of {name:?} in the future, up to {furthest} ahead");
                let meaning = "The database's clock went back. They get no tokens until it has caught up.";
                let remedy =
                    format!("Find them with `tollgate inspect {name}`, mend them with `tollgate reset {name} KEY`.");
                Finding::error("future_rows", what, meaning, remedy)
            }),
            (self.unreserved > 0).then(|| {
                let rows = self.counted(self.unreserved);
                let what = format!("{rows} of {name:?} with a debt deeper than it lets anybody reserve");
                let meaning =
                    "A debit, a settlement or a larger definition did that. They are refused until it is repaid.";
                Finding::warning("deep_debts", what, meaning, forgive(&name))
            }),
            (self.laden > 0).then(|| {
                let what = format!("{} of {name:?} with more than 200 leases", self.counted(self.laden));
                let meaning = "Each call of such a key copies them all; with 1000 of them it is refused.";
                let remedy = "Release sooner, or limit smaller groups: a key for each of them.";
                Finding::warning("many_leases", what, meaning, remedy)
            }),
            (self.lapsed > 0 && limit.is_some_and(|limit| limit.lease().is_some())).then(|| {
                let what =
                    format!("{} of {name:?} with leases that ended without a release", self.counted(self.lapsed));
                let meaning = "Their holders died, or never release: what they held was missing until its lease ended.";
                let remedy = "Release when the work is done: drop the guard, or call `release`.";
                Finding::warning("lapsed_leases", what, meaning, remedy)
            }),
            clears_in.map(|clears_in| {
                let what = format!("a debt of {name:?} is repaid only in {}", span(clears_in));
                let meaning = "Its key is refused until then: longer than anybody waits.";
                Finding::warning("old_debts", what, meaning, forgive(&name))
            }),
        ];
        found.into_iter().flatten()
    }

    /// A limit with rows in both tables.
    fn twice(&self, other: &Self) -> Finding {
        let (name, one, other) = (printable(&self.name), self.counted(self.rows), other.counted(other.rows));
        let what = format!("{name:?} is in both tables: {one}, {other}");
        let meaning = "Releases that store it differently grant the sum of both; a debt here binds nobody there.";
        let remedy = "Once only one release runs, delete the rows of the table that it does not use.";
        Finding::warning("two_storages", what, meaning, remedy)
    }

    /// Rows that no definition of the limits file, or of the table, is about.
    fn misplaced(&self, limits: &Limits) -> Option<Finding> {
        let Self { name, rows, .. } = self;
        let (rows, table) = (self.counted(*rows), storage::table(storage::of(&self.storage)));
        let delete = format!("delete from {table} where name = '{}';", printable(name).replace('\'', "''"));
        match limits.get(name) {
            Ok(limit) if storage::name(limit.spec().storage) == self.storage => None,
            Ok(limit) => {
                let what = format!("{rows} left of {name:?}, which is {} now", storage::name(limit.spec().storage));
                let meaning = "Services of this definition do not ask them: what they had spent or owed is forgiven.";
                let remedy = format!("Once no service of the old definition runs: {delete}");
                Some(Finding::warning("moved_limit", what, meaning, remedy))
            }
            Err(unknown) => {
                let nearest = unknown.nearest.map(|nearest| format!(" (did somebody mean {nearest:?}?)"));
                let slip = nearest.unwrap_or_default();
                let place = if unknown.file.is_some() { "the limits file" } else { "tollgate.limits" };
                let what = format!("{rows} of {name:?}, which {place} does not know{slip}");
                let meaning = "A limit that was renamed or removed leaves its rows behind.";
                let remedy = format!("Add {name:?} to {place}, or if nobody asks it: {delete}");
                Some(Finding::warning("unknown_limit", what, meaning, remedy))
            }
        }
    }

    fn counted(&self, rows: i64) -> String {
        counted(rows, &format!("{} row", self.storage))
    }
}

fn forgive(name: &str) -> String {
    format!("See `tollgate inspect {name}`; forgive with `tollgate reset {name} KEY` what should not be.")
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

const LONG: Duration = Duration::from_hours(30 * 24);
