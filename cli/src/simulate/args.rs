use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use tollgate::{Limit, Limits, Tokens};
use tollgate_simulation::{Asking, Rule, Traffic, Trial};

use crate::at_least;
use crate::error::CommandError;
use crate::limits_file::LimitsArgs;
use crate::output::{OutputArgs, printable};
use crate::trace::TraceArgs;

#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SimulateArgs {
    /// A limit to try, for each key: its name in the limits file, or a line of such a file. Repeat the option to try
    /// several limits. Each call asks all of them.
    #[arg(long, value_name = "NAME|LINE", required_unless_present_any = ["global", "preset"])]
    limit: Vec<String>,

    /// A limit to try that all callers share. It is written as for `--limit`, and may be repeated, too.
    #[arg(long, value_name = "NAME|LINE")]
    global: Vec<String>,

    #[command(flatten)]
    file: LimitsArgs,

    /// Try each limit by itself on the same calls, and print the results side by side. With `--lend-above` or
    /// `--in-turn`, also try all limits together.
    #[arg(long)]
    compare: bool,

    /// Guarantee each key its share by `--limit`, and lend idle tokens of others. If its share refuses a call, the call
    /// takes from the limits of `--global` alone. At least this many tokens must remain there afterwards.
    #[arg(long, value_name = "TOKENS", requires = "global", conflicts_with = "reserve")]
    lend_above: Option<Tokens>,

    /// Ask the limits one after another, and take from the first that grants. Those of `--limit` come before those of
    /// `--global`.
    #[arg(long, conflicts_with_all = ["reserve", "lend_above"])]
    in_turn: bool,

    /// The tokens in each wallet when its first caller comes. Nothing else fills it. Without this option, wallets are
    /// empty.
    #[arg(long, value_name = "TOKENS", default_value = "0", hide_default_value = true)]
    funds: Tokens,

    /// Calls to make up: a pattern and its fields. Repeat the option to add calls.
    ///
    /// `constant` and `poisson` need `rate` and `per`. `burst` needs `size` and `every`. Each client makes all these
    /// calls. Other fields have defaults: `for=1m` (how long the calls go on), `from=0s` (when they begin),
    /// `clients=1`, `cost=1` and `key=client`.
    #[arg(long, value_name = "PATTERN", required_unless_present_any = ["trace", "preset"], conflicts_with = "trace")]
    pub(super) traffic: Vec<Traffic>,

    #[command(flatten)]
    pub(super) trace: Option<TraceArgs>,

    /// Try a worked example. `--limit` or `--global` replaces its limits, and `--traffic` or `--trace` its calls.
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,

    /// Reserve tokens: a call waits for tokens that come back later, as far as the limit's `max_reserved` lets it.
    /// Otherwise it is refused.
    #[arg(long)]
    reserve: bool,

    /// How long each call works, once its tokens are ready. When its work ends, the call is settled, and releases its
    /// leases of concurrency limits. Without this option, nobody settles a call, and a lease ends by itself.
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    work: Option<Duration>,

    /// The tokens that each call has used when its work ends. The call is settled at this number. Without this option,
    /// it is settled at its cost.
    #[arg(long, value_name = "TOKENS", requires = "work")]
    used: Option<Tokens>,

    /// Let the client of every N-th call die. The work of such a call never ends, so nobody settles it. Without this
    /// option, no client dies.
    #[arg(long, value_name = "N", requires = "work", value_parser = value_parser!(u64).range(1..))]
    dies: Option<u64>,

    /// Give the tokens of a call back if nobody has settled it this long after its tokens are ready. Without this
    /// option, they stay charged.
    #[arg(long, value_name = "SPAN", value_parser = at_least(Duration::from_micros(1)))]
    lapses_after: Option<Duration>,

    /// The seed of random traffic. The same seed makes the same calls on every machine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Draw the calls, and the balances of the first caller, into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,

    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// A worked example with known figures.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Preset {
    /// A dashboard fires ten calls at once every two seconds: capacity 10 against capacity 5.
    Dashboard,
    /// One of ten tenants floods: a limit for each, a limit that all share, and both, with idle shares lent.
    FairShares,
    /// One of five tenants floods: a limit for each tenant against one that all share.
    NoisyNeighbour,
    /// Thirty jobs at once reserve tokens, of which one comes back each second: capacity 0 spaces the jobs, capacity 5
    /// starts five at once.
    Queue,
    /// A hundred calls just before a minute ends and a hundred just after: a fixed window against a token bucket.
    WindowEdge,
}

impl SimulateArgs {
    /// The same options, with those of the preset where none are given.
    pub(super) fn with_preset(mut self) -> Result<Self, CommandError> {
        let Some(preset) = self.preset else { return Ok(self) };
        let (limits, global, traffic) = preset.options();
        if self.limit.is_empty() && self.global.is_empty() {
            self.limit = limits.iter().copied().map(str::to_owned).collect();
            self.global = global.iter().copied().map(str::to_owned).collect();
            self.compare = true;
            if !self.in_turn {
                self.lend_above = self.lend_above.or((preset == Preset::FairShares).then_some(Tokens::new(200)));
                self.reserve |= preset == Preset::Queue;
            }
        }
        if self.traffic.is_empty() {
            let traffic = traffic.iter().map(|text| text.parse());
            self.traffic = traffic.collect::<Result<_, String>>().map_err(CommandError::bare)?;
        }
        Ok(self)
    }

    /// All limits together, or each in a trial of its own.
    pub(super) fn trials(&self) -> Result<Vec<Trial>, CommandError> {
        let mut rules = Vec::new();
        for (texts, is_global) in [(&self.limit, false), (&self.global, true)] {
            for text in texts {
                rules.extend(self.limits(text)?.into_iter().map(|limit| Rule { limit, is_global, follows: None }));
            }
        }
        let Self { reserve, work, used, lapses_after, funds, .. } = *self;
        let dies = self.dies.and_then(NonZeroU64::new);
        let trial =
            |rules, asking| Trial { rules, asking, reserve, work, used, dies, lapses_after, funds, service: None };
        let asking = match self.lend_above {
            Some(kept) => Asking::Lending(kept),
            None if self.in_turn => Asking::InTurn,
            None => Asking::All,
        };
        let alone = rules.iter().filter(|_| self.compare).map(|rule| trial(vec![rule.clone()], Asking::All));
        let is_together = !self.compare || !matches!(asking, Asking::All);
        let together = is_together.then(|| trial(rules.clone(), asking));
        Ok(alone.chain(together).collect())
    }

    /// The limit that a name stands for in the limits file, or those that lines of such a file define.
    fn limits(&self, text: &str) -> Result<Vec<Limit>, CommandError> {
        if !text.contains('=') {
            return Ok(vec![self.file.of_file(text)?]);
        }
        let limits = Limits::from_toml(text);
        let fault = |error| CommandError::bare(printable(&format!("{text}: {error}").replace('\n', "; ")));
        Ok(limits.map_err(fault)?.iter().cloned().collect())
    }
}

type Texts = &'static [&'static str];

impl Preset {
    /// The values of `--limit`, `--global` and `--traffic` that it stands for. Each limit has a trial of its own.
    const fn options(self) -> (Texts, Texts, Texts) {
        match self {
            Self::Dashboard => (
                &[
                    r#"capacity_10 = { kind = "token_bucket", rate = 5, per = "1s", capacity = 10 }"#,
                    r#"capacity_5 = { kind = "token_bucket", rate = 5, per = "1s" }"#,
                ],
                &[],
                &["burst size=10 every=2s for=10s key=dashboard"],
            ),
            Self::FairShares => (
                &[r#"own = { kind = "token_bucket", rate = 10, per = "1s", capacity = 20 }"#],
                &[r#"shared = { kind = "token_bucket", rate = 100, per = "1s", capacity = 300 }"#],
                &[
                    "poisson rate=4 per=1s clients=9 key=quiet",
                    "burst size=10 every=20s clients=9 key=quiet",
                    "poisson rate=500 per=1s key=noisy",
                ],
            ),
            Self::NoisyNeighbour => (
                &[r#"per_tenant = { kind = "token_bucket", rate = 20, per = "1s" }"#],
                &[r#"total = { kind = "token_bucket", rate = 60, per = "1s" }"#],
                &["poisson rate=5 per=1s clients=4 key=quiet", "constant rate=200 per=1s key=noisy"],
            ),
            Self::Queue => (
                &[
                    r#"capacity_0 = { kind = "token_bucket", rate = 1, per = "1s", capacity = 0, max_reserved = 100 }"#,
                    r#"capacity_5 = { kind = "token_bucket", rate = 1, per = "1s", capacity = 5, max_reserved = 100 }"#,
                ],
                &[],
                &["burst size=30 every=1h key=jobs"],
            ),
            Self::WindowEdge => (
                &[
                    r#"fixed_window = { kind = "fixed_window", rate = 100, per = "1m", start = "0s" }"#,
                    r#"token_bucket = { kind = "token_bucket", rate = 100, per = "1m" }"#,
                ],
                &[],
                &["burst size=100 every=1h from=59500ms", "burst size=100 every=1h from=60500ms"],
            ),
        }
    }
}

const EXAMPLES: &str = r#"Examples:
  tollgate simulate --preset dashboard --svg dashboard.svg
  tollgate simulate --limit send_message --limits tollgate.toml --traffic 'burst size=30 every=1m for=5m'
  tollgate simulate --limit 'api = { kind = "token_bucket", rate = 10, per = "1s", capacity = 50 }' \
      --traffic 'poisson rate=12 per=1s for=5m'
  tollgate simulate --limit 'tokens = { kind = "sliding_window", rate = 20000, per = "1m" }' \
      --traffic 'constant rate=1 per=1s cost=2000' --work 5s --used 400 --dies 5 --lapses-after 20s
  tollgate simulate --in-turn --limit 'plan = { kind = "fixed_window", rate = 20, per = "1m" }' \
      --limit 'credits = { kind = "wallet" }' --funds 30 --traffic 'poisson rate=1 per=1s for=2m'
  tollgate simulate --compare --limit send_message --limit sign_ups --trace calls.csv --svg calls.svg"#;
