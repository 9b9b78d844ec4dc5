//! A layer that asks a [`Gate`](tollgate::Gate) before it serves a request, for axum, hyper, tonic and other tower
//! services. An [`OutgoingLayer`] does it for calls to other services.
//!
//! ```
//! use http::Method;
//! use tollgate::{Gate, HOUR, Limit, MINUTE};
//! use tollgate_http::TrustedProxies;
//! use tollgate_http::tower::{ClientAddress, Credential, ExtractKey, Rule, TollgateLayer};
//!
//! const PER_TOKEN: Limit = Limit::fixed_window("per_token", 10_000, HOUR);
//! const FAILED_LOGINS: Limit = Limit::token_bucket("failed_logins", 5, MINUTE).ephemeral();
//!
//! fn layer(gate: Gate, is_issued: fn(&[u8]) -> bool) -> TollgateLayer {
//!     let address = ClientAddress::behind(TrustedProxies::hops(1));
//!     let per_token = Rule::new(PER_TOKEN)
//!         .key(Credential::bearer().known(is_issued).or(address.clone()))
//!         .cost_by(|request| if request.uri.path() == "/search" { 5 } else { 1 });
//!     let failed_logins = Rule::new(FAILED_LOGINS)
//!         .key(address)
//!         .when(|request| request.method == Method::POST && request.uri.path() == "/login")
//!         .refund_if(|response| response.status.is_success());
//!     TollgateLayer::new(gate).limit(per_token).limit(failed_logins).skip(|request| request.uri.path() == "/health")
//! }
//! # let _ = layer;
//! ```
//!
//! # The path of a request
//!
//! The layer asks all limits that apply to a request **together**: if one refuses, none is charged. The answer is then
//! 429 with `Retry-After`, the [header fields](crate#header-fields) and a problem document. Otherwise the request is
//! served, and its response gets the fields. If the database does not answer, the gate's
//! [`OnFailure`](tollgate::OnFailure) decides: closed answers 503 with `Retry-After`, open serves the request, and a
//! local share serves it while the share lasts.
//!
//! # Charges that depend on the response
//!
//! Every limit is charged before the request is served, so the limit holds at every moment and in all processes.
//! [`Rule::refund_if`] gives the charge back if the predicate holds for the response, and [`Rule::charge_if`] if it
//! does not: use them for failed log-ins. [`Rule::settle_by`] reads the cost from the response: charge an estimate, and
//! settle at the tokens that a model used. In exchange, parallel requests that deserve no charge may be refused. A debt
//! arises only if a response costs more than its request was charged. A look before and a debit after would save the
//! write of a request that deserves no charge. But then all guesses that run at the same time would pass. And a wide
//! burst would leave a debt of hours, into which a stranger could push the owner of an account.
//!
//! **A missing response counts**: if the client goes away or the service fails before there is a response, the charge
//! stays. Once there is one, no client can stop its settlement. The response waits for that, for at most a second. If
//! the gate's queue is full or its connection is lost, the layer tries ten times within a minute. If all tries fail, or
//! one has an unknown outcome, a `tracing` event at level `warn` says so, and the charge may stay. A body that is
//! streamed tells its cost too late for a layer: see [`Gate::stream`](tollgate::Gate::stream).
//!
//! **Only a charge is settled.** A gate that [takes tokens ahead](tollgate::GateBuilder::prefetch) has charged its
//! grants from memory, so the layer settles them like any other grant. During an outage the gate's
//! [`OnFailure`](tollgate::OnFailure) may grant a request, and charges nothing. A gate for log-ins should stay closed.
//!
//! Each request costs a write, and each settled request costs another.
//!
//! # Requests at once
//!
//! A [concurrency limit](tollgate::Limit::concurrency) holds its tokens until the response is sent to its end, or
//! dropped. The gate renews their lease meanwhile, but not for a client that does not read: once the server has asked
//! the body for nothing for three lengths of the lease, the tokens are released. If the lease could not be renewed, or
//! was released, the response still goes on. An upgrade (101, `CONNECT`) ends its response, and the connection goes on
//! without a lease: acquire one in its handler.
//!
//! # Whose bucket
//!
//! [`ExtractKey`] chooses the bucket; [`MissingKey`] decides what happens without a key.
//!
//! - Two clients never share a bucket by accident. The first component of a key names its kind: `ip|192.0.2.1`,
//!   `bearer|…`. A value that is too long for a key, or is not text, becomes a digest of all of it.
//! - No client gets a fresh bucket by sending something else. A secret must be [known](Credential::known), and an
//!   address must come from the peer or from your own proxy. Only a path is the client's choice, but it names a thing,
//!   not a client.

mod address;
mod admission;
mod body;
mod credential;
mod key;
mod layer;
mod outgoing;
mod respond;
mod rule;
mod service;
mod signs;

pub use address::{ClientAddress, PeerAddr};
pub use body::Body;
pub use credential::{Credential, CredentialOf};
pub use key::{ExtractKey, MissingKey, Or, PathSegment};
pub use layer::TollgateLayer;
pub use outgoing::{Outgoing, OutgoingError, OutgoingLayer};
pub use respond::{Grpc, ProblemJson, Respond};
pub use rule::Rule;
pub use service::TollgateService;
