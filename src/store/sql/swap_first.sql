-- Writes one shard of a limit: the first of some rows that still is the version that was read and that nobody holds.
-- Waits for nobody. Returns which row was written.
--
-- The range of the numbers makes the planner find each row by its place, as in swap.sql. The CTE keeps the locking part
-- from running once for each row of the table: each run would find another row, because what the one before wrote has
-- changed.
--
-- $1 part, $2 places in the order of preference, $3 the transaction that wrote each version
-- $4 micro-tokens, $5 instants, $6 when each will be full
with h as materialized (
    select r.tableoid as of, r.ctid as tid, w.value, w.ts, w.full_at, w.number
      from (select u.*, pg_catalog.row_number() over ()::int4 as number
              from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version,
                           pg_catalog.unnest(p.amounts) as value, pg_catalog.unnest(p.instants) as ts,
                           pg_catalog.unnest(p.full_at) as full_at
                      from (select $2::text[]::tid[] as tids, $3::text[]::xid[] as versions, $4::int8[] as amounts,
                                   $5::timestamptz[] as instants, $6::timestamptz[] as full_at offset 0) p) u) w
      join tollgate.durable r on r.part = $1 and r.ctid = w.tid and r.xmin = w.version
     where w.number between 1 and 2147483647
     order by w.number
     limit 1
       for no key update of r skip locked
)
update tollgate.durable r
   set value = h.value, ts = h.ts, full_at = h.full_at
  from h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
returning h.number as "number!"
