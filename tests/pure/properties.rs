//! Properties of every limit and every story, against the exact model.

mod bounds;
mod clocks;
mod plans;
mod rows;
mod verdicts;
