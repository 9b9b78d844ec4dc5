-- Reads committed rows of tollgate.buckets without a lock, null where a row is absent, and with them all rows of the same
-- keys that are of another number of shards. The clock is read after the snapshot.
--
-- Returns when the transaction began, too: two statements that agree on it are in one transaction.
--
-- $1 names, $2 keys, $3 shards
-- $4 the instant to take for now; null for the clock
with wanted as materialized (
    select *, floor((1 + sqrt(1 + 8 * w.shard)) / 2) as shards
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[])) with ordinality as w (name, key, shard, place)
),
keys as materialized (
    select distinct on (w.name, w.key) w.*
      from wanted w
     order by w.name, w.key, w.place
),
found as (
    select w.place, null::int2 as stranger, r.tokens as value, r.last_refill as ts
      from wanted w
      left join tollgate.buckets r on r.name = w.name and r.key = w.key and r.shard = w.shard
     union all
    select k.place, r.shard, r.tokens, r.last_refill
      from keys k
      join tollgate.buckets r on r.name = k.name and r.key = k.key
     where floor((1 + sqrt(1 + 8 * r.shard)) / 2) <> k.shards
)
select coalesce($4, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.transaction_timestamp()         as "began!: Timestamp",
       f.place                                    as "place!",
       f.stranger                                 as "stranger?",
       f.value                                    as "value?",
       f.ts                                       as "ts?: Timestamp"
  from found f
 order by f.place, f.stranger
