-- Writes rows that a transaction has locked, on Citus, if all of them are as they were read; else none. A lock does not
-- hold a part on its node: if the part was moved meanwhile, others may have changed the rows where they lie now.
--
-- When a row will be full follows from the rest, so it is not compared. The rows are locked again, in the order given,
-- which is the lock order. The range of the shards has the reason of the one in swap.sql.
--
-- $1 part, $2 names, $3 keys, $4 shards, $5 micro-tokens, $6 instants, $7 when each will be full
-- $8 all lists, $9 where those of each row begin, $10 where they end; null for none
-- $11 micro-tokens, $12 instants and $13 lists as they were read; null in $11 for a row that was just inserted, null in
-- $12 for an instant that only PostgreSQL can hold
with h as materialized (
    select f.of, f.tid, w.value, w.ts, w.full_at, ($8::int8[])[w.first : w.last] as list
      from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                   pg_catalog.unnest(p.shards) as shard, pg_catalog.unnest(p.amounts) as value,
                   pg_catalog.unnest(p.instants) as ts, pg_catalog.unnest(p.full_at) as full_at,
                   pg_catalog.unnest(p.firsts) as first, pg_catalog.unnest(p.lasts) as last,
                   pg_catalog.unnest(p.read) as read, pg_catalog.unnest(p.read_at) as read_at,
                   pg_catalog.unnest(p.read_lists) as read_list
              from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards, $5::int8[] as amounts,
                           $6::timestamptz[] as instants, $7::timestamptz[] as full_at, $9::int4[] as firsts,
                           $10::int4[] as lasts, $11::int8[] as read, $12::timestamptz[] as read_at,
                           $13::text[] as read_lists offset 0) p) w
     cross join lateral (
         select r.tableoid as of, r.ctid as tid
           from tollgate.durable r
          where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
            and (w.read is null
                 or r.value = w.read and r.ts = coalesce(w.read_at, r.ts) and r.list::text is not distinct from w.read_list)
         offset 0
            for no key update of r
     ) f
     where w.shard between 0 and 32767
)
update tollgate.durable r
   set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
  from h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
   and (select pg_catalog.count(*) from h) = pg_catalog.cardinality($2::text[])
returning 1 as "written!"
