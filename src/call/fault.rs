use std::fmt;

use serde::{Serializer, ser};

use crate::tokens::TokensError;

/// The rule that a call breaks. Such a call fails before any SQL, and fails again at each retry.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// One call asks a limit under two definitions.
    #[error("the limit is asked under two definitions in one call (use one)")]
    ConflictingDefinitions,
    /// No release writes such a charge, or a later release wrote it and this one does not understand it.
    #[error("a charge cannot be read (settle it by the release that wrote it, or credit by hand)")]
    CorruptReceipt,
    /// The cost of a request, or another amount in it, is no amount of tokens.
    #[error("the cost is invalid: {0}")]
    Cost(TokensError),
    /// There are more or fewer costs than requests of the receipt.
    #[error("{costs} costs cannot settle a receipt of {requests} requests (give one for each, in the order asked)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    CostsMissing {
        /// The number of costs.
        costs: usize,
        /// The number of requests.
        requests: usize,
    },
    /// A concurrency limit is credited or debited. Such a limit counts only its holders.
    #[error("a concurrency limit is acquired, released and reset (release what was acquired)")]
    Counted,
    /// Two requests are charged together, and only one of them is [flat](crate::Request::flat). They are for the same
    /// limit and key, or of one [`split`](crate::split).
    #[error("two requests that are charged together differ in being flat (say `flat` of both, or of none)")]
    FlatDiffers,
    /// The id of [`Call::once`](crate::Call::once) is empty.
    #[error("the id of `once` is empty")]
    IdEmpty,
    /// The id has a NUL character, which PostgreSQL cannot store.
    #[error("the id of `once` contains a NUL character")]
    IdNul,
    /// The id is longer than 255 bytes.
    #[error("the id of `once` is longer than 255 bytes (hash it)")]
    IdTooLong,
    /// The call has a span to lapse or to be tracked, and asks nothing but concurrency limits, which have their leases.
    #[error("what a concurrency limit grants lapses at the end of its lease (drop the span, or change the lease)")]
    Leased,
    /// The least part of [`Request::up_to`](crate::Request::up_to) is zero, or more than the cost.
    #[error("`up_to` asks for nothing, or for more than the cost (say from one token to the cost)")]
    Least,
    /// The requests have different costs, and one actual cost cannot settle them. Nothing is settled. A
    /// [`Stream`](crate::Stream) settles at one cost, too.
    #[error(
        "one cost cannot settle requests of different costs (mark each that counts no tokens as `flat()` where it is \
         asked, or give every request its cost by `settle_each`)"
    )]
    MixedCosts,
    /// The call has no requests, or one of its alternatives or a [`split`](crate::split) has none. An empty list of
    /// limits grants nothing, so skip the call where nothing is limited.
    #[error("no limit was asked (skip the call where nothing is limited)")]
    NothingAsked,
    /// An alternative of [`first_of`](crate::first_of) has options of a whole call.
    #[error("an alternative has an id or a span of its own (say it of the call: `first_of(…).once(id)`)")]
    OptionInside,
    /// Two requests of one call have [`up_to`](crate::Request::up_to) with different costs or different least parts.
    #[error("two requests of one call take parts of different costs (give them one cost and one `up_to`)")]
    PartsDiffer,
    /// A request takes tokens of a [`billing`](crate::Limit::billing) limit, or asks for them, and names no
    /// [`period`](crate::Request::period).
    #[error("a billing limit is asked by a period (name it: `request.period(start, end)`)")]
    PeriodMissing,
    /// A [`period`](crate::Request::period) is named of a limit that is no [`billing`](crate::Limit::billing) limit.
    #[error("only a billing limit is asked by a period (drop it, or define the limit as `billing`)")]
    PeriodOfKind,
    /// A [`period`](crate::Request::period) ends before it starts, or is shorter than a second, or longer than
    /// [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the period that is named is shorter than a second, or longer than 1000 years")]
    PeriodOutOfRange,
    /// A [`meter`](crate::Limit::meter) is reset, which would erase what a customer is billed for.
    #[error("a meter is not reset, because that would erase a bill (correct it by a credit)")]
    ResetOfMeter,
    /// The span has a fraction of a microsecond.
    #[error("the span is not a whole number of microseconds")]
    SpanNotWholeMicros,
    /// The span is zero, or longer than [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the span is zero, or longer than 1000 years")]
    SpanOutOfRange,
    /// A [`split`](crate::split) asks a concurrency limit.
    #[error("a split takes nothing from concurrency limits (ask them beside it)")]
    SplitLease,
    /// A request of a [`split`](crate::split) has [`up_to`](crate::Request::up_to).
    #[error("a split takes all of its cost or nothing (drop `up_to`)")]
    SplitPart,
    /// A [`split`](crate::split) asks a limit and key that its call asks again.
    #[error("a split asks a key that its call asks once more (ask each key once)")]
    SplitTwice,
    /// The call asks more keys than [`Limiter::max_keys`](crate::Limiter::max_keys) or
    /// [`GateBuilder::max_keys`](crate::GateBuilder::max_keys) allows.
    #[error("one call asks {keys} keys, and at most {most} are allowed (ask fewer at once, or raise `max_keys`)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    TooManyKeys {
        /// The number of keys; each alternative counts its own.
        keys: usize,
        /// The bound.
        most: usize,
    },
    /// The verb does not take this option; see the tables at [`Call`](crate::Call) and [`Request`](crate::Request).
    #[error("this verb does not go with {option} (drop it, or say what the verb takes)")]
    #[cfg_attr(not(feature = "unstable"), non_exhaustive)]
    WrongVerb {
        /// The name of the option.
        option: &'static str,
    },
}

/// Keeps a fault from being stored: what is wrong is not worth a retry.
#[expect(clippy::ref_option, reason = "the signature that serde's `serialize_with` calls")]
pub(super) fn refused<E: fmt::Display, S: Serializer>(fault: &Option<E>, _: S) -> Result<S::Ok, S::Error> {
    let fault = fault.as_ref().map(ToString::to_string).unwrap_or_default();
    Err(ser::Error::custom(fault))
}
