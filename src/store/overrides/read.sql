-- All of tollgate.overrides, and its stamp (stamp.sql) by the same snapshot: one row at least. An end that is null
-- never comes.
select s.now,
       s.rows,
       s.versions,
       o.name,
       o.key,
       o.effect,
       o.kind,
       o.rate,
       o.period,
       o.capacity,
       o.max_reserved,
       (extract(epoch from o.starts_at) * 1000000::numeric)::int8      as starts_at,
       case when pg_catalog.isfinite(o.ends_at)
            then (extract(epoch from o.ends_at) * 1000000::numeric)::int8 end as ends_at,
       o.reason,
       o.set_by,
       (extract(epoch from o.set_at) * 1000000::numeric)::int8         as set_at
  from (select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000::numeric)::int8 as now,
               pg_catalog.count(*)                                                as rows,
               coalesce(pg_catalog.sum(o.xmin::text::int8), 0)::int8              as versions
          from tollgate.overrides o) s
  left join tollgate.overrides o on true
