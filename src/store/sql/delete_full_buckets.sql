-- Deletes rows of tollgate.buckets that still are the very versions that were found, and leaves alone what has changed, is gone
-- or is locked. Waits for no row, so it can neither block a decision for longer than it takes nor deadlock.
--
-- Its commit is not waited for on disk: a row that comes back after a crash says what its absence said.
--
-- $1 places, $2 the transaction that wrote each version
with relaxed as materialized (
    select pg_catalog.set_config('synchronous_commit', 'off', true) as commit
),
held as materialized (
    select r.tableoid as of, r.ctid as tid
      from unnest((select $1::text[]::tid[]), (select $2::text[]::xid[])) as w (tid, version)
      join tollgate.buckets r on r.ctid = w.tid and r.xmin = w.version
     where (select commit from relaxed) = 'off'
       for update of r skip locked
)
delete from tollgate.buckets r
 using held h
 where r.ctid = h.tid and r.tableoid = h.of
