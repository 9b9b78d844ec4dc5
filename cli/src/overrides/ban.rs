//! The override that refuses a key.

use chrono::{DateTime, Utc};
use tollgate::{Denied, Effect, Key, Override, Overrides, Source};

use super::words::labelled;
use crate::output::{instant, printable};

/// The override that refuses a key now; of several, the one that ends last.
pub(crate) fn ban(overrides: &Overrides, limit: &str, key: &Key, now: DateTime<Utc>) -> Option<Override> {
    let live = overrides.live_for(limit, key, now).into_iter();
    let denies = live.filter(|said| matches!(said.effect, Effect::Deny | Effect::Unreadable));
    denies.max_by_key(|said| (said.ends_at.unwrap_or(DateTime::<Utc>::MAX_UTC), said.label.clone()))
}

/// The override that has refused a call, if one has.
pub(crate) fn ban_of(overrides: &Overrides, denied: &Denied) -> Option<Override> {
    let is_ban = denied.source == Source::Override;
    is_ban.then(|| ban(overrides, &denied.limit, &denied.key, denied.observed_at)).flatten()
}

/// Its words to people, and its end.
pub(crate) fn ban_words(said: &Override) -> String {
    let whom = if said.key.is_none() { " for every key" } else { "" };
    let end = said.ends_at.map_or_else(|| "until it is removed".to_owned(), |at| format!("until {}", instant(at)));
    if said.is_pause() {
        return format!("paused, because trouble was reported,{whom} {end}");
    }
    let by = if said.effect == Effect::Deny { "by an operator" } else { "by an override that cannot be read" };
    let label = labelled(&said.label).map(|label| format!(", {label}")).unwrap_or_default();
    format!("denied {by}{whom} {end}{label}: {}", printable(&said.reason))
}
