-- Writes one row that transaction $8 has locked; in any other transaction, none.
--
-- $1 part, $2 name, $3 key, $4 shard, $5 micro-tokens, $6 instant, $7 when it will be full
-- $8 the transaction; null on Citus, where each node counts its own
-- $9 the list
update tollgate.durable
   set value = $5, ts = $6, full_at = $7, list = $9
 where part = $1 and name = $2 and key = $3 and shard = $4
   and ($8::int8 is null or pg_catalog.txid_current_if_assigned() = $8::int8)
returning 1 as "written!"
