//! Limits tried on traffic before anybody depends on them: what is granted, what is refused, and who waits for how long.
//!
//! A [`Simulation`] asks one or several limits together, call by call, through the [`Plan`](crate::plan::Plan) that the
//! limiter itself follows, so its answers are the product's, to the microsecond. Nothing here reads a clock, draws lots or
//! talks to a database: the calls say when they are made, and random traffic comes from a seed.
//!
//! [`Traffic`] makes calls up: evenly, at random, in bursts, or by the hour of the day. A [`Trace`] reads recorded ones, as
//! a stream. [`Preset`]s are worked examples with known figures. An [`Outcome`] counts, keeps the balances over
//! time for a plot, and says the [`sentence`](Outcome::sentence) that people ask for.
//!
//! # Example
//!
//! ```
//! use tollgate::simulate::{Rule, Simulation, Traffic, arrivals};
//! use tollgate::{Limit, SECOND};
//!
//! // Sixty a second against fifty at once and ten a second: when the fifty are gone, one in six.
//! let limit = Limit::token_bucket("api", 10, SECOND).capacity(50);
//! let flood = [Traffic::constant(60, SECOND).lasting(10 * SECOND)];
//! let outcome = Simulation::new([Rule::each(limit)]).run(arrivals(&flood, 1)?)?;
//! assert_eq!((outcome.calls, outcome.granted), (600, 149));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fields;
mod gauge;
mod micros;
mod outcome;
mod preset;
mod rule;
mod run;
mod scene;
mod sentence;
mod series;
mod simulation;
mod trace;
mod traffic;
mod words;

pub use outcome::{Caller, Outcome, RuleOutcome, Waits};
pub use preset::{Preset, UnknownPreset};
pub use rule::{Rule, RuleError};
pub use run::Run;
pub use scene::{Finding, Scene, SimulateError, on_traffic, side_by_side};
pub use sentence::short;
pub use series::{Bin, Level, Series};
pub use simulation::{Retry, Simulation};
pub use trace::{Trace, TraceError, TraceFault};
pub use traffic::{Arrival, Arrivals, START, Traffic, TrafficError, arrivals, span};
pub use words::WordsError;
