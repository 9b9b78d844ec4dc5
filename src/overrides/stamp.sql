-- The clock, and what changes whenever a row of tollgate.overrides does: each version of a row has a
-- transaction of its own. Their sum does not tell: one that began early and ends late lowers it.
select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000::numeric)::int8 as now,
       pg_catalog.count(*)                                                as rows,
       coalesce(pg_catalog.bit_xor(
           pg_catalog.hash_record_extended(row(o.name, o.key, o.label, o.xmin::text), 0::int8)), 0::int8) as versions
  from tollgate.overrides o
having case when pg_catalog.row_security_active('tollgate.overrides'::regclass)
            then 'row security hides rows of tollgate.overrides' else 'on' end::bool
