//! What HTTP clients are told: header fields and problem documents, made from decisions, without a server.
//!
//! The fields are those of **draft-ietf-httpapi-ratelimit-headers-11** (23 May 2026), in structured fields (RFC 9651):
//!
//! ```text
//! RateLimit-Policy: "per_ip";q=100;w=60, "per_user";q=1000;w=86400
//! RateLimit: "per_ip";r=50;t=3
//! ```
//!
//! | | is | rounded |
//! | --- | --- | --- |
//! | name | the limit's name; characters outside of printable ASCII, and `%`, are percent-encoded | |
//! | `q` | the capacity, in whole tokens: what a full limit grants at once | down |
//! | `w` | the seconds in which that many tokens come back; absent below one, which the draft cannot express | up |
//! | `r` | whole tokens left; 0 in debt | down |
//! | `t` | seconds until there is one more token; absent if the limit cannot hold one more | up |
//! | `pk` | the key, after [`Fields::partition_keys`] | |
//!
//! `q` per `w` is the limit's rate, and `r` is never above `q`, even if the capacity differs from the rate: ten a
//! minute with a capacity of twenty reads `q=20;w=120`. All policies are listed, but only the limit that is nearest to
//! exhaustion, or all limits after [`Fields::all`].
//!
//! Every refusal has `Retry-After` in seconds, rounded up, at least 1. Instants and spans come from the database's
//! clock alone, so a client that sleeps so long finds its tokens, unless another call takes them first. A `t` beyond
//! `Retry-After` is left out, so that a client is never told two different waits. [`Fields::jitter`] spreads clients
//! that would come back together. [`Format`] has the older fields.
//!
//! Browsers show these fields to scripts of another origin only if CORS exposes them
//! (`Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After, Date`, and the older ones by their
//! names).
//!
//! # Example
//!
//! ```
//! use tollgate::http::Fields;
//! use tollgate::{Decision, Grant};
//!
//! fn tell(decision: &Decision<Grant>, response: &mut http::Response<String>) {
//!     Fields::default().write(decision, response.headers_mut());
//! }
//! # let _ = tell;
//! ```

mod client;
pub(crate) mod embedded;
mod facts;
mod fields;
pub(crate) mod forwarded;
mod not_served;
pub(crate) mod policy;
mod problem;

pub use client::{CidrError, TrustedProxies};
pub use facts::Facts;
pub use fields::{Fields, Format};
pub use not_served::{NoKey, NotServed, RepeatedField};
pub use problem::Problem;
