//! `tollgate override`: other numbers, deny or unlimited.

mod ban;
mod loss;
mod meaning;
mod words;

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use tollgate::{
    Effect, Key, Limit, LimitKind, Limiter, Limits, NewOverride, Override, OverrideError, Overrides, Tokens, migrate,
};

use crate::database::{DatabaseArgs, begin, clock};
use crate::error::CommandError;
use crate::limits_file::{LimitsArgs, not_known};
use crate::output::{GOOD, OutputArgs, printable, styled, word};
use crate::target::{joined, key};
pub(crate) use ban::{ban, ban_of, ban_words};
use loss::expect_meant;
use meaning::{Meaning, asked};
use words::{labelled, line};
pub(crate) use words::{whom, words};

#[derive(Debug, Subcommand)]
pub(crate) enum OverrideCommand {
    /// Give a key other numbers, deny it, or let it through. An override lasts until its end, or until it is removed.
    ///
    /// A key has one override for each label. A new one replaces the old one of the same label, and the command says
    /// so.
    ///
    /// Several overrides may be live at once. Deny beats unlimited, and unlimited beats numbers, whether they are for
    /// the key or for every key. Numbers for the key beat numbers for every key. Among several of these, the last ones
    /// set count. Services that watch overrides follow within about a second, SQL functions at once.
    ///
    /// If the new numbers are lower than those that count now, the command says which these are, and asks. Where nobody
    /// can answer, it sets nothing without `--yes`.
    #[command(override_usage = "tollgate override set [OPTIONS] --reason <TEXT> <NAME> <KEY|--every-key> \
                                <--deny|--unlimited|--rate N|--overdraft N>")]
    Set(SetArgs),
    /// List all overrides, or those of one limit, or those of one key.
    List(ListArgs),
    /// Remove an override.
    #[command(override_usage = "tollgate override remove [OPTIONS] <NAME> <KEY|--every-key>")]
    Remove(RemoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    whom: WhomArgs,

    #[command(flatten)]
    effect: EffectArgs,

    /// The period in which `--rate` tokens come back, or the lease of a concurrency limit. Without this option, that of
    /// the limit itself counts.
    #[arg(long, value_name = "SPAN", conflicts_with_all = OTHERS, value_parser = humantime::parse_duration)]
    per: Option<Duration>,

    /// The most tokens that the key can hold. Without this option, that is `--rate`.
    #[arg(long, value_name = "N", conflicts_with_all = OTHERS)]
    capacity: Option<Tokens>,

    /// How many tokens below zero reservations may go. Without this option, the limit's own number counts.
    #[arg(long, value_name = "N", conflicts_with_all = OTHERS)]
    max_reserved: Option<Tokens>,

    /// How long the override lasts, from its start.
    #[arg(long = "for", value_name = "SPAN", value_parser = humantime::parse_duration, conflicts_with = "until")]
    lasting: Option<Duration>,

    /// When the override ends, such as `2026-11-24T12:30:00Z`. Without this option and `--for`, it lasts until it is
    /// removed.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<DateTime<Utc>>,

    /// When the override starts. Without this option, it starts now. One that starts later cannot replace a live one.
    #[arg(long, value_name = "TIME", value_parser = time)]
    from: Option<DateTime<Utc>>,

    /// The label of the override. Overrides of the key with other labels stay. Give each application a label of its
    /// own, but not `slowdown` or `pause`: reports of trouble have these. Without this option, the label is empty.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,

    /// Also forgive what the key has used so far. This empties a wallet.
    #[arg(long, conflicts_with = "every_key")]
    reset: bool,

    /// Set numbers that are lower than those that count now, and do not ask.
    #[arg(long)]
    yes: bool,

    /// Why you set it, for the people who find it later.
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// The person or program that sets it. Without this option, that is the role of the session.
    #[arg(long, value_name = "WHO")]
    by: Option<String>,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// A key, or all. A missing key is an error and does not mean everybody.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct WhomArgs {
    /// The key, written as `tollgate inspect` prints it. Of a key that has several parts, each may be a word.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Vec<Key>,

    /// The one override for every key of the limit, and for the row that all callers share.
    #[arg(long, visible_alias = "global")]
    every_key: bool,
}

#[derive(Debug, clap::Args)]
#[group(id = "effect", required = true, multiple = false)]
struct EffectArgs {
    /// Refuse all calls.
    #[arg(long)]
    deny: bool,

    /// Grant all calls, and charge nothing.
    #[arg(long)]
    unlimited: bool,

    /// How many tokens come back in each period (`--per`). For a concurrency limit, how many can be held at once.
    #[arg(long, value_name = "N")]
    rate: Option<Tokens>,

    /// How many tokens below zero calls may take a wallet.
    #[arg(long, value_name = "N")]
    overdraft: Option<Tokens>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// List only overrides of this limit.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// List only overrides that apply to this key: its own, and those for every key.
    #[arg(value_name = "KEY", value_parser = key)]
    key: Vec<Key>,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    whom: WhomArgs,

    /// Remove the override with this label. Without this option, the command removes the one with the empty label.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

fn time(text: &str) -> Result<DateTime<Utc>, &'static str> {
    text.parse().map_err(|_| "write it as 2026-11-24T12:30:00Z")
}

/// The options that exclude a rate and its other numbers.
const OTHERS: [&str; 3] = ["deny", "unlimited", "overdraft"];

pub(crate) async fn run(command: OverrideCommand) -> Result<(), CommandError> {
    match command {
        OverrideCommand::Set(args) => set(args).await,
        OverrideCommand::List(args) => list(args).await,
        OverrideCommand::Remove(args) => remove(args).await,
    }
}

async fn set(args: SetArgs) -> Result<(), CommandError> {
    let key = joined(&args.whom.key)?;
    let mut conn = args.database.connect().await?;
    let mut tx = begin(&mut conn).await?;
    let (limit, is_known) = named(&args, &mut tx).await?;
    let parts = migrate::parts(&mut tx).await?;
    tx.rollback().await?;
    // Outside of a transaction, because somebody may be asked.
    let new = new(&args, key.as_ref(), &limit, &mut conn).await?;
    let mut tx = begin(&mut conn).await?;
    let told = new.set(&mut tx).await?;
    let now = clock(&mut tx).await?.into();
    let overrides = Overrides::read(&mut tx).await?;
    if let Some(key) = key.as_ref().filter(|_| args.reset) {
        let limiter = Limiter::new().unnamed_statements().parts(parts).overrides(&overrides);
        limiter.reset(&mut tx, asked(&limit, key)).await?;
    }
    tx.commit().await?;
    let is_it = |said: &&Override| said.limit == args.name && said.key == key && said.label == args.label;
    let all = overrides.all();
    let Some(said) = all.iter().find(is_it) else {
        return Err(CommandError::bare("the override was set, and cannot be read"));
    };
    let standing = standing(&mut conn, Some(&limit).filter(|_| is_known), key.as_ref()).await;
    let document = Set { said, replaced: told.replaced.as_ref(), others: &told.others, standing };
    args.output.print(&document, || {
        let replaced = document.replaced.map(|said| format!("instead of: {}", words(said, now)));
        let others = document.others.iter().map(|said| format!("beside: {}", line(said, now)));
        let unknown = (!is_known).then(|| UNKNOWN.to_owned());
        let set = format!("{}: {}", styled(GOOD, "set"), line(said, now));
        let all = [set].into_iter().chain(replaced).chain(others).chain(document.means()).chain(unknown);
        all.collect::<Vec<_>>().join("\n")
    })
}

/// The override that is to be set.
async fn new(
    args: &SetArgs,
    key: Option<&Key>,
    limit: &Limit,
    conn: &mut PgConnection,
) -> Result<NewOverride, CommandError> {
    if limit.kind == LimitKind::Meter {
        return Err(OverrideError::Meter { limit: args.name.clone() }.into());
    }
    let new = match &args.effect {
        EffectArgs { deny: true, .. } => NewOverride::deny(limit),
        EffectArgs { unlimited: true, .. } => NewOverride::unlimited(limit),
        EffectArgs { rate, overdraft, .. } => {
            let numbers = numbers(args, limit, *rate, *overdraft)?;
            expect_meant(args, key, limit, &numbers, conn).await?;
            NewOverride::numbers(&numbers)
        }
    };
    let mut new = new.label(&args.label).reason(&args.reason);
    if let Some(key) = key {
        new = new.of_key(key.clone());
    }
    if let Some(from) = args.from {
        new = new.from(from);
    }
    if let Some(until) = args.until {
        new = new.until(until);
    }
    if let Some(span) = args.lasting {
        new = new.lasting(span);
    }
    if let Some(who) = &args.by {
        new = new.by(who);
    }
    Ok(new)
}

/// The override that was set, and those beside it.
#[derive(Serialize)]
struct Set<'a> {
    #[serde(flatten)]
    said: &'a Override,
    replaced: Option<&'a Override>,
    others: &'a [Override],
    /// Only for a key whose limit is defined.
    standing: Option<Meaning>,
}

impl Set<'_> {
    /// Its meaning for the key now, unless that goes without saying.
    fn means(&self) -> Option<String> {
        let denies = self.said.effect == Effect::Deny;
        let standing = self.standing.as_ref().filter(|standing| standing.tells() && !denies)?;
        Some(format!("now: {}", standing.text()))
    }
}

/// Where a key stands now. A role that may set overrides need not have the right to read rows: then this is `None`.
async fn standing(conn: &mut PgConnection, limit: Option<&Limit>, key: Option<&Key>) -> Option<Meaning> {
    Meaning::of(conn, limit?, key?).await.ok()
}

/// A warning beside a deny or a free pass, which need no definition, so that a misspelled name is seen.
const UNKNOWN: &str = "(neither a limits file nor the table tollgate.limits defines this limit: mind its name)";

/// The limit that the override is for, from the limits file or else from the table; and whether one of them defines it.
async fn named(args: &SetArgs, conn: &mut PgConnection) -> Result<(Limit, bool), CommandError> {
    if let Some(limits) = args.limits.load()? {
        return Ok((limits.get(&args.name)?.clone(), true));
    }
    if let Ok(limit) = Limits::from_table(conn).await?.get(&args.name) {
        return Ok((limit.clone(), true));
    }
    if !args.reset && (args.effect.deny || args.effect.unlimited) {
        let any = tollgate::LimitSpec::new(&args.name, LimitKind::TokenBucket, Tokens::ONE, tollgate::SECOND);
        return Ok((any.try_into()?, false));
    }
    Err(not_known(&args.name))
}

fn numbers(
    args: &SetArgs,
    limit: &Limit,
    rate: Option<Tokens>,
    overdraft: Option<Tokens>,
) -> Result<Limit, CommandError> {
    if (limit.spec().kind == LimitKind::Wallet) != overdraft.is_some() {
        let what = format!("limit {:?} is {} wallet", args.name, if overdraft.is_some() { "no" } else { "a" });
        return Err(CommandError::new(what, "a wallet has an --overdraft, every other limit a --rate"));
    }
    let numbers = limit.spec().with(|spec| {
        if let Some(rate) = rate {
            (spec.rate, spec.capacity) = (rate, Some(args.capacity.unwrap_or(rate)));
        }
        spec.period = args.per.unwrap_or(spec.period);
        spec.max_reserved = overdraft.or(args.max_reserved).unwrap_or(spec.max_reserved);
    });
    Ok(numbers.try_into()?)
}

async fn list(args: ListArgs) -> Result<(), CommandError> {
    let key = joined(&args.key)?;
    let mut conn = args.database.connect().await?;
    let mut tx = begin(&mut conn).await?;
    let now = clock(&mut tx).await?.into();
    let mut all = Overrides::read(&mut tx).await?.all();
    all.retain(|said| {
        let is_of_key = key.is_none() || said.key.is_none() || said.key == key;
        is_of_key && args.name.as_ref().is_none_or(|name| *name == said.limit)
    });
    args.output.print(&json!({ "now": now, "overrides": all }), || match &all[..] {
        [] => "no overrides".to_owned(),
        all => all.iter().map(|said| line(said, now)).collect::<Vec<_>>().join("\n"),
    })
}

async fn remove(args: RemoveArgs) -> Result<(), CommandError> {
    let joined = joined(&args.whom.key)?;
    let (key, label) = (joined.as_ref(), labelled(&args.label));
    let mut conn = args.database.connect().await?;
    let whom = format!("{}{}", whom(key), label.map(|label| format!(", {label}")).unwrap_or_default());
    let mut tx = begin(&mut conn).await?;
    if !NewOverride::remove(&mut tx, &args.name, key, &args.label).await? {
        let what = format!("there is no override of limit {:?} for {whom}", args.name);
        let mut all = Overrides::read(&mut tx).await?.all();
        all.retain(|said| said.limit == args.name && said.key.as_ref() == key);
        return Err(CommandError::new(
            what,
            match &all[..] {
                [] => "`tollgate override list` says which there are".to_owned(),
                all => format!(
                    "say --label: it has {}",
                    all.iter().map(|said| word(&said.label)).collect::<Vec<_>>().join(", ")
                ),
            },
        ));
    }
    tx.commit().await?;
    let limits = args.limits.known(&mut conn).await?;
    let limit = limits.and_then(|limits| limits.get(&args.name).cloned().ok());
    let standing = standing(&mut conn, limit.as_ref(), key).await;
    let removed = json!({
        "limit": args.name, "key": key, "label": args.label, "removed": true, "standing": standing
    });
    args.output.print(&removed, || {
        let removed = format!("{}: {} for {whom}", styled(GOOD, "removed"), printable(&args.name));
        let means = standing.filter(Meaning::tells).map(|standing| format!("now: {}", standing.text()));
        [removed].into_iter().chain(means).collect::<Vec<_>>().join("\n")
    })
}
