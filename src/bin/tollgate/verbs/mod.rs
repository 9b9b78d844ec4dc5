//! The limiter's verbs, for support staff and scripts.

mod answer;
mod reset;
mod run;
mod target;

use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tollgate::{Error, Limiter, Request, Tokens};

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::output::OutputArgs;
pub(crate) use reset::{ResetArgs, reset};
pub(crate) use run::{RunArgs, RunError, run};
use target::TargetArgs;
pub(crate) use target::{KeyFault, key};

#[derive(Debug, clap::Args)]
pub(crate) struct ConsumeArgs {
    #[command(flatten)]
    ask: AskArgs,

    /// Take the tokens even if they will only be there later, and say when: as deep as the limit's `max_reserved` lets it.
    #[arg(long)]
    reserve: bool,
}

/// What the verbs have in common that are about an amount.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// How many tokens.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl AskArgs {
    fn request(&self) -> Result<Request, CommandError> {
        Ok(self.target.request()?.cost(self.cost))
    }
}

pub(crate) async fn consume(args: ConsumeArgs) -> Result<Exit, CommandError> {
    let ConsumeArgs { ask, reserve } = args;
    let request = ask.request()?;
    if reserve {
        let reserved = in_transaction(&ask.database, async |conn| LIMITER.reserve(conn, request).await).await?;
        return answer::reservation(&ask, &reserved);
    }
    let decision = in_transaction(&ask.database, async |conn| LIMITER.consume(conn, request).await).await?;
    answer::decision(&ask, "granted", &decision)
}

pub(crate) async fn check(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.request()?;
    let decision = in_transaction(&ask.database, async |conn| LIMITER.check(conn, request).await).await?;
    answer::decision(&ask, "would be granted", &decision)
}

pub(crate) async fn credit(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.request()?;
    let balance = in_transaction(&ask.database, async |conn| LIMITER.credit(conn, request).await).await?;
    answer::balance(ask.output, "credited", &balance)
}

pub(crate) async fn debit(ask: AskArgs) -> Result<Exit, CommandError> {
    let request = ask.request()?;
    let balance = in_transaction(&ask.database, async |conn| LIMITER.debit(conn, request).await).await?;
    answer::balance(ask.output, "debited", &balance)
}

/// One verb in a transaction of its own.
async fn in_transaction<T>(
    database: &DatabaseArgs,
    verb: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
) -> Result<T, CommandError> {
    let mut conn = database.connect().await?;
    let mut tx = conn.begin().await?;
    let answer = verb(&mut tx).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Whoever is on call would rather hear that a row is held than wait for it, and may have only the service's pooler to go through.
/// Whether the tables are distributed need not be asked for one call: what is said to those works on others, too.
const LIMITER: Limiter = Limiter::new().lock_timeout(Duration::from_secs(5)).unnamed_statements().distributed();
