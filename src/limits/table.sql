-- Reads all definitions. In the simple protocol, which poolers never take apart.
select d.name, d.kind, d.rate, d.period, d.capacity, d.max_reserved, d.start, d.resolution, d.shards, d.storage
  from tollgate.limits d
 order by d.name
