-- Deletes calls, for a transaction that has locked them, if they are as they were read; see use_calls.sql.
--
-- $1 part, $2 names, $3 keys, $4 ids, $5 the instants of the decisions, $6 micro-tokens that were reported as used
delete from tollgate.calls c
 using (
      select f.tid, f.of
        from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                     pg_catalog.unnest(p.ids) as id, pg_catalog.unnest(p.charged_at) as charged_at,
                     pg_catalog.unnest(p.reported) as reported
                from (select $2::text[] as names, $3::text[] as keys, $4::text[] as ids,
                             $5::timestamptz[] as charged_at, $6::int8[] as reported offset 0) p) w
       cross join lateral (
           select c.tableoid as of, c.ctid as tid
             from tollgate.calls c
            where c.part = $1 and c.name = w.name and c.key = w.key and c.id = w.id
              and c.charged_at = w.charged_at and c.reported = w.reported
           offset 0
       ) f
       where w.id > ''
  ) h
 where c.part = $1 and c.ctid = h.tid and c.tableoid = h.of and not c.used
returning 1 as "written!"
