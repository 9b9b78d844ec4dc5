//! Facts about the layer, over real sockets where a client can tell the difference.

mod bad_input;
mod charged;
mod clients;
mod failure;
mod handlers;
mod load;
mod responses;
mod rules;
pub(crate) mod served;
mod services;
