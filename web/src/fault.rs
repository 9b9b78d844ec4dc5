use std::error::Error;
use std::fmt::Display;

/// A fault of a scene, and its place.
#[derive(Debug)]
pub(crate) struct Fault {
    /// A part of the scene: `limits.0.rate`, `traffic.1`, `csv`.
    pub(crate) place: String,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn of(place: impl Into<String>, message: impl Display) -> Self {
        Self { place: place.into(), message: message.to_string() }
    }

    /// An error of the limiter, and its causes.
    pub(crate) fn of_scene(error: &tollgate::Error) -> Self {
        let (mut told, mut cause) = (error.to_string(), error.source());
        while let Some(error) = cause {
            told = format!("{told}: {error}");
            cause = error.source();
        }
        Self::of("scene", told)
    }
}

/// Faults as one text: places and messages in turn, each before a NUL. Messages escape a NUL in the text that they
/// quote.
pub(crate) fn text(faults: &[Fault]) -> String {
    faults.iter().flat_map(|fault| [&fault.place, "\0", &fault.message, "\0"]).collect()
}
