-- The role that owns most of the tables, if this role can make neither the schema nor anything in it: such a role only
-- looks, and has to take the owner as given. For a role that could migrate, `tollgate migrate up` decides.
select pg_catalog.pg_get_userbyid(pg_catalog.mode() within group (order by c.relowner))::pg_catalog.text
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
  join pg_catalog.pg_roles r on r.rolname operator(pg_catalog.=) current_user
 where n.nspname operator(pg_catalog.=) 'tollgate'::pg_catalog.name
   and c.relname operator(pg_catalog.=) any ('{ephemeral,durable,calls,limits,overrides,balances,schema_history}'
                                             ::pg_catalog.name[])
   and not r.rolsuper
   and not pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create')
   and not pg_catalog.has_schema_privilege(n.oid, 'create')
