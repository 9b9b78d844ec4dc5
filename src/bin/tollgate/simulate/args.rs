use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tollgate::Key;
use tollgate::simulate::{Preset, Retry, Traffic};

use super::tried::Tried;
use crate::limits_file::LimitsArgs;

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct SimulateArgs {
    /// A limit to try: a name from the limits file, or a kind and its fields; repeatable. Several are asked together, all or none.
    ///
    /// Kinds are `token_bucket`, `fixed_window` and `stepped_bucket`, fields those of a limits file: `rate` and `per`, and
    /// if you like `capacity`, `start`, `max_reserved` and `name`. The word `global` makes it one for all callers together.
    #[arg(long = "limit", value_name = "NAME|DEFINITION")]
    pub(super) tried: Vec<Tried>,

    #[command(flatten)]
    pub(super) file: LimitsArgs,

    /// Try each limit by itself on the same calls, side by side.
    #[arg(long)]
    pub(super) compare: bool,

    /// Calls to make up, as a kind and its fields; repeatable.
    ///
    /// Kinds are `constant`, `poisson` and `diurnal`, with `rate` and `per`, and `burst`, with `size` and `every`. Further
    /// fields: `for` how long, `from` when, `clients`, `cost` and `key`.
    #[arg(long, value_name = "DEFINITION", conflicts_with = "trace")]
    pub(super) traffic: Vec<Traffic>,

    /// Recorded calls: a file of CSV or NDJSON with time, key and cost, or `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,

    /// What the trace is written in; by the name of the file unless given, and CSV for standard input.
    #[arg(long, value_name = "FORMAT", requires = "trace")]
    pub(super) format: Option<Format>,

    /// A worked example: its traffic and its limits, unless others are given.
    #[arg(long, value_name = "NAME")]
    pub(super) preset: Option<Preset>,

    /// Say which worked examples there are.
    #[arg(long, exclusive = true)]
    pub(super) list_presets: bool,

    /// Reserve: a call that can be granted later is, and waits.
    #[arg(long)]
    pub(super) reserve: bool,

    /// Clients that are refused come back: `when-told`, or after a span such as `500ms`, whatever they were told.
    #[arg(long, value_name = "WHEN", value_parser = retry)]
    pub(super) retry: Option<Retry>,

    /// How long after its first try a client comes back. 1m unless given.
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration, requires = "retry")]
    pub(super) patience: Option<Duration>,

    /// The key whose balance is plotted. That of the first call unless given.
    #[arg(long, value_name = "KEY", value_parser = |text: &str| Key::new(text))]
    pub(super) watch: Option<Key>,

    /// What random traffic is drawn by: the same seed makes the same calls.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Draw a picture as well, into this file.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,

    /// Print no plots: what happened in words and figures only.
    #[arg(long)]
    pub(super) no_plot: bool,

    /// Print one JSON document instead, with all that is plotted.
    #[arg(long)]
    pub(super) json: bool,
}

/// How recorded calls are written down.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Format {
    Csv,
    Ndjson,
}

fn retry(text: &str) -> Result<Retry, humantime::DurationError> {
    if text == "when-told" { Ok(Retry::WhenTold) } else { humantime::parse_duration(text).map(Retry::Every) }
}

const EXAMPLES: &str = "Examples:
  tollgate simulate --preset dashboard
  tollgate simulate --limit send_message --limits tollgate.toml --traffic 'burst size=30 every=1m for=5m'
  tollgate simulate --limit 'token_bucket rate=10 per=1s capacity=50' \\
      --traffic 'poisson rate=12 per=1s for=5m'
  tollgate simulate --compare --limit 'token_bucket rate=10 per=1m capacity=10' \\
      --limit 'token_bucket rate=10 per=1m capacity=20' --trace calls.csv --svg calls.svg";
