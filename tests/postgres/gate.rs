//! The gate: the same answers as the limiter's, in transactions of its own, for many callers at once. The rooms are
//! those of `src/gate`.

mod clock;
mod connection;
pub(crate) mod kind;
pub(crate) mod nodes;
pub(crate) mod observed;
mod pooler;
mod promise;
mod regressions;
pub(crate) mod stage;

mod batch {
    mod blocked;
    mod contention;
    mod cost;
    pub(crate) mod crash;
    mod errors;
}

mod guards {
    mod streams;
}

mod merge {
    mod hygiene;
    mod runtime;
}

mod memory {
    mod accidents;
    mod forgotten;
    mod prefetch;
    mod refusals;
    mod slices;
    mod stage;
}

mod outage {
    mod failover;
    pub(crate) mod fallback;
    mod refusal_words;
    mod refused;
    mod silence;
}

mod verbs {
    mod agreement;
    mod close;
    mod kinds;
}

mod wait {
    mod alternatives;
    mod pace;
    mod raised;
    mod turn;
}
