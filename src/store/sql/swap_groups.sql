-- Like swap.sql, for rows that are written all or none with others, and for rows that have a list or get one. A group
-- is lost if one of its rows has changed, is locked or is gone. It has its own text because counting and slicing take a
-- quarter of the time.
--
-- The range of the groups makes the planner find each row by its place, as in swap.sql. The CTE keeps the locking part
-- from running once for each row of the table, and from counting fewer each time.
--
-- $1 part, $2 places, $3 the writer and the file of each
-- $4 micro-tokens, $5 instants, $6 when each will be full, $7 the group that each row belongs to, $8 the size of that
-- group
-- $9 all lists, $10 where those of each row begin, $11 where they end; null for none
-- $12 when the transaction of the reading began, as in swap.sql
with h as materialized (
    select l.*, pg_catalog.count(*) over (partition by l.in_group) as locked
      from (
          select r.tableoid as of, r.ctid as tid, w.value, w.ts, w.full_at, w.in_group, w.size,
                 ($9::int8[])[w.first : w.last] as list
            from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version,
                         pg_catalog.unnest(p.amounts) as value, pg_catalog.unnest(p.instants) as ts,
                         pg_catalog.unnest(p.full_at) as full_at, pg_catalog.unnest(p.groups) as in_group,
                         pg_catalog.unnest(p.sizes) as size, pg_catalog.unnest(p.firsts) as first,
                         pg_catalog.unnest(p.lasts) as last
                    from (select $2::text[]::tid[] as tids, $3::text[] as versions, $4::int8[] as amounts,
                                 $5::timestamptz[] as instants, $6::timestamptz[] as full_at, $7::int4[] as groups,
                                 $8::int8[] as sizes, $10::int4[] as firsts, $11::int4[] as lasts
                           where pg_catalog.now() is distinct from $12::timestamptz offset 0) p) w
            join tollgate.durable r on r.part = $1 and r.ctid = w.tid
             and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
           where w.in_group between 0 and 2147483647
             for no key update of r skip locked
      ) l
)
update tollgate.durable r
   set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
  from h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of and h.locked = h.size
returning h.in_group as "in_group!"
