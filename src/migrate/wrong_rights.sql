-- The rights that nobody should have, and the statements that revoke them: all rights of PUBLIC, and of everybody but
-- the owner the rights to call functions that only other functions call, and to make objects in the schema. If no right
-- on a function was ever granted or revoked, PUBLIC may execute it. The schema and the tables may have different
-- owners.
--
-- First, without a remedy, functions of others beside ours of the same name: our functions may call them, as the owner.
select pg_catalog.concat(pg_catalog.pg_get_userbyid(p.proowner)::text, ' has made ', p.oid::regprocedure::text,
                         ' beside a function of tollgate (drop it)') as message,
       null as remedy, null as owner, null as grantor
  from pg_catalog.pg_proc p
  join pg_catalog.pg_proc o on o.pronamespace = p.pronamespace and o.proname = p.proname
  join pg_catalog.pg_proc ours on ours.oid = pg_catalog.to_regprocedure('tollgate._parts()')::oid
 where p.pronamespace = ours.pronamespace and p.proowner <> ours.proowner and o.proowner = ours.proowner
 union all
(select pg_catalog.concat(g.name, ' has ', a.privilege_type, ' on ', o.name),
       pg_catalog.concat('revoke ', a.privilege_type, ' on ', o.object, ' from ', g.name, ' cascade'),
       pg_catalog.pg_get_userbyid(o.owner)::text, pg_catalog.pg_get_userbyid(a.grantor)::text
  from (
      select 'schema tollgate' as object, 'schema tollgate' as name, n.nspowner as owner, n.nspacl as acl,
             false as is_internal
        from pg_catalog.pg_namespace n
       where n.nspname = 'tollgate'::name
       union all
      select pg_catalog.concat('function ', p.oid::regprocedure::text), 'tollgate.' || p.proname::text, p.proowner,
             coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)), pg_catalog.starts_with(p.proname::text, '_')
        from pg_catalog.pg_proc p
       where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
       union all
      select pg_catalog.concat('table ', c.oid::regclass::text), 'tollgate.' || c.relname::text, c.relowner,
             t.acl, false
        from pg_catalog.pg_class c
       cross join lateral (
           select c.relacl as acl
            union all
           select a.attacl from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attacl is not null
       ) t
       where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
         and c.relkind in ('r'::"char", 'p'::"char", 'v'::"char")
  ) o
 cross join lateral pg_catalog.aclexplode(o.acl) a
 cross join lateral (
     select case when a.grantee = 0::oid then 'PUBLIC'
                 else pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::text) end as name
 ) g
 where a.grantee <> o.owner
   and case a.privilege_type
           when 'USAGE'::text then false
           when 'CREATE'::text then not exists (select from pg_catalog.pg_class c
                                                 where c.oid = pg_catalog.to_regclass('tollgate.durable')::oid
                                                   and c.relowner = a.grantee)
           else a.grantee = 0::oid or o.is_internal end
 order by o.name collate "C", a.privilege_type collate "C", g.name collate "C")
