-- How many rows of tollgate.buckets are not full by their own word, hold less than one token, and owe; and how much they owe.
--
-- $1 the share of the pages to look at, in percent
select count(*)                                                              as wanting,
       count(*) filter (where tokens < 1000000)                              as low,
       count(*) filter (where tokens < 0)                                    as owing,
       coalesce(sum(-(tokens::float8)) filter (where tokens < 0), 0)::float8 as owed
  from tollgate.buckets tablesample system ($1) repeatable (0)
 where expires_at > pg_catalog.clock_timestamp()
