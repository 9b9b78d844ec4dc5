-- How many pages each table has.
select pg_catalog.pg_relation_size('tollgate.ephemeral') / s.page as "ephemeral!",
       pg_catalog.pg_relation_size('tollgate.durable') / s.page   as "durable!",
       pg_catalog.pg_relation_size('tollgate.calls') / s.page     as "calls!"
  from (select pg_catalog.current_setting('block_size')::int8 as page) s
