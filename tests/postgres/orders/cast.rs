//! The roles on the stage: verbs beside verbs that ask the same rows.

use std::time::Duration;

use tollgate::algebra::Timestamp;
use tollgate::plan::{AppliedOverride, Ruling};
use tollgate::{Call, DAY, HOUR, Limit, Receipt, Storage, Tokens, first_of, split};

use super::verb::Verb;

/// Longer than any test.
const EVER: Duration = Duration::from_hours(24 * 365);
/// How long a lease lasts.
pub(crate) const LEASE: Duration = HOUR;

pub(crate) const PLAN: Limit = Limit::token_bucket("plan", 3, EVER).max_reserved(3);
/// The numbers that an operator gives to [`PLAN`].
const RAISED: Limit = Limit::token_bucket("plan", 5, EVER).max_reserved(3);
pub(crate) const TEAM: Limit = Limit::fixed_window("team", 3, EVER).start(Duration::ZERO).ephemeral();
pub(crate) const SEATS: Limit = Limit::concurrency("seats", 3, LEASE);
pub(crate) const SLIDE: Limit = Limit::sliding_window("slide", 3, DAY);
pub(crate) const SPREAD: Limit = Limit::token_bucket("spread", 6, EVER).shards(3);

/// The limits that the SQL functions know.
pub(crate) const IN_SQL: &[Limit] = &[PLAN, TEAM];

/// A verb by the name that a schedule prints, and the way to its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Role {
    pub(crate) name: &'static str,
    /// The charge that gives the verb a receipt.
    pub(crate) before: Before,
    pub(crate) verb: fn(&str, Receipt) -> Verb,
    /// Whether a caller may repeat it, as it has an id.
    pub(crate) has_id: bool,
    /// Whether a gate can play it. Nobody rolls its transactions back. A gate that makes calls which lapse gives back
    /// the lapsed calls of everybody when it likes.
    pub(crate) is_for_gates: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Before {
    Nothing,
    Consume(fn(&str) -> Call),
    Reserve(fn(&str) -> Call),
    /// So long ago that it has lapsed.
    Lapsed(fn(&str) -> Call),
}

/// The rows before the sessions begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// There are none but those that were charged for a receipt.
    Empty,
    /// One token is left in each.
    Scarce,
    /// They have long been full.
    Full,
}

/// Roles that meet on the same rows.
pub(crate) struct Cast {
    pub(crate) roles: &'static [Role],
    /// Those whose rows are prepared.
    pub(crate) limits: &'static [Limit],
    pub(crate) starts: &'static [Start],
    /// Whether it is drawn which row is charged.
    pub(crate) is_drawn: bool,
}

impl Role {
    const fn has_id(self) -> Self {
        Self { has_id: true, ..self }
    }

    const fn not_for_gates(self) -> Self {
        Self { is_for_gates: false, ..self }
    }
}

const fn role(name: &'static str, verb: fn(&str, Receipt) -> Verb) -> Role {
    after(name, Before::Nothing, verb)
}

const fn after(name: &'static str, before: Before, verb: fn(&str, Receipt) -> Verb) -> Role {
    Role { name, before, verb, has_id: false, is_for_gates: true }
}

pub(crate) const ALL: [&Cast; 6] =
    [&OF_ONE_ROW, &OF_TWO_ROWS, &OF_LEASES, &OF_SLIDING_WINDOWS, &OF_SHARDS, &OF_FULL_ROWS];

/// Verbs of one row: a token bucket.
pub(crate) const OF_ONE_ROW: Cast = Cast {
    limits: &[PLAN],
    starts: &[Start::Empty, Start::Scarce],
    is_drawn: false,
    roles: &[
        role("consume", |key, _| Verb::Consume(PLAN.key(key).into())),
        role("consume up to", |key, _| Verb::Consume(PLAN.key(key).cost(3).up_to(1).into())),
        role("consume leaving", |key, _| Verb::Consume(PLAN.key(key).leaving(1).into())),
        role("consume in vain", |key, _| Verb::Vain(PLAN.key(key).into())).not_for_gates(),
        role("reserve", |key, _| Verb::Reserve(PLAN.key(key).cost(2).into())),
        role("credit", |key, _| Verb::Credit(PLAN.key(key).into())),
        role("debit", |key, _| Verb::Debit(PLAN.key(key).cost(2).into())),
        role("reset", |key, _| Verb::Reset(PLAN.key(key))),
        role("check", |key, _| Verb::Check(PLAN.key(key).into())),
        role("balance", |key, _| Verb::Balance(PLAN.key(key))),
        role("once", |key, _| Verb::Consume(PLAN.key(key).once("x"))).has_id(),
        role("lapses", |key, _| Verb::Consume(PLAN.key(key).lapses_after(HOUR))).not_for_gates(),
        role("once, lapses", |key, _| Verb::Consume(PLAN.key(key).once("x").lapses_after(HOUR)))
            .has_id()
            .not_for_gates(),
        role("each", |key, _| Verb::Each(vec![vec![PLAN.key(key)], vec![PLAN.key(key).cost(2)]])),
        after("settle", Before::Consume(|key| PLAN.key(key).into()), |_, receipt| Verb::Settle(receipt, Tokens::ZERO)),
        after("settle above", Before::Consume(|key| PLAN.key(key).into()), |_, receipt| {
            Verb::Settle(receipt, Tokens::new(3))
        }),
        after("settle tracked", Before::Consume(|key| PLAN.key(key).tracked_for(HOUR)), |_, receipt| {
            Verb::Settle(receipt, Tokens::ZERO)
        }),
        after("cancel", Before::Reserve(|key| PLAN.key(key).cost(2).into()), |_, receipt| Verb::Cancel(receipt)),
        after("reap", Before::Lapsed(|key| PLAN.key(key).lapses_after(HOUR)), |_, _| Verb::Reap).not_for_gates(),
        after("settle lapsed", Before::Lapsed(|key| PLAN.key(key).lapses_after(HOUR)), |_, receipt| {
            Verb::Settle(receipt, Tokens::ZERO)
        })
        .not_for_gates(),
    ],
};

/// Verbs of two rows, one in each table.
pub(crate) const OF_TWO_ROWS: Cast = Cast {
    limits: &[PLAN, TEAM],
    starts: &[Start::Empty, Start::Scarce],
    is_drawn: false,
    roles: &[
        role("consume both", |key, _| Verb::Consume(Call::from([PLAN.key(key), TEAM.key(key)]))),
        role("consume both, the other first", |key, _| Verb::Consume(Call::from([TEAM.key(key), PLAN.key(key)]))),
        role("reserve both", |key, _| Verb::Reserve(Call::from([TEAM.key(key).cost(2), PLAN.key(key)]))),
        role("each of both", |key, _| Verb::Each(vec![vec![TEAM.key(key)], vec![PLAN.key(key)]])),
        role("first of", |key, _| Verb::Consume(first_of([[PLAN.key(key)], [TEAM.key(key)]]))),
        role("first of, the other first", |key, _| Verb::Consume(first_of([[TEAM.key(key)], [PLAN.key(key)]]))),
        role("split", |key, _| Verb::Consume(split(2, [TEAM.key(key), PLAN.key(key)]))),
        role("both once", |key, _| Verb::Consume(Call::from([PLAN.key(key), TEAM.key(key)]).once("x"))).has_id(),
        after("settle both", Before::Consume(|key| Call::from([TEAM.key(key), PLAN.key(key)])), |_, receipt| {
            Verb::Settle(receipt, Tokens::ZERO)
        }),
        role("consume one", |key, _| Verb::Consume(TEAM.key(key).into())),
        role("reset one", |key, _| Verb::Reset(TEAM.key(key))),
    ],
};

/// Verbs of a concurrency limit.
pub(crate) const OF_LEASES: Cast = Cast {
    limits: &[SEATS],
    starts: &[Start::Empty, Start::Scarce],
    is_drawn: false,
    roles: &[
        role("acquire", |key, _| Verb::Consume(SEATS.key(key).into())),
        role("acquire beside", |key, _| Verb::Consume(Call::from([SEATS.key(key), PLAN.key(key)]))),
        role("acquire once", |key, _| Verb::Consume(SEATS.key(key).once("x"))).has_id(),
        after("renew", Before::Consume(|key| SEATS.key(key).into()), |_, receipt| Verb::Renew(receipt)),
        after("release", Before::Consume(|key| SEATS.key(key).into()), |_, receipt| Verb::Release(receipt)),
        role("reset", |key, _| Verb::Reset(SEATS.key(key))),
        role("check", |key, _| Verb::Check(SEATS.key(key).into())),
        role("check once", |key, _| Verb::Check(SEATS.key(key).once("x"))),
    ],
};

/// Verbs of a sliding window.
pub(crate) const OF_SLIDING_WINDOWS: Cast = Cast {
    limits: &[SLIDE],
    starts: &[Start::Empty, Start::Scarce],
    is_drawn: false,
    roles: &[
        role("consume", |key, _| Verb::Consume(SLIDE.key(key).into())),
        role("consume two", |key, _| Verb::Consume(SLIDE.key(key).cost(2).into())),
        role("credit", |key, _| Verb::Credit(SLIDE.key(key).into())),
        role("debit", |key, _| Verb::Debit(SLIDE.key(key).into())),
        role("reset", |key, _| Verb::Reset(SLIDE.key(key))),
        after("settle", Before::Consume(|key| SLIDE.key(key).into()), |_, receipt| Verb::Settle(receipt, Tokens::ZERO)),
    ],
};

/// Verbs of a limit with shards. Which row is charged is drawn.
pub(crate) const OF_SHARDS: Cast = Cast {
    limits: &[SPREAD],
    starts: &[Start::Empty, Start::Scarce],
    is_drawn: true,
    roles: &[
        role("consume", |key, _| Verb::Consume(SPREAD.key(key).into())),
        role("consume three", |key, _| Verb::Consume(SPREAD.key(key).cost(3).into())),
        role("consume beside", |key, _| Verb::Consume(Call::from([SPREAD.key(key), PLAN.key(key)]))),
        role("credit", |key, _| Verb::Credit(SPREAD.key(key).into())),
        role("debit", |key, _| Verb::Debit(SPREAD.key(key).cost(2).into())),
        role("reset", |key, _| Verb::Reset(SPREAD.key(key))),
    ],
};

/// Verbs beside a sweeper on a row that has long been full.
pub(crate) const OF_FULL_ROWS: Cast = Cast {
    limits: &[PLAN, TEAM],
    starts: &[Start::Full],
    is_drawn: false,
    roles: &[
        role("sweep", |_, _| Verb::Sweep(Storage::Durable)),
        role("consume", |key, _| Verb::Consume(PLAN.key(key).into())),
        role("consume both", |key, _| Verb::Consume(Call::from([PLAN.key(key), TEAM.key(key)]))),
        role("reserve", |key, _| Verb::Reserve(PLAN.key(key).cost(2).into())),
        role("debit", |key, _| Verb::Debit(PLAN.key(key).into())),
        role("reset", |key, _| Verb::Reset(PLAN.key(key))),
        role("first of", |key, _| Verb::Consume(first_of([[PLAN.key(key)], [TEAM.key(key)]]))),
        role("once", |key, _| Verb::Consume(PLAN.key(key).once("x"))).has_id(),
    ],
};

/// More verbs to drop: their ways to and through several shards, and through a stored call.
pub(crate) const TO_DROP: Cast = Cast {
    limits: &[SPREAD],
    starts: &[Start::Empty],
    is_drawn: true,
    roles: &[
        role("reserve", |key, _| Verb::Reserve(SPREAD.max_reserved(6).key(key).cost(9).into())),
        after("settle", Before::Consume(|key| SPREAD.key(key).cost(5).into()), |_, receipt| {
            Verb::Settle(receipt, Tokens::ONE)
        }),
        after("credit once", Before::Consume(|key| SPREAD.key(key).cost(5).into()), |key, _| {
            Verb::Credit(SPREAD.key(key).once("x"))
        }),
        after("settle once", Before::Consume(|key| SPREAD.key(key).once("x").lapses_after(HOUR)), |_, receipt| {
            Verb::Settle(receipt, Tokens::ZERO)
        })
        .not_for_gates(),
        after("settle what lapses", Before::Consume(|key| SPREAD.key(key).lapses_after(HOUR)), |_, receipt| {
            Verb::Settle(receipt, Tokens::ZERO)
        })
        .not_for_gates(),
    ],
};

/// The calls of SQL functions on the rows of [`OF_TWO_ROWS`].
pub(crate) const IN_SQL_ROLES: &[Role] = &[
    role("consume in SQL", |key, _| Verb::Consume(PLAN.key(key).into())),
    role("consume both in SQL", |key, _| Verb::Consume(Call::from([TEAM.key(key), PLAN.key(key)]))),
    role("reserve in SQL", |key, _| Verb::Reserve(PLAN.key(key).cost(2).into())),
    role("credit in SQL", |key, _| Verb::Credit(PLAN.key(key).into())),
    role("debit in SQL", |key, _| Verb::Debit(PLAN.key(key).cost(2).into())),
    role("reset in SQL", |key, _| Verb::Reset(PLAN.key(key))),
    after("settle in SQL", Before::Consume(|key| PLAN.key(key).into()), |_, receipt| {
        Verb::Settle(receipt, Tokens::new(3))
    }),
    after("cancel in SQL", Before::Reserve(|key| PLAN.key(key).cost(2).into()), |_, receipt| Verb::Cancel(receipt)),
];

/// The overrides that an operator sets beside the functions.
pub(crate) const OF_OPERATORS: &[Role] = &[
    role("deny", |key, _| {
        Verb::Override(
            PLAN.key(key),
            AppliedOverride { ruling: Some(Ruling::Deny { until: Timestamp::MAX }), ..AppliedOverride::default() },
        )
    }),
    role("raise", |key, _| {
        Verb::Override(PLAN.key(key), AppliedOverride { numbers: Some(RAISED), ..AppliedOverride::default() })
    }),
];
