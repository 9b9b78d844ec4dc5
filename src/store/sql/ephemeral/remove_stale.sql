-- Generated from ../remove_stale.sql by `./dev sqlx`.
delete from tollgate.ephemeral r
 using (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
               pg_catalog.unnest(p.shards) as shards
          from (select $2::text[] as names, $3::text[] as keys, $4::int2[] as shards offset 0) p) w
 where r.part = $1 and r.name = w.name and r.key = w.key and r.shard >= w.shards
   and (array['on', 'row security hides rows of tollgate.ephemeral'])[
           1 + pg_catalog.row_security_active('tollgate.ephemeral'::regclass)::int4
       ]::bool
