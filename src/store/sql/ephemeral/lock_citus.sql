-- Generated from ../lock_citus.sql by `./dev sqlx`.
select coalesce($5, pg_catalog.clock_timestamp()) as "now!: Timestamp",
       pg_catalog.txid_current()                  as "xid?",
       true                                       as "locked!",
       r.value, r.ts as "ts: Timestamp", r.full_at as "full_at: Timestamp", r.list::text as "list?"
  from tollgate.ephemeral r
 where r.part = $1 and r.name = $2 and r.key = $3 and r.shard = $4
   for update
