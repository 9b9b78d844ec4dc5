-- Deletes rows that transaction $5 has inserted for calls that are refused after all; in any other transaction, none.
--
-- $1 part, $2 names, $3 keys, $4 shards
-- $5 the transaction; null on Citus, where each node counts its own
delete from tollgate.durable r
 using (
     select f.of, f.tid
       from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                    pg_catalog.unnest(p.shards) as shard
               from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) w
      cross join lateral (
          select r.tableoid as of, r.ctid as tid
            from tollgate.durable r
           where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
          offset 0
      ) f
      where w.shard between 0 and 32767
 ) h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
   and ($5::int8 is null or pg_catalog.txid_current_if_assigned() = $5::int8)
