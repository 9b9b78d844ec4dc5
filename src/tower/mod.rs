//! A layer that asks a [`Gate`](crate::Gate) before it serves: for axum, hyper, tonic and whatever else speaks tower.
//!
//! ```
//! use tollgate::http::TrustedProxies;
//! use tollgate::tower::{ClientAddress, Credential, ExtractKey, Rule, TollgateLayer};
//! use tollgate::{Gate, HOUR, Limit, MINUTE};
//!
//! const PER_ADDRESS: Limit = Limit::token_bucket("per_address", 300, MINUTE).ephemeral();
//! const PER_TOKEN: Limit = Limit::fixed_window("per_token", 10_000, HOUR);
//!
//! fn layer(gate: Gate) -> TollgateLayer {
//!     let address = ClientAddress::behind(TrustedProxies::hops(1));
//!     TollgateLayer::new(gate)
//!         .limit(Rule::new(PER_ADDRESS).key(address.clone()))
//!         .limit(
//!             Rule::new(PER_TOKEN)
//!                 .key(Credential::bearer().known(|token| token.starts_with(b"live_")).or(address))
//!                 .cost_by(|request| if request.uri.path() == "/search" { 5 } else { 1 }),
//!         )
//!         .skip(|request| request.uri.path() == "/health")
//! }
//! # let _ = layer;
//! ```
//!
//! # What happens to a request
//!
//! 1. What is [skipped](TollgateLayer::skip) is served. Of the rules those apply whose [condition](Rule::when) holds.
//! 2. All limits are asked **together**: one that refuses, and nothing is taken from any. The answer is then 429 with
//!    `Retry-After`, the fields of [`http`](crate::http) and a problem document; see [`Refuse`] for others.
//! 3. The request is served, and its response gets the fields.
//!
//! Where the database cannot be asked, the gate answers as its [`OnFailure`](crate::OnFailure) says: closed is 503 with
//! `Retry-After`, open serves, and so does a local share while it lasts.
//!
//! # Depending on the response
//!
//! [`Rule::charge_if`] looks first, and charges only where the response says so: failed log-ins. Requests that run at the
//! same time all see the same balance, so as many as are under way may pass the last token; each is charged all the same, into
//! debt if need be, so over time no more pass than the limit says. [`Rule::refund_if`] charges first, and gives back where the
//! response says so: strict at every moment, and in exchange a crowd of requests that deserve no charge can be refused.
//!
//! **A response that never came counts**: if the client goes away or the service fails before there is one, it is charged,
//! or not given back. The gate is told in a task of its own, which no client can end; until it has answered, the response
//! waits, so that nobody can guess again before the last guess counts. Where it fails to count, the response is replaced by 503,
//! unless the gate is to be open.
//!
//! # Whose bucket
//!
//! [`ExtractKey`] says: the peer's address by default, or a [`ClientAddress`] behind proxies, a [`Credential`], a
//! [`PathSegment`], an [`Extension`], a closure, a tuple of these, or [one and else another](ExtractKey::or). Two different clients
//! never share a bucket by accident: the kinds are told apart by a first part, `ip|192.0.2.1` and `bearer|…`; what is too
//! long for a key, or no text, becomes a digest of all of it. And none gets a fresh bucket by sending something else: what it
//! could make up itself must be [known](Credential::known), or be what a proxy of yours wrote. Only a path is the client's to
//! choose, as is what it asks for.
//!
//! Where there is no key at all, see [`MissingKey`].

mod address;
mod admission;
mod credential;
mod extension;
mod key;
mod layer;
mod path;
mod refuse;
mod rule;
mod service;
mod settlement;

pub use address::{ClientAddress, PeerAddr};
pub use credential::{Credential, CredentialOf};
pub use extension::Extension;
pub use key::{ExtractKey, Or};
pub use layer::{MissingKey, TollgateLayer};
pub use path::PathSegment;
pub use refuse::{Grpc, ProblemJson, Refuse};
pub use rule::Rule;
pub use service::Tollgate;
