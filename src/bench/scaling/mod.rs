//! How far one server goes: measured points, a model of them, and what it says of more.

mod advice;
mod arithmetic;
mod measure;
mod model;
mod measurements;
mod report;
mod subject;

pub use measure::Scaling;
pub use model::{Conditions, GateModel, JoinedModel, Model};
pub use measurements::{Figures, Measurements, Point, Quantity};
pub use report::{Judged, ScalingReport};
pub use subject::{Keys, Subject};
