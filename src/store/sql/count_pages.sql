-- How many pages tollgate.buckets and tollgate.rate_limits have.
select pg_catalog.pg_relation_size('tollgate.buckets') / s.page     as "buckets!",
       pg_catalog.pg_relation_size('tollgate.rate_limits') / s.page as "rate_limits!"
  from (select pg_catalog.current_setting('block_size')::int8 as page) s
