-- What a role, or null for one's own, may not do that the service needs. By oid: to name a table takes the right to the schema.
--
-- $1 role
select n.oid::regnamespace::text as schema, null as "table", 'usage' as privilege
  from pg_namespace n
 where n.nspname = 'tollgate'
   and not has_schema_privilege(coalesce($1, current_user), n.oid, 'usage')
 union all
select n.nspname::text, c.relname::text, p.name
  from pg_namespace n
  join pg_class c on c.relnamespace = n.oid and c.relname in ('buckets', 'rate_limits', 'reservations')
 cross join unnest(array['select', 'insert', 'update', 'delete']) as p (name)
 where n.nspname = 'tollgate'
   and not has_table_privilege(coalesce($1, current_user), c.oid, p.name)
 order by 2 nulls first
