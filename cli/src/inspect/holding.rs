use chrono::{DateTime, Utc};
use serde::Serialize;
use tollgate::algebra::{Entry, List, Timestamp};
use tollgate::{Key, Limit, LimitKind, Override, Overrides, Tokens};

use super::calls::StoredCall;
use super::standing::Standing;
use crate::limits_file::describe;
use crate::output::{BAD, CAUTION, FAINT, GOOD, counted, instant, printable, shown, span, styled};
use crate::overrides::{ban, ban_words, whom, words};
use crate::row::{Row, live_leases, until};
use crate::verbs::used;

/// The state of a limit for one key.
#[derive(Serialize)]
pub(super) struct Holding<'a> {
    limit: &'a str,
    /// Whether it is a meter, which speaks of use, and refuses nobody.
    #[serde(skip)]
    is_meter: bool,
    key: Key,
    observed_at: DateTime<Utc>,
    /// Only with a definition, and where all rows can be read.
    #[serde(flatten)]
    standing: Option<Standing>,
    /// The share of the rate that a slow-down leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_share: Option<f64>,
    /// The rows on disk. A missing row means a full bucket.
    rows: &'a [Row],
    /// The one that refuses the key.
    #[serde(skip)]
    ban: Option<Override>,
    /// The overrides that count now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<Override>,
    /// The overrides that begin later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scheduled: Vec<Override>,
    /// Only where the command asks for one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<&'a [StoredCall]>,
}

impl<'a> Holding<'a> {
    pub(super) fn of(
        name: &'a str,
        limit: Option<&Limit>,
        key: Key,
        rows: &'a [Row],
        now: Timestamp,
        said: &Overrides,
        cost: Tokens,
    ) -> Self {
        let is_corrupt = rows.iter().any(|row| row.fault().is_some());
        let applied = limit.and_then(|limit| said.applied(limit, &key)).unwrap_or_default();
        let rate_share = applied.share.map(|share| f64::from(share) / 1e6);
        let standing = limit.filter(|_| !is_corrupt).map(|limit| {
            let counts = applied.numbers.as_ref().unwrap_or(limit);
            let standing = Standing::of(counts, &key, rows, applied.pause, now, cost);
            standing.ruled(applied.ruling, now)
        });
        let is_meter = limit.is_some_and(|limit| limit.kind == LimitKind::Meter);
        let ban = ban(said, name, &key, now.into()).filter(|_| !is_meter);
        let overrides = said.live_for(name, &key, now.into());
        let mut scheduled = said.all();
        scheduled.retain(|said| {
            let is_of_key = said.limit == name && said.key.as_ref().is_none_or(|of| *of == key);
            is_of_key && said.starts_at > now.into() && !said.is_live(now.into())
        });
        Self {
            limit: name,
            is_meter,
            key,
            observed_at: now.into(),
            standing,
            rate_share,
            rows,
            ban,
            overrides,
            scheduled,
            calls: None,
        }
    }

    /// The same with the calls of one key.
    pub(super) fn with(self, calls: &'a [StoredCall]) -> Self {
        Self { calls: Some(calls), ..self }
    }

    /// All that is known of one key.
    pub(super) fn text(&self, limit: Option<&Limit>, most: usize) -> String {
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("{} {text}", styled(FAINT, format!("{name:<9}"))));
        line("limit", limit.map_or_else(|| printable(self.limit), describe));
        line("key", shown(&self.key));
        if let Some(standing) = self.standing.as_ref().filter(|_| self.is_meter) {
            line("used", used(standing.remaining).to_string());
        } else if let Some(standing) = &self.standing {
            let Standing { remaining, used, capacity, debt, next, .. } = standing;
            let is_full = remaining >= capacity;
            let owed = if remaining.is_negative() { format!(" (owes {debt})") } else { String::new() };
            let style = [CAUTION, GOOD, BAD][usize::from(is_full) + 2 * usize::from(remaining.is_negative())];
            let of = if *capacity == Tokens::MAX { String::new() } else { format!(" of {capacity}, {used} used") };
            line("remaining", format!("{}{of}{owed}", styled(style, remaining)));
            match standing.full_at {
                _ if is_full => line("full", "now".to_owned()),
                Some(full_at) if *capacity < Tokens::MAX => line("full", self.later(full_at)),
                _ => {}
            }
            let granted = match (&self.ban, next.at) {
                (Some(said), _) => styled(BAD, ban_words(said)),
                (None, None) if next.cost > *capacity => styled(BAD, "never: more than the capacity"),
                (None, None) => styled(BAD, "only after a credit"),
                (None, Some(at)) if at <= self.observed_at => styled(GOOD, "would be granted now"),
                (None, Some(at)) => format!("{} {}", styled(CAUTION, "granted"), self.later(at)),
            };
            line(&format!("cost {}", next.cost), granted);
        }
        for said in self.overrides.iter().chain(&self.scheduled) {
            line("override", format!("for {}: {}", whom(said.key.as_ref()), words(said, self.observed_at)));
        }
        if self.rows.is_empty() {
            let means = match limit.map(|limit| limit.kind) {
                Some(LimitKind::Meter) => "nothing used",
                Some(LimitKind::Wallet) => "empty",
                _ => "full",
            };
            line("row", format!("none, which means {means}"));
        }
        for row in self.rows {
            line("row", self.row(row, limit));
        }
        for state in self.rows.iter().map(Row::state) {
            for Entry { ends_at, amount, .. } in live_leases(&state, self.observed_at.into()).take(most) {
                line("lease", format!("{amount}, ends {}", self.later((*ends_at).into())));
            }
        }
        for call in self.calls.into_iter().flatten() {
            line("call", self.call(call));
        }
        lines.join("\n")
    }

    fn row(&self, row: &Row, limit: Option<&Limit>) -> String {
        let (state, now) = (row.state(), Timestamp::from(self.observed_at));
        let holds = match row.balance() {
            Some(balance) if self.is_meter || limit.is_none() && balance.is_negative() => {
                format!("{} used", used(balance))
            }
            Some(balance) => balance.to_string(),
            None => format!("{} used", row.used()),
        };
        let mut parts = vec![format!("{holds} at {}, {}", instant(state.ts), row.storage)];
        if row.shard > 0 || limit.is_some_and(|limit| limit.spec().shards > 1) {
            parts.push(format!("shard {}", row.shard));
        }
        if let Some(fault) = row.fault() {
            parts.push(styled(BAD, format!("corrupt: {fault}, so each call of it is an error")));
        }
        match (limit, row.full_at()) {
            (None, Some(full_at)) if full_at <= now => parts.push("full by now".to_owned()),
            (None, Some(full_at)) => parts.push(format!("full {}", self.later(full_at.into()))),
            _ => {}
        }
        if let (List::Grants(entries) | List::Leases(entries), Some(first)) =
            (&state.list, state.list.entries().first())
        {
            let thing = if matches!(state.list, List::Grants(_)) { "grant" } else { "lease" };
            parts.push(format!("{}, the first until {}", counted(entries.len(), thing), instant(first.ends_at)));
        }
        if state.ts > now {
            parts.push(styled(BAD, format!("{} in the future (reset mends it)", span(until(state.ts, now)))));
        }
        if limit.is_some_and(|limit| limit.spec().storage != row.storage()) {
            parts.push(styled(CAUTION, "which the limit does not use any more"));
        } else if limit.is_some_and(|limit| row.index(limit).is_none()) {
            parts.push(styled(CAUTION, "a stale shard: the limit has another number of shards now"));
        }
        parts.join(", ")
    }

    /// A call that is known by its name.
    fn call(&self, call: &StoredCall) -> String {
        let StoredCall { id, charged, reported, lapses_at, kept_until, used, .. } = call;
        let reported = if *reported > Tokens::ZERO { format!(" ({reported} reported)") } else { String::new() };
        let end = match lapses_at {
            Some(at) if *at <= self.observed_at => format!("has lapsed at {}, not given back yet", instant(*at)),
            Some(at) => format!("lapses {}", self.later(*at)),
            None if *used => format!("used, known until {}", instant(*kept_until)),
            None => format!("known until {}", instant(*kept_until)),
        };
        let charged = charged.map_or_else(|| "charges that cannot be read".to_owned(), |sum| format!("{sum} charged"));
        format!("{charged}{reported}, {end}, id {}", printable(id))
    }

    fn later(&self, at: DateTime<Utc>) -> String {
        format!("in {}, at {}", span(until(at.into(), self.observed_at.into())), instant(at))
    }

    /// The same in one line of a list.
    pub(super) fn cells(&self) -> Vec<String> {
        if self.rows.iter().any(|row| row.fault().is_some()) {
            return vec![shown(&self.key), "corrupt".to_owned(), String::new(), String::new()];
        }
        if let Some(standing) = self.standing.as_ref().filter(|_| self.is_meter) {
            return vec![shown(&self.key), used(standing.remaining).to_string()];
        }
        let (amount, of, full_at) = if let Some(Standing { remaining, capacity, full_at, .. }) = &self.standing {
            (*remaining, if *capacity == Tokens::MAX { String::new() } else { capacity.to_string() }, *full_at)
        } else {
            let used = |row: &Row| row.balance().unwrap_or(row.used()).micros();
            let sum = self.rows.iter().map(used).fold(0, i64::saturating_add);
            let as_of = self.rows.iter().map(|row| row.state().ts).max().unwrap_or(Timestamp::MIN);
            let full_at = self.rows.iter().map(Row::full_at).max_by_key(|at| at.unwrap_or(Timestamp::MAX)).flatten();
            (Tokens::from_micros(sum), format!("at {}", instant(as_of)), full_at.map(Into::into))
        };
        let full_in = match full_at {
            None => "never".to_owned(),
            Some(at) if at <= self.observed_at => "now".to_owned(),
            Some(at) => span(until(at.into(), self.observed_at.into())),
        };
        vec![shown(&self.key), amount.to_string(), of, full_in]
    }
}
