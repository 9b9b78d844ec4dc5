//! `tollgate limits`: checks a limits file, and writes its definitions into the table of definitions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;
use tollgate::{Limit, LimitKind, Limits, LimitsError, Tokens};

use crate::error::{CommandError, Exit};
use crate::limits_file::describe;
use crate::output::{BAD, CAUTION, GOOD, OutputArgs, counted, printable, span, styled};
use crate::push::{self, PushArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Report every fault of a limits file: its line, its column, and often a correction. Needs no database.
    ///
    /// A hint names a definition that is valid but seldom meant, such as a capacity that takes years to fill.
    ///
    /// Exit status: 0 no faults, even if there are hints; 1 faults, or a file that cannot be read.
    Check {
        /// The limits file: JSON if its name ends in `.json`, else TOML. The command refuses YAML.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        #[command(flatten)]
        output: OutputArgs,
    },
    /// Write the definitions of a limits file into the table `tollgate.limits`, and print what changes.
    ///
    /// SQL functions go by that table. The command writes all definitions or none. A limit that is not in the file
    /// stays in the table, because somebody may still ask it.
    ///
    /// Exit status: 0 done, 1 failed. With --check, 1 also means that there is something to write.
    Push(PushArgs),
}

pub(crate) async fn run(command: LimitsCommand) -> Result<Exit, CommandError> {
    match command {
        LimitsCommand::Check { file, output } => check(&file, output),
        LimitsCommand::Push(args) => push::run(args).await,
    }
}

fn check(file: &Path, output: OutputArgs) -> Result<Exit, CommandError> {
    let path = file.display();
    match Limits::from_file(file) {
        Ok(limits) => {
            let hints: Vec<_> = limits.iter().filter_map(|limit| Some((limit, hint(limit)?))).collect();
            let specs: Vec<_> = limits.iter().map(Limit::spec).collect();
            let told: Vec<_> =
                hints.iter().map(|(limit, hint)| json!({ "limit": limit.name(), "hint": hint })).collect();
            output.print(&json!({ "file": file, "limits": specs, "fault": null, "hints": told }), || {
                let mut lines: Vec<_> = limits.iter().map(describe).collect();
                let label = styled(CAUTION, "hint");
                let told = |(limit, hint): &(&Limit, String)| format!("{label}: {}: {hint}", printable(limit.name()));
                lines.extend(hints.iter().map(told));
                lines.push(format!("{}: {}, nothing wrong", styled(GOOD, path), counted(limits.len(), "limit")));
                lines.join("\n")
            })?;
            Ok(Exit::Done)
        }
        Err(LimitsError::Faulty { fault, .. }) => {
            let told = json!({ "line": fault.line, "column": fault.column, "message": fault.message });
            output.print(&json!({ "file": file, "limits": null, "fault": told, "hints": [] }), || {
                format!("{}:{fault}", styled(BAD, path))
            })?;
            Ok(Exit::Failed)
        }
        Err(error) => Err(error.into()),
    }
}

/// A hint about a limit that is valid, but probably not meant.
fn hint(limit: &Limit) -> Option<String> {
    let spec = limit.spec();
    let (capacity, rate) = (spec.capacity.filter(|_| !spec.kind.is_money())?, spec.rate);
    let periods = whole_periods(capacity, rate);
    let fills_in = spec.period.checked_mul(periods).unwrap_or(Duration::MAX);
    let time = span(fills_in);
    let is_budget = is_money(limit.name()) || (spec.period >= DAY && capacity >= rate);
    if fills_in > YEAR {
        Some(format!("an empty key takes {time} to fill up (lower the capacity, or raise the rate)"))
    } else if spec.kind == LimitKind::TokenBucket && fills_in >= DAY && is_budget {
        let most = Tokens::from_micros(capacity.micros().saturating_add(rate.micros().saturating_mul(periods.into())));
        Some(format!("a token bucket refills all the time: {most} tokens can go in {time} ({FOR_A_BUDGET})"))
    } else if capacity > rate && fills_in > MANY_DAYS {
        Some(format!("a rested key can spend {time} worth of tokens at once (lower the capacity)"))
    } else if capacity == rate && spec.kind == LimitKind::TokenBucket {
        Some("capacity = rate: a key that rests gains nothing after one period (give it a larger capacity)".to_owned())
    } else {
        None
    }
}

/// Whether a word of the name says that its tokens are money.
fn is_money(name: &str) -> bool {
    let words = name.split(|letter: char| !letter.is_ascii_alphabetic());
    words.map(str::to_ascii_lowercase).any(|word| MONEY.contains(&word.as_str()))
}

/// How many periods give back so many tokens, rounded up.
fn whole_periods(tokens: Tokens, rate: Tokens) -> u32 {
    let periods = tokens.micros().unsigned_abs().div_ceil(rate.micros().unsigned_abs().max(1));
    u32::try_from(periods).unwrap_or(u32::MAX)
}

const FOR_A_BUDGET: &str = "for a budget take monthly, billing or fixed_window";
const MONEY: [&str; 18] = [
    "budget", "budgets", "cent", "cents", "cost", "costs", "credit", "credits", "dollar", "dollars", "eur", "euro",
    "euros", "money", "price", "spend", "spending", "usd",
];
const DAY: Duration = Duration::from_hours(24);
const MANY_DAYS: Duration = Duration::from_hours(7 * 24);
const YEAR: Duration = Duration::from_hours(366 * 24);
