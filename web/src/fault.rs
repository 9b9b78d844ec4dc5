use std::fmt::Display;

use serde::Serialize;

/// What is wrong with a scene, and where.
#[derive(Debug, Serialize)]
pub(crate) struct Fault {
    /// A part of the scene: `limits.0.rate`, `traffic.1`, `csv`.
    pub(crate) place: String,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn of(place: impl Into<String>, message: impl Display) -> Self {
        Self { place: place.into(), message: message.to_string() }
    }
}

pub(crate) fn json(faults: &[Fault]) -> String {
    serde_json::to_string(faults).expect("faults are texts and numbers")
}
