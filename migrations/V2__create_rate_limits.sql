-- Durable limits: one row per limit, key and shard, as safe as the rest of the database. A balance may be negative: a
-- reservation is a debt that time repays.

create table tollgate.rate_limits (
    name    text collate "C" not null,
    key     text collate "C" not null,
    shard   smallint         not null,
    value   bigint           not null,
    ts      timestamptz      not null,
    full_at timestamptz      not null,

    constraint rate_limits_pkey               primary key (name, key, shard),
    constraint rate_limits_name_in_range      check (octet_length(name) between 1 and 255),
    constraint rate_limits_key_in_range       check (octet_length(key) <= 512),
    constraint rate_limits_shard_not_negative check (shard >= 0),
    constraint rate_limits_ts_finite          check (isfinite(ts))
)
-- As for tollgate.buckets.
with (fillfactor = 90);

comment on table  tollgate.rate_limits         is 'balances of durable limits; an absent row is a full one';
comment on column tollgate.rate_limits.name    is 'the limit''s name; collated by bytes, the order in which rows are locked';
comment on column tollgate.rate_limits.key     is 'whom the limit applies to; empty for all callers together';
comment on column tollgate.rate_limits.shard   is 'which of the limit''s rows for this key; 0 where there is one';
comment on column tollgate.rate_limits.value   is 'balance at ts, in micro-tokens (1 token = 1 000 000); negative for a debt';
comment on column tollgate.rate_limits.ts      is 'the instant that the balance stands at: the last write, or the last step of a stepped refill';
comment on column tollgate.rate_limits.full_at is 'when the balance is full again by the definition that wrote it: a hint for the sweep';
