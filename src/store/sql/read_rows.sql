-- Reads committed rows of both tables without a lock; null where a row is absent. The clock is read after the snapshot.
--
-- $1 whether each is in tollgate.buckets, else in tollgate.rate_limits; $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       null::int8                      as "xid?",
       false                           as "held!",
       w.place                         as "place!",
       null::timestamptz               as "inserted?: Timestamp",
       coalesce(b.tokens, r.value)     as "value?",
       coalesce(b.last_refill, r.ts)   as "ts?: Timestamp"
  from unnest((select $1::bool[]), (select $2::text[]),
              (select $3::text[]), (select $4::int2[])) with ordinality as w (ephemeral, name, key, shard, place)
  left join tollgate.buckets b
    on w.ephemeral and b.name = w.name and b.key = w.key and b.shard = w.shard
  left join tollgate.rate_limits r
    on not w.ephemeral and r.name = w.name and r.key = w.key and r.shard = w.shard
