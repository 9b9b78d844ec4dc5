//! Facts that hold while the definition of a limit changes: used tokens stay used, and nobody sees a sweep.

mod definitions;
mod left;
mod paused;
mod properties;
mod scenes;
mod slowed;
mod story;
