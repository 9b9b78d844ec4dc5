-- Our tables with row security that applies to a role (null for the caller's own), or to their owner, as whom the
-- functions run; and whether it applies to the role.
--
-- $1 role
select t.name, quote_ident(r.rolname), t.is_hidden
  from pg_namespace n
  join pg_class c on c.relnamespace = n.oid and c.relrowsecurity
   and c.relname in ('ephemeral', 'durable', 'calls', 'limits', 'overrides', 'schema_history')
  join pg_roles r on r.rolname = coalesce($1, current_user)
  join pg_roles o on o.oid = c.relowner
 cross join lateral (
     select n.nspname || '.' || c.relname as name,
            not (r.rolsuper or r.rolbypassrls
                 or not c.relforcerowsecurity and pg_has_role(r.oid, c.relowner, 'usage')) as is_hidden
 ) t
 where n.nspname = 'tollgate'
   and (t.is_hidden or c.relforcerowsecurity and not (o.rolsuper or o.rolbypassrls))
 order by t.name
