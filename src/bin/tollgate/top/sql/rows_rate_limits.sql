-- The rows of tollgate.rate_limits that matter most: those that take longest to be full, those that were written last, and those that
-- owe most. Only rows that are not full by their own word, and only some of the pages where the table is large: the same ones each
-- time, so that two looks can be compared.
--
-- $1 the share of the pages to look at, in percent; $2 how many rows of each sort
with sampled as not materialized (
    select name, key, shard, value, ts, full_at, xmin
      from tollgate.rate_limits tablesample system ($1) repeatable (0)
     where full_at > pg_catalog.clock_timestamp()
)
select name,
       key,
       shard,
       value                                                                                        as micros,
       (extract(epoch from ts) * 1000000)::int8                                                     as since,
       (extract(epoch from least(full_at, timestamptz '262142-01-01 00:00:00+00')) * 1000000)::int8 as full_at,
       xmin::text                                                                                   as version
  from (
      (select * from sampled order by full_at desc limit $2)
      union
      (select * from sampled order by pg_catalog.age(xmin) limit $2)
      union
      (select * from sampled where value < 0 order by value limit $2)
  ) r
