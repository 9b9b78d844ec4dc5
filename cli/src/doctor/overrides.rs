use std::time::Duration;

use sqlx::PgConnection;
use tollgate::{Effect, LimitKind, Limits, Override, Overrides};

use super::finding::Finding;
use crate::database::{clock, read_only};
use crate::error::CommandError;
use crate::output::{counted, printable, shown};

/// Looks at the overrides: those that cannot be read, and those that do not apply.
pub(super) async fn look(
    conn: &mut PgConnection,
    timeout: Duration,
    limits: Option<&Limits>,
) -> Result<Vec<Finding>, sqlx::Error> {
    let mut tx = read_only(conn, timeout).await?;
    let rows = "select pg_catalog.count(*) from tollgate.overrides";
    let rows: i64 = sqlx::query_scalar(rows).persistent(false).fetch_one(&mut *tx).await?;
    let all = match Overrides::read(&mut tx).await {
        Ok(overrides) => overrides.all(),
        Err(error) => return Ok(vec![unread(&error.into())]),
    };
    let now = clock(&mut tx).await?.into();
    let hidden = u64::try_from(rows).unwrap_or_default().saturating_sub(all.len() as u64);
    let live: Vec<_> = all.iter().filter(|said| said.is_live(now)).collect();
    let found = live.iter().filter_map(|said| finding(said, limits));
    let denies = live.iter().filter(|said| said.effect == Effect::Deny).count();
    let ignored = (denies > 0).then(|| of_denies(denies));
    Ok(found.chain((hidden > 0).then(|| unknown(hidden))).chain(ignored).collect())
}

fn of_denies(denies: usize) -> Finding {
    Finding::note(
        "overrides",
        format!("{} live", if denies == 1 { "1 deny is".to_owned() } else { format!("{denies} denies are") }),
        "A service with a `Gate::new` or a `Limiter::new` of its own ignores overrides, a ban on every key, too.",
        "Start such a service with `Tollgate::start`.",
    )
}

fn finding(said: &Override, limits: Option<&Limits>) -> Option<Finding> {
    let kind = limits.and_then(|limits| limits.get(&said.limit).ok()).map(|limit| limit.kind);
    match said.effect {
        _ if kind == Some(LimitKind::Meter) => Some(Finding::warning(
            "overrides",
            format!("the {} does not apply: its limit is a meter", what(said)),
            "A meter refuses nobody and has no numbers.",
            "Remove it with `tollgate override remove`.",
        )),
        Effect::Unreadable => Some(Finding::error(
            "overrides",
            format!("the {} cannot be read", what(said)),
            "It may be a deny, so it denies.",
            "Remove it with `tollgate override remove`, and set it again.",
        )),
        Effect::Numbers { kind, .. } => {
            let limit = limits?.get(&said.limit).ok().filter(|limit| said.renumbered(limit).is_none())?;
            Some(Finding::warning(
                "overrides",
                format!("the {} is for a {kind} and does not apply to this {}", what(said), limit.spec().kind),
                "Numbers apply to a limit of their kind, with max_reserved to a durable one. The limit's own count.",
                "Remove it, or set it again by the present definition.",
            ))
        }
        Effect::Slowed { .. } => {
            let kind = kind.filter(|kind| !kind.can_slow())?;
            Some(Finding::warning(
                "overrides",
                format!("the {} is a slow-down and does not apply to this {kind}", what(said)),
                "A limit of this kind has no rate that could be slowed down.",
                "Remove it with `tollgate override remove`, or let it end.",
            ))
        }
        _ => None,
    }
}

/// An override by its limit, its key and its label.
fn what(said: &Override) -> String {
    let key = said.key.as_ref().map_or_else(|| "every key".to_owned(), shown);
    format!("override of {:?} for {key} with label {:?}", printable(&said.limit), printable(&said.label))
}

fn unknown(hidden: u64) -> Finding {
    Finding::warning(
        "overrides",
        format!("{} of a kind of limit, or for a key, that this release does not know", counted(hidden, "override")),
        "They change nothing for the services of this release.",
        "Look at tollgate.overrides; run the doctor of the newest release.",
    )
}

fn unread(error: &CommandError) -> Finding {
    Finding::error(
        "overrides",
        format!("overrides cannot be read: {error}"),
        "Services that watch them go by what they read last, and new ones do not start.",
        "Run the doctor as a role that may read tollgate.overrides.",
    )
}
