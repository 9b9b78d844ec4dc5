-- Writes rows that still are the versions that were read and that nobody holds, each for itself. Needs no transaction
-- around it, and waits for nobody, so it can neither hang nor deadlock. Returns the group of each row that was written.
--
-- Every group is in the range that is asked for. It makes the planner reckon with one row, and so find each row by its
-- place instead of reading the table.
--
-- A row's place, its writer and its file are its identity: the writer is the transaction that wrote this version. An
-- update moves the row, and the new version has another writer. `vacuum full` keeps writers, and makes another file.
--
-- $1 part, $2 places, $3 the writer and the file of each
-- $4 micro-tokens, $5 instants, $6 when each will be full, $7 the group of each row
-- $8 when the transaction of the reading began: writes nothing if this is the same one, which somebody left open
update tollgate.durable r
   set value = h.value, ts = h.ts, full_at = h.full_at
  from (
      select r.tableoid as of, r.ctid as tid, w.value, w.ts, w.full_at, w.in_group
        from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version,
                     pg_catalog.unnest(p.amounts) as value, pg_catalog.unnest(p.instants) as ts,
                     pg_catalog.unnest(p.full_at) as full_at, pg_catalog.unnest(p.groups) as in_group
                from (select $2::text[]::tid[] as tids, $3::text[] as versions, $4::int8[] as amounts,
                             $5::timestamptz[] as instants, $6::timestamptz[] as full_at, $7::int4[] as groups
                       where pg_catalog.now() is distinct from $8::timestamptz offset 0) p) w
        join tollgate.durable r on r.part = $1 and r.ctid = w.tid
         and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
       where w.in_group between 0 and 2147483647
         for no key update of r skip locked
  ) h
 where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of
returning h.in_group as "in_group!"
