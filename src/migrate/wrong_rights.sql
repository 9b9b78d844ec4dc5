-- The rights that nobody should have, and the statements that revoke them: all rights of PUBLIC, and of everybody but
-- the owner the rights to call functions that only other functions call, and to make objects in the schema. Of objects
-- that this run has made, also every right of everybody else: only default privileges can have given it. If no right on
-- a function was ever granted or revoked, PUBLIC may execute it. The schema and the tables may have different owners.
-- Rights on what a stranger owns, or an extension has made, are not ours to revoke.
--
-- First, without a remedy, functions of others beside ours of the same name: our functions may call them, as the owner.
with recursive {trusted}
select pg_catalog.concat(pg_catalog.pg_get_userbyid(p.proowner)::text, ' has made ', p.oid::regprocedure::text,
                         ' beside a function of tollgate (drop it)') as message,
       null as remedy, null as owner, null as grantor
  from pg_catalog.pg_proc p
  join pg_catalog.pg_proc o on o.pronamespace = p.pronamespace and o.proname = p.proname
  join pg_catalog.pg_proc ours on ours.proname = '_parts'::name and ours.pronargs = 0::int2
   and ours.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
 where p.pronamespace = ours.pronamespace and p.proowner <> ours.proowner and o.proowner = ours.proowner
 union all
(select pg_catalog.concat(g.name, ' has ', a.privilege_type, ' on ', o.name),
       pg_catalog.concat('revoke ', a.privilege_type, ' on ', o.object, ' from ', g.name, ' cascade'),
       pg_catalog.pg_get_userbyid(o.owner)::text, pg_catalog.pg_get_userbyid(a.grantor)::text
  from (
      select 'schema tollgate' as object, 'schema tollgate' as name, n.nspowner as owner, n.nspacl as acl,
             false as is_internal, false as is_new
        from pg_catalog.pg_namespace n
       where n.nspname = 'tollgate'::name
       union all
      select pg_catalog.concat('routine ', p.oid::regprocedure::text), 'tollgate.' || p.proname::text, p.proowner,
             coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner)), pg_catalog.starts_with(p.proname::text, '_'),
             {p_is_new}
        from pg_catalog.pg_proc p
       where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
         and not exists (select from pg_catalog.pg_depend d
                          where d.classid = 'pg_catalog.pg_proc'::regclass::oid and d.objid = p.oid
                            and d.deptype = 'e'::"char")
       union all
      select pg_catalog.concat('table ', c.oid::regclass::text), 'tollgate.' || c.relname::text, c.relowner,
             t.acl, false, {c_is_new}
        from pg_catalog.pg_class c
       cross join lateral (
           select c.relacl as acl
            union all
           select a.attacl from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attacl is not null
       ) t
       where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
         and c.relkind in ('r'::"char", 'p'::"char", 'v'::"char")
         and not exists (select from pg_catalog.pg_depend d
                          where d.classid = 'pg_catalog.pg_class'::regclass::oid and d.objid = c.oid
                            and d.deptype = 'e'::"char")
  ) o
 cross join lateral pg_catalog.aclexplode(o.acl) a
 cross join lateral (
     select case when a.grantee = 0::oid then 'PUBLIC'
                 else pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)::text) end as name
 ) g
 where a.grantee <> o.owner and o.owner in (select t.oid from trusted t)
   and case a.privilege_type
           when 'USAGE'::text then false
           when 'CREATE'::text then not exists (select from trusted t
                                                  join pg_catalog.pg_roles r on r.oid = t.oid
                                                  left join pg_catalog.pg_class c
                                                    on c.relname = 'durable'::name
                                                   and c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
                                                 where t.oid = a.grantee
                                                   and (r.rolname = current_user or c.relowner = r.oid))
           else a.grantee = 0::oid or o.is_internal or o.is_new end
 order by o.name collate "C", a.privilege_type collate "C", g.name collate "C")
