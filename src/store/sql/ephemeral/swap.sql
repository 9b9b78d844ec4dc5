-- Generated from ../swap.sql by `./dev sqlx`.
update tollgate.ephemeral r
   set value = h.value, ts = h.ts, full_at = h.full_at
  from (
      select r.tableoid as of, r.ctid as tid, w.value, w.ts, w.full_at, w.in_group
        from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version,
                     pg_catalog.unnest(p.amounts) as value, pg_catalog.unnest(p.instants) as ts,
                     pg_catalog.unnest(p.full_at) as full_at, pg_catalog.unnest(p.groups) as in_group
                from (select $2::text[]::tid[] as tids, $3::text[] as versions, $4::int8[] as amounts,
                             $5::timestamptz[] as instants, $6::timestamptz[] as full_at, $7::int4[] as groups
                       where pg_catalog.now() is distinct from $8::timestamptz offset 0) p) w
        join tollgate.ephemeral r on r.part = $1 and r.ctid = w.tid
         and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
       where w.in_group between 0 and 2147483647
         for no key update of r skip locked
  ) h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
returning h.in_group as "in_group!"
