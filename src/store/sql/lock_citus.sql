-- Locks one row and reads it, on Citus; no row where it is missing. A fast-path query like read_citus.sql.
--
-- The clock may be read before the wait for the lock: who has waited reads it once more.
--
-- $1 part, $2 name, $3 key, $4 shard
-- $5 the instant to take for now; null for the clock
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current()                  as "xid?",
       true                                       as "locked!",
       r.value, r.ts as "ts: Timestamp", r.full_at as "full_at: Timestamp", r.list::text as "list?"
  from tollgate.durable r
 where r.part = $1 and r.name = $2 and r.key = $3 and r.shard = $4
   for update
