-- Deletes the stale shards of some keys: rows that a definition with more shards has left. A missing row is full, so
-- this resets them.
--
-- $1 part, $2 names, $3 keys, $4 the number of shards of each limit
delete from tollgate.durable r
 using (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
               pg_catalog.unnest(p.shards) as shards
          from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) w
 where r.part = $1 and r.name = w.name and r.key = w.key and r.shard >= w.shards
   and (array['on', 'row security hides rows of tollgate.durable'])[
           1 + pg_catalog.row_security_active('tollgate.durable'::regclass)::int4
       ]::bool
