//! The core for browsers: a page gives a scene and gets the outcome of each call.
//!
//! Instants are microseconds and amounts micro-tokens, as `f64`: exact up to 2^53, which is 285 years and nine thousand
//! million tokens.

mod fault;
mod recording;
mod scene;
mod source;
mod suggested;
mod window;
mod words;

use wasm_bindgen::prelude::*;

pub use recording::{Recording, TrialRecord};
use scene::Scene;
pub use suggested::Suggested;

/// Prepares the calls of a scene, and a trial of each of its limits. A scene is a text of names and values in turn,
/// each before a NUL.
///
/// # Errors
///
/// The faults of the scene, as one text.
#[wasm_bindgen]
pub fn simulate(scene: &str) -> Result<Recording, String> {
    Scene::read(scene).record().map_err(|faults| fault::text(&faults))
}

/// The first limit of a scene as Rust: a constant.
///
/// # Errors
///
/// Its faults, as one text.
#[wasm_bindgen(js_name = rustOf)]
pub fn rust_of(scene: &str) -> Result<String, String> {
    let limit = Scene::read(scene).limit();
    limit.map(|limit| source::constant(&limit)).map_err(|faults| fault::text(&faults))
}

/// Numbers for the first limit of a scene that would have refused at most a share of its calls: `0.1%`.
///
/// # Errors
///
/// The faults of the scene and of the share, as one text.
#[wasm_bindgen]
pub fn suggest(scene: &str, refuse_at_most: &str) -> Result<Suggested, String> {
    Suggested::of(&Scene::read(scene), refuse_at_most).map_err(|faults| fault::text(&faults))
}
