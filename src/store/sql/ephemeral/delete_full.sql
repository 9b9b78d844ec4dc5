-- Generated from ../delete_full.sql by `./dev sqlx`.
with relaxed as materialized (
    select pg_catalog.set_config('synchronous_commit', 'off', true) as commit
),
held as materialized (
    select r.tableoid as of, r.ctid as tid
      from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version
              from (select $1::text[]::tid[] as tids, $2::text[] as versions offset 0) p) w
      join tollgate.ephemeral r on r.ctid = w.tid
       and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
     where (select commit from relaxed) = 'off'
       for update of r skip locked
)
delete from tollgate.ephemeral r
 using held h
 where r.ctid = h.tid and r.tableoid = h.of
returning 1 as "deleted!"
