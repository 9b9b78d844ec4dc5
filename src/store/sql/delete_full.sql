-- Deletes rows that still are the versions that were found, and leaves alone what has changed, is gone or is locked.
-- Waits for no row, so it can neither block a decision for longer than it takes nor deadlock.
--
-- Its commit does not wait for the disk: a row that comes back after a crash is full, as a missing one.
--
-- $1 places, $2 the writer and the file of each
with relaxed as materialized (
    select pg_catalog.set_config('synchronous_commit', 'off', true) as commit
),
held as materialized (
    select r.tableoid as of, r.ctid as tid
      from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version
              from (select $1::text[]::tid[] as tids, $2::text[] as versions offset 0) p) w
      join tollgate.durable r on r.ctid = w.tid
       and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
     where (select commit from relaxed) = 'off'
       for update of r skip locked
)
delete from tollgate.durable r
 using held h
 where r.ctid = h.tid and r.tableoid = h.of
returning 1 as "deleted!"
