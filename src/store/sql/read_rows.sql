-- Reads committed rows of both tables without a lock; null where a row is absent. The clock is read after the snapshot.
-- Tells whether rows of another number of shards are beside one that is absent.
--
-- $1 whether each is in tollgate.buckets, else in tollgate.rate_limits; $2 names, $3 keys, $4 shards
-- $5 the instant to take for now; null for the clock
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       null::int8                      as "xid?",
       false                           as "held!",
       w.place                         as "place!",
       null::timestamptz               as "inserted?: Timestamp",
       coalesce(b.tokens, r.value)     as "value?",
       coalesce(b.last_refill, r.ts)   as "ts?: Timestamp",
       case
           when coalesce(b.tokens, r.value) is not null then false
           when w.ephemeral
           then exists (select from tollgate.buckets s
                         where s.name = w.name and s.key = w.key
                           and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * w.shard)) / 2))
           else exists (select from tollgate.rate_limits s
                         where s.name = w.name and s.key = w.key
                           and floor((1 + sqrt(1 + 8 * s.shard)) / 2) <> floor((1 + sqrt(1 + 8 * w.shard)) / 2))
       end                             as "strange!"
  from unnest((select $1::bool[]), (select $2::text[]),
              (select $3::text[]), (select $4::int2[])) with ordinality as w (ephemeral, name, key, shard, place)
  left join tollgate.buckets b
    on w.ephemeral and b.name = w.name and b.key = w.key and b.shard = w.shard
  left join tollgate.rate_limits r
    on not w.ephemeral and r.name = w.name and r.key = w.key and r.shard = w.shard
