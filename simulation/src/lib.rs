//! Tries limits on traffic, made up or recorded. It decides through the plan that the limiter itself follows, without a
//! database and without a clock. `tollgate simulate` and the playground both use it.
//!
//! It names types of tollgate's feature `unstable`, so it depends on the exact version of tollgate.
//!
//! ```
//! use tollgate::plan::Answer;
//! use tollgate::{Limit, SECOND};
//! use tollgate_simulation::{Arrivals, Rule, Simulation, Traffic, Trial};
//!
//! let limit = Limit::token_bucket("api", 5, SECOND);
//! let trial = Trial { rules: vec![Rule { limit, is_global: false, follows: None }], ..Trial::default() };
//! let traffic: Vec<Traffic> = vec!["burst size=10 every=2s for=10s".parse()?];
//! let (mut simulation, mut granted) = (Simulation::new(trial), 0);
//! for call in Arrivals::new(&traffic, 1) {
//!     let answer = simulation.call(&call, |_, _, _| ())?;
//!     granted += u32::from(matches!(answer, Some(Answer::Granted { .. })));
//! }
//! assert_eq!(granted, 25, "two seconds refill ten tokens, of which five fit");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrival;
mod rows;
mod run;
mod service;
mod suggest;
mod trace;
mod traffic;
mod trial;

pub use arrival::Arrival;
pub use rows::{Look, RowMap};
pub use run::Simulation;
pub use service::Service;
pub use suggest::{Choice, Question, Share, Suggestion};
pub use trace::{TraceFault, recorded, recorded_in_any_order};
pub use traffic::{Arrivals, START, Traffic};
pub use trial::{Asking, Ended, EndedBy, Rule, Trial};
