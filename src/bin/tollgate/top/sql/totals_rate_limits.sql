-- How many rows of tollgate.rate_limits are not full by their own word, hold less than one token, and owe; and how much they owe.
--
-- $1 the share of the pages to look at, in percent
select count(*)                                                            as wanting,
       count(*) filter (where value < 1000000)                             as low,
       count(*) filter (where value < 0)                                   as owing,
       coalesce(sum(-(value::float8)) filter (where value < 0), 0)::float8 as owed
  from tollgate.rate_limits tablesample system ($1) repeatable (0)
 where full_at > pg_catalog.clock_timestamp()
