//! The core for browsers: a page gives a [`Scene`] and gets what becomes of each call.
//!
//! Instants are microseconds and amounts micro-tokens, as `f64`: exact up to 2^53, which is 285 years and nine thousand
//! million tokens.

mod fault;
mod recording;
mod scene;
mod source;
mod window;
mod words;

use serde::Deserialize;
use wasm_bindgen::prelude::*;

use fault::Fault;
pub use recording::{Recording, TrialRecord};
pub use scene::Scene;
use scene::Tried;

/// Prepares the calls of a scene, and a trial of each of its limits.
///
/// # Errors
///
/// The faults of the scene, as one text.
#[wasm_bindgen]
pub fn simulate(scene: &str) -> Result<Recording, String> {
    read(scene).and_then(|scene: Scene| scene.record()).map_err(|faults| fault::text(&faults))
}

/// A limit, as a scene has it, as Rust: a constant.
///
/// # Errors
///
/// Its faults, as one text.
#[wasm_bindgen(js_name = rustOf)]
pub fn rust_of(limit: &str) -> Result<String, String> {
    let limit = read(limit).and_then(|limit: Tried| limit.limit("limit"));
    limit.map(|limit| source::constant(&limit)).map_err(|faults| fault::text(&faults))
}

fn read<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, Vec<Fault>> {
    serde_json::from_str(text).map_err(|error| vec![Fault::of("scene", error)])
}
