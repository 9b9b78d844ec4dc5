use crate::tokens::TokensError;

/// The rule that a call breaks. Such a call fails before any SQL, and fails again at each retry.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// An alternative of [`first_of`](crate::first_of) has no requests.
    #[error("an alternative has no requests (give `first_of` at least one for each)")]
    AlternativeEmpty,
    /// A request of [`first_of`](crate::first_of) stands beside other requests, or a request before it is missing.
    #[error("alternatives are a call of their own (give a verb what `first_of` made, and no more)")]
    AlternativesApart,
    /// An alternative of [`first_of`](crate::first_of) was itself made by [`first_of`](crate::first_of).
    #[error("alternatives lie within alternatives (put all of them into one `first_of`)")]
    AlternativesNested,
    /// One call asks a limit under two definitions.
    #[error("the limit is asked under two definitions in one call (use one)")]
    ConflictingDefinitions,
    /// No release writes such a charge, or a later release wrote it and this one does not understand it.
    #[error("a charge cannot be read (settle it by the release that wrote it, or credit by hand)")]
    CorruptReceipt,
    /// The cost of a request, or another amount in it, is no amount of tokens.
    #[error("the cost is invalid")]
    Cost(#[source] TokensError),
    /// There are more or fewer costs than requests of the receipt.
    #[error("{costs} costs cannot settle a receipt of {requests} requests (give one for each, in the order asked)")]
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
    /// The id of [`Request::once`](crate::Request::once) is empty.
    #[error("the id of `once` is empty")]
    IdEmpty,
    /// The id has a NUL character, which PostgreSQL cannot store.
    #[error("the id of `once` contains a NUL character")]
    IdNul,
    /// The id is longer than [`CallName::MAX_ID_BYTES`](crate::plan::CallName::MAX_ID_BYTES).
    #[error("the id of `once` is longer than 255 bytes (hash it)")]
    IdTooLong,
    /// The call has a span to lapse or to be tracked, and asks a concurrency limit, which has its lease.
    #[error("what a concurrency limit grants lapses at the end of its lease (drop the span, or change the lease)")]
    Leased,
    /// The least part of [`Request::up_to`](crate::Request::up_to) is more than the cost.
    #[error("`up_to` asks for more than the cost (say at most the cost)")]
    LeastTooLarge,
    /// The least part of [`Request::up_to`](crate::Request::up_to) is zero.
    #[error("`up_to` asks for nothing (say what is worth a call)")]
    LeastZero,
    /// The requests have different costs, and one actual cost cannot settle them. A [`Stream`](crate::Stream) settles
    /// at one cost, too.
    #[error("different costs cannot be settled for one (use `settle_each`, or mark what stays as `flat`)")]
    MixedCosts,
    /// The verb does not take this option; see the table at [`Request`](crate::Request).
    #[error("this verb does not go with `{option}` (consume, wait, acquire or check)")]
    NotConsumed {
        /// The name of the option.
        option: &'static str,
    },
    /// The call has no requests. An empty list of limits grants nothing, so skip the call where nothing is limited.
    #[error("no limit was asked (skip the call where nothing is limited)")]
    NothingAsked,
    /// Two requests of one call have [`up_to`](crate::Request::up_to) with different costs or different least parts.
    #[error("two requests of one call take parts of different costs (give them one cost and one `up_to`)")]
    PartsDiffer,
    /// The limit of a [`period`](crate::Request::period) is neither a fixed window nor a stepped bucket.
    #[error("a period is named of fixed windows and stepped buckets (drop it, or ask another limit)")]
    PeriodOfKind,
    /// A [`period`](crate::Request::period) is longer than [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the period that is named is longer than 1000 years")]
    PeriodTooLong,
    /// A [`period`](crate::Request::period) is shorter than a second, or ends before it starts.
    #[error("the period that is named is shorter than a second")]
    PeriodTooShort,
    /// Two requests of one call differ in [`lapses_after`](crate::Request::lapses_after) or
    /// [`tracked_for`](crate::Request::tracked_for).
    #[error("two requests of one call are to be kept in different ways (say one span in a call, or ask two calls)")]
    SpansDiffer,
    /// The span has a fraction of a microsecond.
    #[error("the span is not a whole number of microseconds")]
    SpanNotWholeMicros,
    /// The span is longer than [`Limit::MAX_PERIOD`](crate::Limit::MAX_PERIOD).
    #[error("the span is longer than 1000 years")]
    SpanTooLong,
    /// The span is zero.
    #[error("the span is zero")]
    SpanZero,
    /// A request of a [`split`](crate::split) lacks a request before it.
    #[error("the requests of a split are asked as it made them (give a verb all of them, in their order)")]
    SplitApart,
    /// A [`split`](crate::split) has no requests.
    #[error("a split has no requests (give it at least one)")]
    SplitEmpty,
    /// A [`split`](crate::split) asks a concurrency limit.
    #[error("a split takes nothing from concurrency limits (ask them beside it)")]
    SplitLease,
    /// A [`split`](crate::split) has alternatives, or requests of another split.
    #[error("a split lies around alternatives or another split (split within `first_of`, and once)")]
    SplitNested,
    /// A request of a [`split`](crate::split) has [`up_to`](crate::Request::up_to).
    #[error("a split takes all of its cost or nothing (drop `up_to`)")]
    SplitPart,
    /// A [`split`](crate::split) asks a limit and key that its call asks again.
    #[error("a split asks a key that its call asks once more (ask each key once)")]
    SplitTwice,
    /// The call asks more keys than [`Limiter::max_keys`](crate::Limiter::max_keys) or
    /// [`GateBuilder::max_keys`](crate::GateBuilder::max_keys) allows.
    #[error("one call asks {keys} keys, and at most {most} are allowed (ask fewer at once, or raise `max_keys`)")]
    TooManyKeys {
        /// The number of keys; each alternative counts its own.
        keys: usize,
        /// The bound.
        most: usize,
    },
    /// Two requests of one call have an id.
    #[error("two requests of one call have an id (say `once` in one of them: it counts for the whole call)")]
    TwoIds,
    /// A credit or a debit has an option for settling. Neither returns a receipt.
    #[error("a credit and a debit give no receipt that could lapse (drop the span; `once_for` keeps an id)")]
    WithoutReceipt,
}
