-- The clock, and what changes whenever a row of tollgate.overrides does: as many rows have a larger sum of transactions
-- once one is new.
select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000::numeric)::int8 as now,
       pg_catalog.count(*)                                                as rows,
       coalesce(pg_catalog.sum(o.xmin::text::int8), 0)::int8              as versions
  from tollgate.overrides o
