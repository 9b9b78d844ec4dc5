use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::{Duration, Instant};

use sqlx::PgPool;

use super::fault::failed;
use super::known::Known;
use super::slowed_rate::SlowedRate;
use super::table::{self, Snapshot, Stamp};
use crate::error::chain;
use crate::store::session::{self, Right};
use crate::{SECOND, meter};

/// Reads the table each second, until the last clone of its overrides is dropped, or the pool is closed. It polls,
/// because NOTIFY takes a lock of the whole database at the commit of a caller, and poolers swallow it.
pub(super) async fn again_and_again(inner: Weak<Known>, pool: PgPool) {
    let (mut is_stale, mut whole, mut slowed) = (false, Instant::now(), BTreeMap::new());
    loop {
        if pool.close_event().do_until(tokio::time::sleep(SECOND)).await.is_err() {
            return;
        }
        let Some(before) = inner.upgrade().map(|inner| inner.known(|known| known.stamp)) else { return };
        // A stamp of another server may be the same by chance.
        let before = before.filter(|_| whole.elapsed() < A_WHILE);
        let began = Instant::now();
        let reading = tokio::time::timeout(PATIENCE, read(&pool, before)).await;
        let Some(inner) = inner.upgrade() else { return };
        match reading.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(reading) => {
                if before.is_none() {
                    whole = Instant::now();
                }
                is_stale = false;
                meter::overrides_read(reading.now);
                inner.swap(reading, began);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_stale, true) {
                    let error = chain(&failed("read")(error));
                    tracing::warn!(error, "overrides are not read: those of before count, until each ends");
                }
            }
        }
        show(inner.known(|known| known.map.shares(known.now().into())), &mut slowed);
    }
}

/// Shows the shares of slow-downs, and that they are over.
fn show(shares: BTreeMap<String, u32>, before: &mut BTreeMap<String, u32>) {
    for limit in before.keys().filter(|limit| !shares.contains_key(*limit)) {
        meter::rate_share(limit, SlowedRate::WHOLE);
    }
    for (limit, share) in &shares {
        meter::rate_share(limit, *share);
    }
    *before = shares;
}

async fn read(pool: &PgPool, before: Option<Stamp>) -> Result<Snapshot, sqlx::Error> {
    let mut session = session::take(pool, Right::OVERRIDES).await?;
    let read = table::read(&mut session, before, &alone(BRIEFLY)).await?;
    session.finished();
    Ok(read)
}

/// The statements before a reading over a connection of the pool.
pub(super) fn alone(settings: &str) -> String {
    session::alone(&format!("{settings} {}", Right::OVERRIDES.own_role()))
}

/// A reading does not wait long for a change of the table: it would keep a connection from the service, and the next
/// reading would take another.
const BRIEFLY: &str = "set local statement_timeout to default; set local lock_timeout = '2s';";

/// How long a reading may take. The driver closes a connection that is left in the middle of an answer, or reads it to
/// its end.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How often all rows are read, whatever the stamp says.
const A_WHILE: Duration = Duration::from_mins(1);
