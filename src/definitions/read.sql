-- Reads all definitions. In the simple protocol, which poolers never take apart.
with d as materialized (select * from tollgate.limits)
select d.name, d.kind, d.rate, d.period, d.capacity, d.max_reserved, d.start, d.resolution, d.shards, d.storage
  from d
 where case when pg_catalog.row_security_active('tollgate.limits'::regclass)
            then 'row security hides rows of tollgate.limits' else 'on' end::bool
 order by d.name
