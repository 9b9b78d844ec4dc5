//! What a limit holds: for one key, or for those that are most exhausted.

mod list;
mod one;
mod row;

use std::io::Write;
use std::time::Duration;

use tollgate::{Key, Limit, Tokens, UnknownLimit};

use crate::connect::DatabaseArgs;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::limits_file::{LimitsArgs, LimitsFileError};
use crate::output::{OutputArgs, answered};
use crate::transaction::read_only;
use crate::verbs::key;

/// Show what a limit holds for a key; without KEY, its keys, most exhausted first.
///
/// With a limits file: the balance now, and when it grants again. Without one: what is on disk, which does not say what has come
/// back since.
///
/// The list reads all rows of the limit, for no index is kept on a balance: it would slow every decision. Count on two or
/// three seconds for each million. One key is looked up by the primary key.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The limit's name.
    #[arg(value_name = "NAME")]
    name: String,

    /// Whom it applies to, as the list shows it.
    #[arg(value_name = "KEY", value_parser = key, conflicts_with = "global")]
    key: Option<Key>,

    /// The one row for all callers together, instead of a key.
    #[arg(long)]
    global: bool,

    /// Say when a call of so many tokens would be granted.
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    cost: Tokens,

    /// How many keys to list.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,

    /// List what comes after so many keys.
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u32,

    /// How long the server may take.
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    timeout: Duration,

    #[command(flatten)]
    limits: LimitsArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

impl InspectArgs {
    /// The definition, if there is a limits file. A name that the file does not know may be a slip, or that of a limit of the
    /// past, whose rows are still there.
    fn definition(&self) -> Result<Definition, LimitsFileError> {
        Ok(match self.limits.load()?.map(|limits| limits.get(&self.name).cloned()) {
            None => Definition::NoFile,
            Some(Ok(limit)) => Definition::Known(limit),
            Some(Err(unknown)) => Definition::Unknown(unknown),
        })
    }
}

/// What a limits file says about a name.
enum Definition {
    Known(Limit),
    NoFile,
    Unknown(UnknownLimit),
}

impl Definition {
    fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Known(limit) => Some(limit),
            Self::NoFile | Self::Unknown(_) => None,
        }
    }

    /// Fails where the file does not know the name, and there are no rows of it either.
    fn unless_unknown(&self, has_rows: bool) -> Result<(), CommandError> {
        match self {
            Self::Unknown(unknown) if has_rows => {
                // Whoever does not read it sees what follows all the same.
                let _ = writeln!(anstream::stderr(), "{unknown}: this is what is on disk");
                Ok(())
            }
            Self::Unknown(unknown) => Err(LimitsFileError::Unknown(unknown.clone()).into()),
            Self::Known(_) | Self::NoFile => Ok(()),
        }
    }
}

pub(crate) async fn run(args: InspectArgs) -> Result<Exit, CommandError> {
    let definition = args.definition()?;
    let mut conn = args.database.connect().await?;
    let mut tx = read_only(&mut conn, args.timeout).await?;
    let key = if args.global { Some(Key::GLOBAL) } else { args.key.clone() };
    let printed = match key {
        Some(key) => one::inspect(&mut tx, &args, &definition, key).await,
        None => list::inspect(&mut tx, &args, &definition).await,
    };
    answered(printed, Exit::Done)
}
