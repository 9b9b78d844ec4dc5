-- Reads committed rows of both tables without a lock, null where a row is absent, and with them all rows of the same
-- keys that are of another number of shards. The clock is read after the snapshot.
--
-- Returns when the transaction began, too: two statements that agree on it are in one transaction.
--
-- $1 whether each is in tollgate.buckets, else in tollgate.rate_limits; $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
with wanted as materialized (
    select *, floor((1 + sqrt(1 + 8 * w.shard)) / 2) as shards
      from unnest((select $1::bool[]), (select $2::text[]),
                  (select $3::text[]), (select $4::int2[])) with ordinality as w (ephemeral, name, key, shard, place)
),
keys as materialized (
    select distinct on (w.ephemeral, w.name, w.key) w.*
      from wanted w
     order by w.ephemeral, w.name, w.key, w.place
),
found as (
    select w.place, null::int2 as stranger, coalesce(b.tokens, r.value) as value, coalesce(b.last_refill, r.ts) as ts
      from wanted w
      left join tollgate.buckets b
        on w.ephemeral and b.name = w.name and b.key = w.key and b.shard = w.shard
      left join tollgate.rate_limits r
        on not w.ephemeral and r.name = w.name and r.key = w.key and r.shard = w.shard
     union all
    select k.place, b.shard, b.tokens, b.last_refill
      from keys k
      join tollgate.buckets b on b.name = k.name and b.key = k.key
     where k.ephemeral and floor((1 + sqrt(1 + 8 * b.shard)) / 2) <> k.shards
     union all
    select k.place, r.shard, r.value, r.ts
      from keys k
      join tollgate.rate_limits r on r.name = k.name and r.key = k.key
     where not k.ephemeral and floor((1 + sqrt(1 + 8 * r.shard)) / 2) <> k.shards
)
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.transaction_timestamp()         as "began!: Timestamp",
       f.place                                    as "place!",
       f.stranger                                 as "stranger?",
       f.value                                    as "value?",
       f.ts                                       as "ts?: Timestamp"
  from found f
 order by f.place, f.stranger
