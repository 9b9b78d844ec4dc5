//! HTTP for [`tollgate`]: a layer that asks a gate before it serves a request, header fields and problem documents for
//! decisions, and the addresses of clients behind proxies.
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # mod service {
//! use axum::Router;
//! use axum::extract::State;
//! use axum::http::StatusCode;
//! use axum::routing::post;
//! use tollgate::{Gate, Limit, MINUTE};
//! use tollgate_http::NotServed;
//! use tollgate_http::tower::TollgateLayer;
//!
//! /// A request of any kind, by its client's address.
//! const PER_ADDRESS: Limit = Limit::token_bucket("per_address", 300, MINUTE).ephemeral();
//! const MESSAGES: Limit = Limit::token_bucket("messages", 10, MINUTE);
//!
//! pub fn router(gate: Gate) -> Router {
//!     let per_address = TollgateLayer::new(gate.clone()).limit(PER_ADDRESS);
//!     Router::new().route("/messages", post(send)).with_state(gate).layer(per_address)
//! }
//!
//! /// `?` answers a refusal with 429, its header fields and a problem document.
//! async fn send(State(gate): State<Gate>, body: String) -> Result<StatusCode, NotServed> {
//!     gate.consume(MESSAGES.global()).await?.granted()?;
//!     Ok(StatusCode::CREATED)
//! }
//! # }
//! ```
//!
//! - The [`tower`] module has the layer, its rules and their keys, for axum, hyper, tonic and everything else that
//!   speaks tower.
//! - [`NotServed`] is the error of a handler: a refusal, or no decision. It has a status and a [`Problem`].
//! - [`Fields`] writes header fields from [`Facts`], which are made from decisions.
//! - [`TrustedProxies`] finds the client's address.
//! - [`Trouble`] is an answer of another service that asks its callers to slow down. The [`tower`] module has a layer
//!   for calls to such a service.
//!
//! A layer with keys from addresses needs the peer's address: serve the router with
//! `into_make_service_with_connect_info::<SocketAddr>()`. tollgate's guide to HTTP says more, and its example `axum` is
//! a complete service.
//!
//! # Header fields
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
//! | `q` | the capacity that counts, by overrides, too, in whole tokens: what a full limit grants at once | down |
//! | `w` | the seconds in which that many tokens come back; absent below one, which the draft cannot express, and for kinds without a period of their own | up |
//! | `r` | whole tokens left, of a wallet with its overdraft; 0 below that, for the draft has no lower number | down |
//! | `t` | seconds until there is one more token; absent if the limit cannot hold one more | up |
//! | `pk` | the key, after [`Fields::partition_keys`] | |
//!
//! `q` per `w` is the limit's rate, and `r` is never above `q`, even if the capacity differs from the rate: ten a
//! minute with a capacity of twenty reads `q=20;w=120`. `RateLimit-Policy` lists all policies. `RateLimit` lists only
//! the limit that is nearest to exhaustion, or all limits after [`Fields::all`].
//!
//! A refusal that ends by waiting has `Retry-After` in seconds, rounded up, at least 1. Instants and spans come from
//! the database's clock alone, so a client that sleeps so long finds its tokens, unless another call takes them first.
//! A `t` beyond `Retry-After` is left out, so that a client never gets two different waits. [`Fields::jitter`] spreads
//! clients that would come back together. [`Format`] has the older fields.
//!
//! Browsers show these fields to scripts of another origin only if CORS exposes them
//! (`Access-Control-Expose-Headers: RateLimit, RateLimit-Policy, Retry-After, Date, Age`, and the older ones by their
//! names).
//!
//! # Features
//!
//! - *none*: header fields, problem documents, clients behind proxies, and [`Trouble`] with its `Retry-After`. The
//!   dependencies include no server and no driver.
//! - **`tower`** (default): the [`tower`] module.
//! - **`axum`**: the same, `IntoResponse` for [`NotServed`], and the peer's address from axum.

// On docs.rs each item names the feature that it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod embedded;
mod facts;
mod fields;
mod forwarded;
mod not_served;
mod policy;
mod problem;
mod retry_after;
mod span;
mod told;
#[cfg(feature = "tower")]
pub mod tower;
mod trouble;

pub use client::{CidrError, TrustedProxies};
pub use facts::Facts;
pub use fields::{Fields, Format};
pub use not_served::{NoKey, NotServed, RepeatedField};
pub use problem::Problem;
pub use trouble::Trouble;

/// The examples of the guides that use this package are compiled here.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../docs/following.md")]
#[doc = include_str!("../../docs/http.md")]
#[doc = include_str!("../../docs/plans.md")]
struct Guides;
