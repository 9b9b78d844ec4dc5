//! What HTTP clients are told: header fields and problem documents, from decisions, without a server.
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
//! | name | the limit's name; what is not printable ASCII, and `%`, is percent-encoded | |
//! | `q` | the capacity, in whole tokens: what a rested client can spend at once | down |
//! | `w` | in how many seconds so much comes back; left out below one second, which the draft cannot say | up |
//! | `r` | whole tokens left; 0 in debt | down |
//! | `t` | seconds until there is one more; left out where the limit holds no more | up |
//! | `pk` | the key, if [asked for](Fields::partition_keys) | |
//!
//! So `q` per `w` is the limit's rate, and `r` is never above `q`, also where the capacity is not the rate: ten a minute with
//! a capacity of twenty reads `q=20;w=120`. All policies are listed, and of the limits the one that is nearest to exhaustion,
//! unless [all](Fields::all) are asked for.
//!
//! Every refusal has `Retry-After`, in seconds, rounded up, never 0. The instants are the database's and the spans are between
//! two readings of its clock, so a client that sleeps so long finds what it waited for, unless somebody else was quicker.
//! A `t` beyond `Retry-After` is left out: the client would not know which to follow. [`Format`] has the older fields.
//!
//! Scripts in browsers see these fields of another origin only where CORS exposes them
//! (`Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After`).
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
mod facts;
mod fields;
mod forwarded;
#[cfg(feature = "axum")]
mod into_response;
mod policy;
mod problem;
mod rejection;
mod seconds;

pub use client::{CidrError, TrustedProxies};
pub use facts::Facts;
pub use fields::{Fields, Format};
pub use problem::Problem;
pub use rejection::{NoKey, Rejection};
