-- The tables of definitions, which are for callers without the library, and of overrides, which the library reads, too.
-- Amounts are micro-tokens, and spans microseconds.

create table tollgate.limits (
    name         text collate "C" primary key,
    kind         text not null,
    rate         int8 not null,
    period       int8 not null,
    capacity     int8 not null,
    max_reserved int8 not null default 0,
    start        int8,
    resolution   int2,
    shards       int2 not null default 1,
    storage      text not null default 'durable',
    -- How tokens come back: c all the time, f in steps from the first use, g on a grid, m with the months, b with the
    -- periods that callers name, w not at all. Only the Rust library decides a limit with a -.
    flow         "char" not null generated always as (
        case when shards > 1 then '-' when kind = 'token_bucket' then 'c' when kind = 'stepped_bucket' then 'f'
             when kind = 'fixed_window' then 'g' when kind = 'monthly' then 'm' when kind = 'billing' then 'b'
             when kind in ('meter', 'wallet') then 'w' else '-' end::"char") stored,

    constraint a_name_has_1_to_255_bytes check (octet_length(name) between 1 and 255),
    constraint a_kind_is_known check (kind in ('token_bucket', 'fixed_window', 'stepped_bucket', 'sliding_window',
                                               'concurrency', 'monthly', 'billing', 'meter', 'wallet')),
    constraint a_storage_is_ephemeral_or_durable check (storage in ('ephemeral', 'durable')),
    constraint numbers_are_in_range check (capacity >= 0 and max_reserved >= 0 and shards between 1 and 64
                                           and (kind <> 'concurrency' or rate <= 1000000000)),
    constraint a_rate_and_a_period_are_positive check (
        kind in ('meter', 'wallet')
        or rate >= shards and (kind in ('monthly', 'billing') and period = 0
                              or kind not in ('monthly', 'billing') and period between 1 and 31536000000000000)),
    constraint a_wallet_has_no_size_and_is_durable check (
        kind not in ('meter', 'wallet')
        or rate = 0 and period = 0 and capacity = 0 and shards = 1 and storage = 'durable'),
    constraint a_meter_has_no_overdraft check (kind <> 'meter' or max_reserved = 0),
    constraint a_start_is_of_a_fixed_window_or_of_months check (
        start is null or kind = 'fixed_window' and start between 0 and period - 1
        or kind = 'monthly' and start between 0 and 2678399999999),
    constraint a_resolution_is_of_a_sliding_window check (
        resolution is null or kind = 'sliding_window' and resolution between 1 and 63),
    constraint what_counts_has_no_capacity_and_no_reservations check (
        kind not in ('sliding_window', 'concurrency') or capacity = rate and max_reserved = 0),
    constraint shards_are_of_token_buckets_and_windows check (
        shards = 1 or kind in ('token_bucket', 'fixed_window', 'monthly', 'billing')),
    constraint nobody_reserves_by_periods_that_are_named check (kind <> 'billing' or max_reserved = 0),
    constraint reservations_are_durable check (max_reserved = 0 or storage = 'durable'),
    constraint a_row_can_hold_what_is_used check (
        max_reserved = 9223372036854775807 or capacity + max_reserved::numeric <= 9223372036854775807)
);
comment on table tollgate.limits is
    'definitions for callers of the functions, in micro-tokens and microseconds; Rust code may have its own';

create table tollgate.overrides (
    name         text collate "C" not null,
    key          text collate "C" not null,
    label        text collate "C" not null default '',
    effect       text not null,
    kind         text,
    rate         int8,
    period       int8,
    capacity     int8,
    max_reserved int8,
    starts_at    timestamptz not null,
    ends_at      timestamptz not null,
    reason       text not null,
    set_by       text not null,
    set_at       timestamptz not null,
    forgotten_at timestamptz,

    constraint overrides_pkey primary key (name, key, label),
    constraint a_name_has_1_to_255_bytes check (octet_length(name) between 1 and 255),
    constraint a_key_has_at_most_512_bytes check (octet_length(key) <= 512),
    constraint a_label_has_at_most_255_bytes check (octet_length(label) <= 255),
    constraint an_effect_is_known check (effect in ('numbers', 'slowed', 'deny', 'unlimited')),
    constraint numbers_have_a_kind_a_rate_a_period_and_a_capacity check (
        num_nulls(kind, rate, period, capacity, max_reserved)
        = case effect when 'numbers' then 0 when 'slowed' then 4 else 5 end),
    constraint slowed_has_a_share_of_the_rate_and_an_end check (
        effect <> 'slowed' or coalesce(rate between 1 and 1000000, false) and ends_at < 'infinity'),
    constraint reports_are_of_a_slow_down check (forgotten_at is null or effect = 'slowed'),
    constraint numbers_are_those_of_a_limit check (
        effect <> 'numbers' or max_reserved >= 0 and case
            when kind = 'wallet' then rate = 0 and period = 0 and capacity = 0
            when kind in ('token_bucket', 'fixed_window', 'stepped_bucket', 'sliding_window', 'concurrency', 'monthly',
                          'billing')
            then rate > 0 and case when kind in ('monthly', 'billing') then period = 0
                                   else period between 1 and 31536000000000000 end
                 and (kind <> 'billing' or max_reserved = 0)
                 and capacity >= 0 and capacity + max_reserved::numeric > 0
                 and (max_reserved = 9223372036854775807 or capacity + max_reserved::numeric <= 9223372036854775807)
                 and (kind not in ('sliding_window', 'concurrency') or capacity = rate and max_reserved = 0)
                 and (kind <> 'concurrency' or rate <= 1000000000)
            else false end),
    constraint it_ends_after_it_starts check (
        starts_at > '-infinity' and starts_at < least(ends_at, '262143-01-01 00:00:00+00')
        and (ends_at = 'infinity' or ends_at < '262143-01-01 00:00:00+00')),
    constraint it_was_set_at_an_instant check (set_at > '-infinity' and set_at < '262143-01-01 00:00:00+00'),
    constraint a_reason_has_1_to_500_bytes check (octet_length(reason) between 1 and 500),
    constraint who_has_1_to_255_bytes check (octet_length(set_by) between 1 and 255)
);
create index reports_by_end on tollgate.overrides (ends_at) where label in ('slowdown', 'pause');
comment on table tollgate.overrides is
    'what operators say over definitions: other numbers of the same kind, slowed, deny or unlimited; in their units';
comment on column tollgate.overrides.key is 'whom it applies to; empty for every key, the global row too';
comment on column tollgate.overrides.label is 'tells several of one key apart; each is set and removed by itself';
comment on column tollgate.overrides.starts_at is
    'when it begins, or slowed begins to grow; one that had begun at set_at counts until it ends';
comment on column tollgate.overrides.rate is
    'of numbers, the rate; of slowed, its share until starts_at in millionths, which grows to the whole until ends_at';
comment on column tollgate.overrides.forgotten_at is 'of slowed, when the last report that it tolerated is forgotten';
