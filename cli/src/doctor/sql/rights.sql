-- What a role, or null for one's own, may not do that the service needs: each object, and the rights that are missing.
-- By oid: to name a table takes the right to the schema.
--
-- $1 role
select 'schema ' || n.nspname as object, 'usage' as rights
  from pg_namespace n
 where n.nspname = 'tollgate'
   and not has_schema_privilege(coalesce($1, current_user), n.oid, 'usage')
 union all
select n.nspname || '.' || c.relname, string_agg(p.name, ', ' order by p.place)
  from pg_namespace n
  join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p')
   and c.relname not in ('limits', 'schema_history')
 cross join unnest(array['select', 'insert', 'update', 'delete']) with ordinality as p (name, place)
 where n.nspname = 'tollgate'
   and (p.name = 'select' or c.relname <> 'overrides')
   and not has_table_privilege(coalesce($1, current_user), c.oid, p.name)
 group by n.nspname, c.relname
 order by object
