-- All of tollgate.overrides, and its stamp (stamp.sql) by the same snapshot: one row at least. row.sql goes on.
with said as (
    select s.now, s.rows, s.versions, o.*
      from (select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000::numeric)::int8 as now,
                   pg_catalog.count(*)                                                as rows,
                   coalesce(pg_catalog.bit_xor(pg_catalog.hash_record_extended(
                       row(o.name, o.key, o.label, o.xmin::text), 0::int8)), 0::int8) as versions
              from tollgate.overrides o
            having case when pg_catalog.row_security_active('tollgate.overrides'::regclass)
                        then 'row security hides rows of tollgate.overrides' else 'on' end::bool) s
      left join tollgate.overrides o on true)
select said.now, said.rows, said.versions,
