-- Reads all committed rows of one key in tollgate.rate_limits without a lock: their columns as arrays, null where there is none. The
-- clock is that of the key's node, read after the snapshot.
--
-- $1 name, $2 key
-- $3 the instant to take for now; null for the clock
select coalesce($3, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       null::int8                                 as "xid?",
       array_agg(r.shard)                         as "shards?",
       array_agg(r.value)                         as "values?",
       array_agg(r.ts)                            as "instants?: Vec<Timestamp>"
  from tollgate.rate_limits r
 where r.name = $1 and r.key = $2
