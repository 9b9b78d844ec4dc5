//! What a simulation has to do with the product: the same answers, and a command that people run.

mod command;
mod same;
