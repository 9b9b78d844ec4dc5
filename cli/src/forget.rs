//! `tollgate forget`: a key, of all limits.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use sqlx::AssertSqlSafe;
use tollgate::{Key, Limits, Storage, migrate};

use crate::database::{DatabaseArgs, begin};
use crate::error::CommandError;
use crate::inspect::{Reach, places};
use crate::limits_file::LimitsArgs;
use crate::output::{OutputArgs, counted, shown, word};
use crate::storage;
use crate::target::{joined, key};

/// Delete a key's rows, calls and overrides, under all limits.
///
/// Use it for somebody who is gone for good. It deletes debts, wallets and the ids of calls, too, so a retry is charged
/// again. The next call of the key finds its limits full, and its wallets empty. The command deletes all of this or
/// nothing.
///
/// It knows the limits of the table `tollgate.limits` and of the limits file. A key of several parts is a key of its
/// own: to forget `org` does not forget `org|user`. The command names what it has not looked at.
#[derive(Debug, clap::Args)]
pub(crate) struct ForgetArgs {
    /// The key, written as `tollgate inspect` prints it. Of a key that has several parts, each may be a word.
    #[arg(value_name = "KEY", value_parser = key, required = true)]
    key: Vec<Key>,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: ForgetArgs) -> Result<(), CommandError> {
    let key = joined(&args.key)?.unwrap_or(Key::GLOBAL);
    let mut conn = args.database.connect().await?;
    let file = args.limits.load()?;
    let mut tx = begin(&mut conn).await?;
    let table = Limits::from_table(&mut tx).await?;
    let limits = table.iter().chain(file.iter().flat_map(Limits::iter));
    let names: BTreeSet<_> = limits.map(|limit| limit.name().to_owned()).collect();
    if names.is_empty() {
        let what = "no limit is known of which to forget the key";
        return Err(CommandError::new(what, "pass --limits FILE, or fill the table by `tollgate limits push`"));
    }
    let names: Vec<_> = names.into_iter().collect();
    let parts = migrate::parts(&mut tx).await?;
    let mut forgotten = [0; 3];
    // In the one lock order: rows before calls.
    let tables = [storage::table(Storage::Ephemeral), storage::table(Storage::Durable), "tollgate.calls"];
    for (place, table) in [0, 0, 1].into_iter().zip(tables) {
        for part in migrate::part_numbers(parts) {
            let sql = format!(
                "delete from {table} r where r.part = $1 and r.ctid = any (array(
                     select ctid from {table} where part = $1 and name = any ($2) and key = $3
                     order by name for update))"
            );
            let delete = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(part).bind(&names).bind(key.as_str());
            forgotten[place] += delete.execute(&mut *tx).await?.rows_affected();
        }
    }
    let sql = "delete from tollgate.overrides where name = any ($1) and key = $2";
    let delete = sqlx::query(sql).persistent(false).bind(&names).bind(key.as_str());
    forgotten[2] = delete.execute(&mut *tx).await?.rows_affected();
    tx.commit().await?;
    let left = places(&mut conn, (&key, Reach::Begins), (MOST, LONGEST)).await?;
    let [rows, calls, overrides] = forgotten;
    let document = json!({
        "key": key, "limits": names, "rows": rows, "calls": calls, "overrides": overrides,
        "left": left.iter().map(|(limit, key)| json!({ "limit": limit, "key": key })).collect::<Vec<_>>()
    });
    args.output.print(&document, || {
        let told = [counted(rows, "row"), counted(calls, "call"), counted(overrides, "override")].join(", ");
        let forgot = format!("forgot {}: {told}, of {}", shown(&key), counted(names.len(), "limit"));
        let left = left.iter().map(|(limit, key)| format!("left, and not looked at: {} {}", word(limit), shown(key)));
        let inner = format!("other keys may have it as a later part: `tollgate inspect --anywhere {}`", shown(&key));
        [forgot].into_iter().chain(left).chain([inner]).collect::<Vec<_>>().join("\n")
    })
}

/// How many keys that are left it names, and how long it looks for them.
const MOST: u32 = 20;
const LONGEST: Duration = Duration::from_secs(10);
