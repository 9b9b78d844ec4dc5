//! How far one server goes: measured points, a model of them, and what it says of more. Behind `tollgate bench scaling`, and
//! `docs/scaling.md`.
//!
//! ```no_run
//! use tollgate::bench::scaling::{Scaling, ScalingReport};
//! use tollgate::bench::server;
//!
//! # async fn measure() -> Result<(), tollgate::bench::BenchError> {
//! let server = server().await?;
//! let measurements = Scaling::quick().run(&server, |subject| eprintln!("{subject}")).await?;
//! println!("{}", ScalingReport::new(measurements));
//! # Ok(()) }
//! ```

mod advice;
mod arithmetic;
mod measure;
mod measurements;
mod model;
mod report;
mod subject;
mod summary;

pub use measure::Scaling;
pub use measurements::{Figures, Measurements, Point, Quantity};
pub use model::{Conditions, Model};
pub use report::{Judged, ScalingReport};
pub use subject::{Keys, Subject};
