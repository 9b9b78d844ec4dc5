-- Locks rows of one key in tollgate.rate_limits in order, and reads them: their columns as arrays, null where there is none. The clock
-- is that of the key's node, read after the last lock; so is the transaction.
--
-- $1 name, $2 key, $3 shards
-- $4 the instant to take for now; null for the clock
with held as materialized (
    select r.shard, r.value, r.ts
      from tollgate.rate_limits r
     where r.name = $1 and r.key = $2 and r.shard = any ($3::int2[])
     order by r.shard
       for update
)
select coalesce($4, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current_if_assigned()      as "xid?",
       array_agg(h.shard)                         as "shards?",
       array_agg(h.value)                         as "values?",
       array_agg(h.ts)                            as "instants?: Vec<Timestamp>"
  from held h
