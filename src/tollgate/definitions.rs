//! The definitions of the service, beside those of the table `tollgate.limits`.

use serde_json::Value;
use sqlx::PgConnection;

use crate::definitions::{self, Stored};
use crate::error::chain;
use crate::limit::Limit;
use crate::store::session::{self, Right};

/// Inserts the definitions that the table lacks, where the role may, and logs each that differs. It overwrites none:
/// that would undo what somebody has pushed, and two versions of a service would write in turn. No fault here stops a
/// start, because the service decides by its own definitions.
pub(super) async fn publish(conn: &mut PgConnection, limits: &[Limit]) {
    match compare(conn, limits).await {
        Ok(differences) => differences.iter().for_each(|difference| tracing::warn!("{difference}")),
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(error, "the definitions of this service were not compared with those of tollgate.limits");
        }
    }
}

/// Inserts what is missing. Returns a line for each definition that differs, and one for those that cannot be inserted.
async fn compare(conn: &mut PgConnection, limits: &[Limit]) -> Result<Vec<String>, sqlx::Error> {
    let settings = format!("read write; {} {BRIEFLY} {}", session::DEFAULTS, Right::OVERRIDES.own_role());
    let mut tx = session::begin(conn, &settings).await?;
    let stored = definitions::read(&mut tx).await?;
    let find = |limit: &Limit| stored.iter().find(|(name, _)| name == limit.name());
    let mut lines: Vec<_> = limits.iter().filter_map(|limit| difference(limit, find(limit)?)).collect();
    let missing: Vec<_> = limits.iter().filter(|limit| find(limit).is_none()).collect();
    if !missing.is_empty() {
        let may_insert = sqlx::query_scalar(MAY_INSERT).persistent(false).fetch_one(&mut *tx).await?;
        if may_insert {
            for limit in missing {
                definitions::insert(&mut tx, limit).await?;
            }
        } else {
            let names = missing.iter().map(|limit| format!("{:?}", limit.name())).collect::<Vec<_>>().join(", ");
            lines.push(format!("tollgate.limits lacks {names}, and this role may not insert: `tollgate limits push`"));
        }
    }
    tx.commit().await?;
    Ok(lines)
}

/// How a definition of the service differs from that of the table.
fn difference(here: &Limit, (name, stored): &Stored) -> Option<String> {
    let there = stored.as_ref().ok().and_then(|spec| Limit::try_from(spec.clone()).ok());
    let Some(there) = there else {
        return Some(format!("{name:?} in tollgate.limits is no definition that this release knows"));
    };
    let differing = fields(here).zip(fields(&there)).filter(|(here, there)| here != there);
    let differing =
        differing.map(|((field, here), (_, there))| format!("{field} {here} here and {there} in the table"));
    let differing = differing.collect::<Vec<_>>().join(", ");
    (!differing.is_empty()).then(|| format!("{name:?} has {differing}: `tollgate limits push`"))
}

/// The fields of a definition by name. A capacity that is the rate says nothing more.
fn fields(limit: &Limit) -> impl Iterator<Item = (String, Value)> {
    let spec = limit.spec().with(|spec| spec.capacity = spec.capacity.filter(|capacity| *capacity != spec.rate));
    let fields = serde_json::to_value(spec).ok().and_then(|spec| spec.as_object().cloned());
    fields.into_iter().flatten()
}

const MAY_INSERT: &str = "select pg_catalog.has_table_privilege('tollgate.limits', 'insert')";

/// Somebody may be pushing definitions, and then the start does not wait long.
const BRIEFLY: &str = "set local lock_timeout = '2s';";
