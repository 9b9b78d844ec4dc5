-- Generated from ../save_citus.sql by `./dev sqlx`.
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
           from tollgate.ephemeral r
          where r.part = $1 and r.name = w.name and r.key = w.key and r.shard = w.shard
            and (w.read is null
                 or r.value = w.read and r.ts = coalesce(w.read_at, r.ts) and r.list::text is not distinct from w.read_list)
         offset 0
            for no key update of r
     ) f
     where w.shard between 0 and 32767
)
update tollgate.ephemeral r
   set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
  from h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
   and (select pg_catalog.count(*) from h) = pg_catalog.cardinality($2::text[])
returning 1 as "written!"
