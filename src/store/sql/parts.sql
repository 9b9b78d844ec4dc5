-- Over how many parts the tables are distributed: N, where the CHECK lets parts from 8N to 16N - 1 in; 0 on plain
-- PostgreSQL. Looked up by names: `to_regclass` demands a right on the schema.
select coalesce(pg_catalog.max(
           pg_catalog.substring(pg_catalog.pg_get_constraintdef(c.oid), '>= ([0-9]+)')::int4), 0) / 8
  from pg_catalog.pg_constraint c
  join pg_catalog.pg_class r on r.oid = c.conrelid
  join pg_catalog.pg_namespace n on n.oid = r.relnamespace
 where n.nspname = 'tollgate' and r.relname = 'durable' and c.conname = 'durable_part'
