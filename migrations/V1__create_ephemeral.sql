-- Ephemeral limits: one row per limit, key and shard. Unlogged: no write-ahead log, emptied by a crash or a failover.

create unlogged table tollgate.ephemeral (
    part    smallint         not null,
    name    text collate "C" not null,
    key     text collate "C" not null,
    shard   smallint         not null,
    value   bigint           not null,
    ts      timestamptz      not null,
    full_at timestamptz      not null,
    list    bigint[],

    constraint ephemeral_pkey primary key (part, name, key, shard),
    -- `tollgate distribute` swaps this one: a process that binds other parts inserts no row.
    constraint ephemeral_part check (part = 0),
    -- One short constraint, because PostgreSQL reads the text of each constraint for each statement. The library holds
    -- instants before the year 262143.
    constraint ephemeral_row check (
        pg_catalog.octet_length(name) <= 255
        and pg_catalog.octet_length(key) <= 512
        and shard >= 0
        and least(ts, full_at) > '-infinity'
        and greatest(ts, full_at) < '262143-01-01 00:00:00+00'
    )
)
-- Room for the next version of a row on its own page: an update touches no index. For the same reason no index holds a
-- column that changes.
with (fillfactor = 90, vacuum_truncate = off);

-- An empty first megabyte, which vacuum leaves. A session keeps its plans, which it makes by the size of the table: one
-- made for a few pages would read all rows instead of the index once there are thousands.
alter table tollgate.ephemeral alter list set storage plain;
insert into tollgate.ephemeral (part, name, key, shard, value, ts, full_at, list)
select 0, '-', n::text, 0, 0, 'epoch', 'epoch', pg_catalog.array_fill(0::int8, array[1000])
  from pg_catalog.generate_series(1, 128) n;
delete from tollgate.ephemeral;
alter table tollgate.ephemeral alter list set storage extended;

comment on table  tollgate.ephemeral         is 'what is used of ephemeral limits; a missing row means that nothing is';
comment on column tollgate.ephemeral.part is
    '0 on plain PostgreSQL; once distributed over N parts by Citus, one of N numbers from 8N to 16N - 1, by the hash '
    'of the key';
comment on column tollgate.ephemeral.name is 'the limit''s name; collated by bytes, the order in which rows are locked';
comment on column tollgate.ephemeral.key is 'whom the limit applies to; empty for the limit''s global row';
comment on column tollgate.ephemeral.shard is 'which of the limit''s rows for this key, from 0';
comment on column tollgate.ephemeral.value is
    'counted from a full row, at ts, in micro-tokens (1 token = 1 000 000): -3000000 where three tokens are used; of a '
    'wallet its money';
comment on column tollgate.ephemeral.ts is
    'when the balance was that: the last write, or the last step of a stepped refill';
comment on column tollgate.ephemeral.full_at is
    'from then on, if it is not before ts, the row is as a missing one, under every definition';
comment on column tollgate.ephemeral.list is
    'null for what only a balance tells; else a mark of its kind, and of a sliding window (1) for each grant the '
    'instant at which it leaves in microseconds since 1970, and micro-tokens; of a concurrency limit (2) for each '
    'lease its end, micro-tokens, and the two halves of its id; of a period that was named (4) its end, and the length '
    'of the last one that was named; of a month (5) its end, and where months begin';
