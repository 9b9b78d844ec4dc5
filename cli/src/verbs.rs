//! The limiter's verbs about an amount, for support staff and scripts: each in a transaction of its own.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgTransaction;
use tollgate::{
    Balance, Decision, Denied, Error, LimitKind, Limiter, Overrides, Request, Reservation, Tokens, migrate,
};

use crate::database::{DatabaseArgs, begin};
use crate::error::{CommandError, Exit};
use crate::output::{BAD, CAUTION, GOOD, OutputArgs, instant, shown, span, styled};
use crate::overrides::{ban, ban_of, ban_words};
use crate::period::PeriodArgs;
use crate::target::TargetArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct ConsumeArgs {
    #[command(flatten)]
    ask: AskArgs,

    /// Take the tokens now even if they come back only later, and print when they will be there. This may take the
    /// balance as far below zero as the limit's `max_reserved` allows.
    #[arg(long)]
    reserve: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// The number of tokens.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    #[command(flatten)]
    period: PeriodArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl AskArgs {
    async fn request(&self) -> Result<Request, CommandError> {
        self.period.of(self.target.request(&self.database).await?.cost(self.cost))
    }
}

pub(crate) async fn check(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.request().await?;
    let decision = in_transaction(&ask.database, async |limiter, tx| limiter.check(tx, request).await).await?;
    decided(&ask, "would be granted", decision)
}

pub(crate) async fn consume(args: ConsumeArgs) -> Result<Exit, CommandError> {
    let ConsumeArgs { ask, reserve } = args;
    let request = ask.request().await?;
    if reserve {
        let decision = in_transaction(&ask.database, async |limiter, tx| limiter.reserve(tx, request).await).await?;
        let what = what(&ask)?;
        return answer(&ask, decision, |reservation| reserved(&what, reservation));
    }
    let decision = in_transaction(&ask.database, async |limiter, tx| limiter.consume(tx, request).await).await?;
    decided(&ask, "granted", decision)
}

pub(crate) async fn credit(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.period.if_named(ask.target.request(&ask.database).await?.cost(ask.cost));
    let kind = request.limit().kind;
    let balance = in_transaction(&ask.database, async |limiter, tx| limiter.credit(tx, request).await).await?;
    changed(ask.output, "credited", kind, balance)
}

pub(crate) async fn debit(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.request().await?;
    let kind = request.limit().kind;
    let balance = in_transaction(&ask.database, async |limiter, tx| limiter.debit(tx, request).await).await?;
    changed(ask.output, "debited", kind, balance)
}

/// One verb in a transaction of its own, and the overrides that it went by.
///
/// The limiter gives up on a row that somebody holds: people on call want to hear of that rather than wait. Its
/// statements go through any pooler of the service.
pub(crate) async fn in_transaction<T>(
    database: &DatabaseArgs,
    verb: impl AsyncFnOnce(Limiter, &mut PgTransaction<'_>) -> Result<T, Error>,
) -> Result<(T, Overrides), CommandError> {
    let mut conn = database.connect().await?;
    let mut tx = begin(&mut conn).await?;
    let parts = migrate::parts(&mut tx).await?;
    let said = Overrides::read(&mut tx).await?;
    let limiter = Limiter::new().lock_timeout(Duration::from_secs(5)).unnamed_statements().parts(parts);
    let answer = verb(limiter.overrides(&said), &mut tx).await?;
    tx.commit().await?;
    Ok((answer, said))
}

fn decided(ask: &AskArgs, granted: &str, decision: (Decision, Overrides)) -> Result<Exit, CommandError> {
    let (granted, what) = (styled(GOOD, granted), what(ask)?);
    answer(ask, decision, |grant| match grant.standings.first() {
        Some(standing) if standing.limit.kind == LimitKind::Meter => {
            format!("{granted}: {what}; {} used", used(standing.remaining))
        }
        _ => format!("{granted}: {what}; {} left", grant.remaining),
    })
}

fn answer<T: serde::Serialize>(
    ask: &AskArgs,
    (decision, overrides): (Decision<T>, Overrides),
    granted: impl FnOnce(&T) -> String,
) -> Result<Exit, CommandError> {
    ask.output.print(&decision, || match &decision {
        Decision::Granted(grant) => granted(grant),
        Decision::Denied(denied) => refusal(ask.cost, denied, &overrides),
    })?;
    Ok(if decision.is_granted() { Exit::Done } else { Exit::Refused })
}

fn reserved(what: &str, reservation: &Reservation) -> String {
    if reservation.is_ready() {
        return format!("{}: {what}, ready now", styled(GOOD, "reserved"));
    }
    let (wait, at) = (span(reservation.wait()), instant(reservation.ready_at));
    format!("{}: {what}, ready in {wait}, at {at}", styled(CAUTION, "reserved"))
}

fn what(ask: &AskArgs) -> Result<String, CommandError> {
    Ok(format!("{} of {:?} for {}", ask.cost, ask.target.name, ask.target.shown()?))
}

/// Why there is no grant, and when there will be one.
pub(crate) fn refusal(cost: Tokens, denied: &Denied, overrides: &Overrides) -> String {
    let Denied { limit, key, remaining, retry_at, .. } = denied;
    let (refused, key) = (styled(BAD, "refused"), shown(key));
    let refused = format!("{refused}: {cost} of {limit:?} for {key}");
    if let Some(said) = ban_of(overrides, denied) {
        return format!("{refused}; {}", ban_words(&said));
    }
    let retry = match (denied.retry_after(), retry_at) {
        (Some(wait), Some(at)) => format!("retry in {}, at {}", span(wait), instant(*at)),
        _ => "only a credit helps".to_owned(),
    };
    format!("{refused}; it has {remaining}, {retry}")
}

/// Prints the balance of a key after a change, and the override that still refuses the key.
pub(crate) fn changed(
    output: OutputArgs,
    done: &str,
    kind: LimitKind,
    (balance, overrides): (Balance, Overrides),
) -> Result<Exit, CommandError> {
    output.print(&balance, || {
        let has = format!("{}: {}", styled(GOOD, done), holds(&balance, kind));
        // No override applies to a meter.
        match ban(&overrides, &balance.limit, &balance.key, balance.observed_at).filter(|_| kind != LimitKind::Meter) {
            Some(said) => format!("{has}\n{}: {}", styled(BAD, "it stays refused"), ban_words(&said)),
            None => has,
        }
    })?;
    Ok(Exit::Done)
}

fn holds(balance: &Balance, kind: LimitKind) -> String {
    let Balance { limit, key, remaining, capacity, .. } = balance;
    if kind == LimitKind::Meter {
        return format!("{limit:?} for {} has {} used", shown(key), used(*remaining));
    }
    let has = format!("{limit:?} for {} has {remaining}", shown(key));
    if *capacity == Tokens::MAX {
        // A wallet.
        return has;
    }
    let missing = |at: DateTime<Utc>| (at - balance.observed_at).to_std().unwrap_or_default();
    match balance.full_at.filter(|_| !balance.is_full()) {
        Some(at) => format!("{has} of {capacity}; full in {}, at {}", span(missing(at)), instant(at)),
        None => format!("{has} of {capacity}; full"),
    }
}

/// The use that a meter with this balance counts; below zero where corrections exceed it.
pub(crate) fn used(balance: Tokens) -> Tokens {
    Tokens::ZERO.checked_sub(balance).unwrap_or(Tokens::MAX)
}
