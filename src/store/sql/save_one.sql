-- Writes one row that transaction $8 has locked; in any other transaction, none.
--
-- $1 part, $2 name, $3 key, $4 shard, $5 micro-tokens, $6 instant, $7 when it will be full
-- $8 the transaction; null on Citus, where each node counts its own
-- $9 the list
-- $10 micro-tokens, $11 instant and $12 list as they were read, on Citus; null $10 for a row that was just inserted,
-- null $11 for an instant that only PostgreSQL can hold
update tollgate.durable
   set value = $5, ts = $6, full_at = $7, list = $9
 where part = $1 and name = $2 and key = $3 and shard = $4
   and ($8::int8 is null or pg_catalog.txid_current_if_assigned() = $8::int8)
   and ($10::int8 is null
        or value = $10::int8 and ts = coalesce($11::timestamptz, ts)
           and (list is null and $12::int8[] is null or pg_catalog.array_eq(list, $12::int8[])))
returning 1 as "written!"
