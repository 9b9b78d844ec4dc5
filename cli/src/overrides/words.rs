//! Overrides in words.

use chrono::{DateTime, Utc};
use tollgate::{Effect, Key, LimitKind, LimitSpec, Override, Tokens};

use crate::limits_file::each;
use crate::output::{instant, printable, shown, span};

/// A label in words; nothing where there is none.
pub(super) fn labelled(label: &str) -> Option<String> {
    Some(label).filter(|label| !label.is_empty()).map(|label| format!("label {}", printable(label)))
}

pub(crate) fn whom(key: Option<&Key>) -> String {
    key.map_or_else(|| "every key".to_owned(), shown)
}

/// An override in one line.
pub(super) fn line(said: &Override, now: DateTime<Utc>) -> String {
    let Override { limit, key, .. } = said;
    format!("{} for {}: {}", printable(limit), whom(key.as_ref()), words(said, now))
}

/// The numbers of a limit.
pub(super) fn quantities(spec: &LimitSpec) -> String {
    let max_reserved = spec.max_reserved;
    if spec.kind == LimitKind::Wallet {
        return format!("overdraft of {max_reserved}");
    }
    let reserved = if max_reserved > Tokens::ZERO { format!(", down to -{max_reserved}") } else { String::new() };
    format!("{} {}, at most {}{reserved}", spec.rate, each(spec), spec.most())
}

/// The effect, the end, the label, the author and the reason of an override.
pub(crate) fn words(said: &Override, now: DateTime<Utc>) -> String {
    let effect = match said.effect {
        Effect::Deny if said.is_pause() => "paused, because trouble was reported".to_owned(),
        Effect::Deny => "denied".to_owned(),
        Effect::Unlimited => "unlimited".to_owned(),
        Effect::Numbers { kind, rate, period, capacity, max_reserved } => {
            quantities(&LimitSpec::new("", kind, rate, period).with(|spec| {
                (spec.capacity, spec.max_reserved) = (Some(capacity), max_reserved);
            }))
        }
        Effect::Slowed { share: 1_000_000 } => "not slowed down, for few calls have failed".to_owned(),
        Effect::Slowed { share } => {
            let present = said.share(now).unwrap_or(share);
            format!("slowed down to {} % of its rate", f64::from(present / 1_000) / 10.0)
        }
        Effect::Unreadable => "denied, for it cannot be read".to_owned(),
        _ => "something that this release does not know".to_owned(),
    };
    let later = |at: DateTime<Utc>| format!("in {}, at {}", span((at - now).to_std().unwrap_or_default()), instant(at));
    let when = match said.ends_at {
        Some(at) if at <= now => format!(", over since {}", instant(at)),
        _ if !said.is_live(now) => format!(", begins {}", later(said.starts_at)),
        Some(at) => format!(", ends {}", later(at)),
        None => ", until it is removed".to_owned(),
    };
    let label = labelled(&said.label).map(|label| format!("{label}, ")).unwrap_or_default();
    format!("{effect}{when} ({label}{}: {})", printable(&said.set_by), printable(&said.reason))
}
