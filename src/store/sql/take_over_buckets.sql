-- Writes rows of tollgate.buckets so that they stand for strangers, and deletes those, all in one statement; outside the transaction
-- $10, which holds them all, neither. Returns how many rows were written and deleted.
--
-- ours:      $1 names, $2 keys, $3 shards, $4 micro-tokens, $5 instants, $6 when each will be full
-- strangers: $7 names, $8 keys, $9 shards
with joined as materialized (
    select coalesce((select pg_catalog.txid_current_if_assigned()) = $10::int8, false) as yes
),
gone as (
    delete from tollgate.buckets s
     using unnest((select $7::text[]), (select $8::text[]), (select $9::int2[])) as w (name, key, shard)
     where s.name = w.name and s.key = w.key and s.shard = w.shard
       and (select yes from joined)
    returning 1
),
written as (
    update tollgate.buckets r
       set tokens = w.tokens, last_refill = w.last_refill, expires_at = w.expires_at
      from unnest((select $1::text[]), (select $2::text[]), (select $3::int2[]),
                  (select $4::int8[]), (select $5::timestamptz[]), (select $6::timestamptz[]))
           as w (name, key, shard, tokens, last_refill, expires_at)
     where r.name = w.name and r.key = w.key and r.shard = w.shard
       and (select yes from joined)
    returning 1
)
select (select count(*) from gone) + (select count(*) from written) as "touched!"
