-- Whether this node holds a shard as Citus holds it for each write: by a share lock of class 8. Runs in a transaction.
--
-- $1 the shard, $2 the node
select h.is_held and exists (
           select from pg_catalog.pg_locks l
            where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'advisory'::text and l.objsubid = 8::int2
              and l.mode = 'ShareLock'::text and l.granted)
  from (select tollgate.hold_shard($1::int8, $2::int4) as is_held offset 0) h
