//! `tollgate suggest`: the numbers of a limit that would have been right for recorded calls.
//!
//! `tollgate-simulation` searches for them, by trying limits as `tollgate simulate` does. [`picture`] draws what it
//! found.

mod picture;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, ValueEnum};
use tollgate::{LimitKind, Span};
use tollgate_simulation::{Question, Share};

use crate::error::CommandError;
use crate::output::OutputArgs;
use crate::trace::TraceArgs;
use report::SuggestReport;

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, group = ArgGroup::new("recorded").arg("trace").required(true))]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// The largest share of all calls that the limit may refuse. It is also the largest share of all keys that may see
    /// a refusal.
    #[arg(long, value_name = "SHARE", default_value = "0.1%")]
    refuse_at_most: Share,

    /// The kind of limit to find.
    #[arg(long, value_name = "KIND", default_value = "token_bucket")]
    kind: Kind,

    /// The period of the limit. Rates are whole tokens in each period, so a longer period has finer rates.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = period)]
    per: Duration,

    /// All callers share the limit. Then the share of calls alone counts, and not that of keys.
    #[arg(long)]
    global: bool,

    /// The name of the limit in the line for the limits file.
    #[arg(long, value_name = "NAME", default_value = "suggested")]
    name: String,

    /// Draw the choices into this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// The rate and the capacity with the smallest sum, to within 1 %: they grant a key the least in any period. The
    /// command also prints the smallest capacity for some other rates.
    TokenBucket,
    /// The smallest number of tokens in each window. Each key's windows start at an instant of its own.
    FixedWindow,
    /// The smallest number of tokens in any period.
    SlidingWindow,
}

pub(crate) fn run(args: SuggestArgs) -> Result<(), CommandError> {
    let SuggestArgs { trace, refuse_at_most, kind, per, global: is_global, name, svg, output } = args;
    let read = trace.read()?;
    if read.calls.is_empty() {
        return Err(CommandError::new("nobody calls", "the trace is empty"));
    }
    let question = Question { name, kind: kind.into(), per, refuse_at_most, is_global };
    let suggestion = question.answer(read.calls).map_err(CommandError::bare)?;
    if let Some(file) = &svg {
        let drawn = picture::draw(&question, &suggestion, file);
        drawn.map_err(|error| CommandError::bare(format!("could not draw {}: {error}", file.display())))?;
    }
    let report = SuggestReport::of(trace.name(), read.format, read.skipped, &question, &suggestion)?;
    output.print(&report, || report.text())
}

impl From<Kind> for LimitKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::TokenBucket => Self::TokenBucket,
            Kind::FixedWindow => Self::FixedWindow,
            Kind::SlidingWindow => Self::SlidingWindow,
        }
    }
}

fn period(text: &str) -> Result<Duration, String> {
    text.parse().map(|Span(span)| span).map_err(|error: tollgate::SpanError| error.to_string())
}

const EXAMPLES: &str = r"Examples:
  tollgate suggest --trace calls.csv --name send_message --svg choices.svg
  tollgate suggest --trace /var/log/nginx/access.log --per 1h --refuse-at-most 0.5%
  zcat access.log.*.gz | tollgate suggest --trace - --kind sliding_window --skip-faulty
  tollgate suggest --trace caddy.log --key /user_id --json";
