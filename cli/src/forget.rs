//! `tollgate forget`: a key, of all limits.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::AssertSqlSafe;
use tollgate::{Key, Limits, Storage, migrate};

use crate::database::{DatabaseArgs, begin};
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::{OutputArgs, counted, shown};
use crate::storage;
use crate::target::key;

/// Delete a key's rows, calls and overrides, under all limits.
///
/// Use it for somebody who is gone for good. It deletes debts, wallets and the ids of calls, too, so a retry is charged
/// again. The next call of the key finds its limits full, and its wallets empty. The command deletes all of this or
/// nothing.
///
/// It knows the limits of the table `tollgate.limits` and of the limits file. A key of several parts is a key of its
/// own: to forget `org` does not forget `org|user`.
#[derive(Debug, clap::Args)]
pub(crate) struct ForgetArgs {
    /// The key, written as `tollgate inspect` prints it.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Key,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: ForgetArgs) -> Result<(), CommandError> {
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
            let delete =
                sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(part).bind(&names).bind(args.key.as_str());
            forgotten[place] += delete.execute(&mut *tx).await?.rows_affected();
        }
    }
    let sql = "delete from tollgate.overrides where name = any ($1) and key = $2";
    let delete = sqlx::query(sql).persistent(false).bind(&names).bind(args.key.as_str());
    forgotten[2] = delete.execute(&mut *tx).await?.rows_affected();
    tx.commit().await?;
    let [rows, calls, overrides] = forgotten;
    let document = json!({ "key": args.key, "limits": names, "rows": rows, "calls": calls, "overrides": overrides });
    args.output.print(&document, || {
        let told = [counted(rows, "row"), counted(calls, "call"), counted(overrides, "override")].join(", ");
        format!("forgot {}: {told}, of {}", shown(&args.key), counted(names.len(), "limit"))
    })
}
