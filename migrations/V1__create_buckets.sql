-- Ephemeral limits: one row per limit, key and shard. Unlogged: no write-ahead log, emptied by a crash or a failover.

create unlogged table tollgate.buckets (
    name        text collate "C" not null,
    key         text collate "C" not null,
    shard       smallint         not null,
    tokens      bigint           not null,
    last_refill timestamptz      not null,
    expires_at  timestamptz      not null,

    constraint buckets_pkey               primary key (name, key, shard),
    constraint buckets_name_in_range      check (octet_length(name) between 1 and 255),
    constraint buckets_key_in_range       check (octet_length(key) <= 512),
    constraint buckets_shard_not_negative check (shard >= 0),
    constraint buckets_last_refill_finite check (isfinite(last_refill))
)
-- Room for the next version of a row on its own page: an update touches no index. For the same reason there is no index
-- on a column that changes.
with (fillfactor = 90);

comment on table  tollgate.buckets             is 'token buckets of ephemeral limits; an absent row is a full bucket';
comment on column tollgate.buckets.name        is 'the limit''s name; collated by bytes, the order in which rows are locked';
comment on column tollgate.buckets.key         is 'whom the limit applies to; empty for all callers together';
comment on column tollgate.buckets.shard       is 'which of the limit''s rows for this key; 0 where there is one';
comment on column tollgate.buckets.tokens      is 'balance at last_refill, in micro-tokens (1 token = 1 000 000); negative for a debt';
comment on column tollgate.buckets.last_refill is 'the instant that the balance stands at';
comment on column tollgate.buckets.expires_at  is 'when the bucket is full again by the definition that wrote it: a hint for the sweep';
