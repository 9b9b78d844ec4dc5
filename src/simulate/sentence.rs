use std::time::Duration;

use super::outcome::{Outcome, RuleOutcome};
use crate::spec::{LimitKind, LimitSpec};
use crate::tokens::Tokens;
use crate::{DAY, HOUR, MINUTE, SECOND};

impl Outcome {
    /// What people ask for: the burst that is allowed, the sustained rate, the share that is refused, and the worst wait.
    #[must_use]
    pub fn sentence(&self) -> String {
        let allowed: Vec<_> = self.rules.iter().map(allowance).collect();
        let mut parts = vec![self.refusals()];
        if self.waits.waited > 0 {
            let Self { granted, waits, .. } = self;
            parts.push(format!("{} of the {granted} granted waited, {} at worst", waits.waited, short(waits.worst)));
        }
        if self.tries > self.calls - self.impossible {
            parts.push(format!("the limits were asked {} times", self.tries));
        }
        if self.impossible > 0 {
            parts.push(format!("{} could never be granted, for they cost more than the capacity", self.impossible));
        }
        format!("Allows {}: {}.", allowed.join(", and "), parts.join("; "))
    }

    fn refusals(&self) -> String {
        let Self { calls, refused, .. } = self;
        if *refused == 0 {
            return format!("none of {calls} calls was refused");
        }
        let share = 100.0 * self.share_refused();
        let first = self.first_refusal_after.map(|after| match after {
            Duration::ZERO => ", the first at once".to_owned(),
            after => format!(", the first after {}", short(after)),
        });
        let told = self.worst_retry_after.map(|wait| format!(", and told to wait {} at worst", short(wait)));
        let [first, told] = [first, told].map(Option::unwrap_or_default);
        format!("{refused} of {calls} calls ({share:.1} %) were refused{first}{told}")
    }
}

/// "a burst of 50 and 10 a second for each key".
fn allowance(rule: &RuleOutcome) -> String {
    let LimitSpec { kind, rate, period, capacity, max_reserved, .. } = &rule.limit;
    let burst = match capacity.unwrap_or(*rate) {
        Tokens::ZERO => "nothing at once".to_owned(),
        capacity => format!("a burst of {capacity}"),
    };
    let sustained = match kind {
        LimitKind::TokenBucket => format!("{rate} {}", each(*period)),
        LimitKind::FixedWindow | LimitKind::SteppedBucket => format!("{rate} at once {}", every(*period)),
    };
    let booked = match *max_reserved {
        Tokens::ZERO => String::new(),
        Tokens::MAX => ", booked ahead without a bound".to_owned(),
        bound => format!(", {bound} of them booked ahead"),
    };
    let whom = if rule.global { "for all together" } else { "for each key" };
    format!("{burst} and {sustained} {whom}{booked}")
}

fn each(period: Duration) -> String {
    named(period).map_or_else(|| format!("in {}", short(period)), |(article, name)| format!("{article} {name}"))
}

fn every(period: Duration) -> String {
    named(period).map_or_else(|| format!("every {}", short(period)), |(_, name)| format!("every {name}"))
}

fn named(period: Duration) -> Option<(&'static str, &'static str)> {
    let names = [(SECOND, "a", "second"), (MINUTE, "a", "minute"), (HOUR, "an", "hour"), (DAY, "a", "day")];
    names.into_iter().find(|(span, ..)| *span == period).map(|(_, article, name)| (article, name))
}

/// A span for people, rounded up: to the microsecond below a second, to the millisecond below a minute, then to the second.
#[must_use]
pub fn short(span: Duration) -> String {
    let micros = span.as_micros();
    if span >= MINUTE {
        humantime::format_duration(Duration::from_secs(span.as_secs() + u64::from(span.subsec_nanos() > 0))).to_string()
    } else if span >= SECOND {
        decimal(micros.div_ceil(1_000), "s")
    } else if micros >= 1_000 {
        decimal(micros, "ms")
    } else {
        format!("{micros}us")
    }
}

/// Thousandths of a unit as a decimal.
fn decimal(thousandths: u128, unit: &str) -> String {
    let digits = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short_and_never_too_short() {
        let spans = [1, 999, 1_000, 983_334, 1_000_000, 1_500_001, 60_000_000, 3_661_000_001];
        let shown = ["1us", "999us", "1ms", "983.334ms", "1s", "1.501s", "1m", "1h 1m 2s"];
        assert_eq!(spans.map(|micros| short(Duration::from_micros(micros))), shown);
    }
}
