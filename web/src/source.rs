use std::time::Duration;

use tollgate::{DAY, HOUR, Limit, LimitKind, MINUTE, SECOND, Storage, Tokens};

/// A limit as an item of Rust.
pub(crate) fn constant(limit: &Limit) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = limit.name().chars().map(upper).collect();
    let name = match &name[..] {
        "_" => "LIMIT".to_owned(),
        // Its period may be written so.
        "SECOND" | "MINUTE" | "HOUR" | "DAY" => format!("{name}_LIMIT"),
        _ if name.starts_with(|c: char| c.is_ascii_digit()) => format!("_{name}"),
        _ => name,
    };
    format!("const {name}: Limit = {};", expression(limit))
}

/// A limit as the constructor and the methods that make it.
fn expression(limit: &Limit) -> String {
    let capacity = limit.capacity.unwrap_or(limit.rate);
    let has_fraction = [limit.rate, capacity].iter().any(|tokens| !is_whole(*tokens));
    let methods = [
        has_fraction.then(|| format!(".rate_and_capacity({}, {})", exact(limit.rate), exact(capacity))),
        (!has_fraction && capacity != limit.rate).then(|| format!(".capacity({capacity})")),
        limit.start.map(|start| format!(".start({})", span(start))),
        limit.resolution.map(|steps| format!(".resolution({steps})")),
        depth(limit),
        (limit.shards > 1).then(|| format!(".shards({})", limit.shards)),
        (limit.storage == Storage::Ephemeral).then(|| ".ephemeral()".to_owned()),
    ];
    let methods: String = methods.into_iter().flatten().collect();
    let (kind, name) = (constructor(limit.kind), limit.name());
    if limit.kind.is_money() {
        return format!("Limit::{kind}({name:?}){methods}");
    }
    // Where the rate has a fraction, `rate_and_capacity` says it.
    let rate = limit.rate.micros().unsigned_abs().div_ceil(TOKEN);
    if !limit.kind.has_period() {
        return format!("Limit::{kind}({name:?}, {rate}){methods}");
    }
    format!("Limit::{kind}({name:?}, {rate}, {}){methods}", span(limit.period))
}

/// How far below zero it may go.
fn depth(limit: &Limit) -> Option<String> {
    match limit.max_reserved {
        Tokens::ZERO => None,
        depth if limit.kind == LimitKind::Wallet => Some(format!(".overdraft({depth})")),
        Tokens::MAX => Some(".unbounded_reservations()".to_owned()),
        depth => Some(format!(".max_reserved({depth})")),
    }
}

fn constructor(kind: LimitKind) -> String {
    kind.to_string().replace(" limit", "").replace(' ', "_")
}

fn is_whole(tokens: Tokens) -> bool {
    tokens.micros().unsigned_abs().is_multiple_of(TOKEN)
}

fn exact(tokens: Tokens) -> String {
    format!("Tokens::from_micros({})", tokens.micros())
}

fn span(span: Duration) -> String {
    let named = [("SECOND", SECOND), ("MINUTE", MINUTE), ("HOUR", HOUR), ("DAY", DAY)];
    if let Some((name, _)) = named.into_iter().find(|(_, unit)| *unit == span) {
        return name.to_owned();
    }
    match span.as_micros() {
        micros if micros.is_multiple_of(1_000_000) => format!("Duration::from_secs({})", span.as_secs()),
        micros if micros.is_multiple_of(1_000) => format!("Duration::from_millis({})", span.as_millis()),
        micros => format!("Duration::from_micros({micros})"),
    }
}

const TOKEN: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The written expressions compile, because this test contains them.
    #[test]
    #[expect(clippy::duration_suboptimal_units, clippy::unreadable_literal, reason = "so it is written")]
    fn a_limit_is_written_as_the_expression_that_makes_it() {
        macro_rules! same {
            ($($limit:expr),* $(,)?) => {$({
                let written = stringify!($limit);
                assert_eq!(expression(&$limit), written.split_whitespace().collect::<Vec<_>>().join(" "));
            })*};
        }
        same![
            Limit::token_bucket("api", 10, SECOND),
            Limit::token_bucket("api", 10, MINUTE).capacity(20).max_reserved(5).shards(4),
            Limit::token_bucket("api", 1, Duration::from_millis(1500)).unbounded_reservations(),
            Limit::token_bucket("half", 1, HOUR)
                .rate_and_capacity(Tokens::from_micros(500000), Tokens::from_micros(2000000)),
            Limit::fixed_window("reports", 100, DAY).start(Duration::from_secs(79200)).ephemeral(),
            Limit::stepped_bucket("uploads", 5, Duration::from_secs(10)).capacity(20),
            Limit::sliding_window("their \"api\"", 100, Duration::from_micros(7)).resolution(10),
            Limit::concurrency("renders", 8, Duration::from_secs(30)),
            Limit::wallet("credits").overdraft(50),
            Limit::meter("usage"),
        ];
        assert_eq!(
            constant(&Limit::token_bucket("per-user 7", 1, SECOND)),
            "const PER_USER_7: Limit = Limit::token_bucket(\"per-user 7\", 1, SECOND);"
        );
        assert_eq!(
            constant(&Limit::token_bucket("minute", 1, MINUTE)),
            "const MINUTE_LIMIT: Limit = Limit::token_bucket(\"minute\", 1, MINUTE);"
        );
    }
}
