-- The rights of roles that default privileges gave, or would give to what a migration makes: what they are, and the
-- statements that revoke them.
with recursive {trusted},
objects (kind, noun, id, name, owner, acl) as (
    select 'f'::"char", 'routine', p.oid, p.proname::text, p.proowner, p.proacl
      from pg_catalog.pg_proc p
     where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid
     union all
    select 'r'::"char", 'table', c.oid, c.relname::text, c.relowner, c.relacl
      from pg_catalog.pg_class c
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
       and c.relkind = any ('{r,p,v}'::"char"[])
),
given as (
    select o.noun, o.owner, d.defaclnamespace <> 0::oid as in_schema, a.privilege_type as right, a.grantee,
           pg_catalog.string_agg('tollgate.' || pg_catalog.quote_ident(o.name), ', ' order by o.name) as names
      from objects o
     cross join lateral pg_catalog.aclexplode(o.acl) a
      join pg_catalog.pg_default_acl d on d.defaclrole = o.owner and d.defaclobjtype = o.kind
       and d.defaclnamespace in (0::oid, pg_catalog.to_regnamespace('tollgate')::oid)
     where a.grantee not in (0::oid, o.owner) and o.owner in (select t.oid from trusted t)
       and exists (select from pg_catalog.aclexplode(d.defaclacl) e
                    where e.grantee = a.grantee and e.privilege_type = a.privilege_type)
     group by 1, 2, 3, 4, 5
)
select pg_catalog.concat(g.grantee, ' has ', g.rights, ' on ', g.names, ' by default privileges of ', g.owner) as what,
       pg_catalog.concat('alter default privileges for role ', g.owner, g.place, ' revoke ', g.rights, ' on ', g.noun,
                         's from ', g.grantee, '; revoke ', g.rights, ' on ', g.noun, ' ', g.names, ' from ',
                         g.grantee, ' cascade') as remedy
  from (
      select pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(g.grantee)::text) as grantee,
             pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(g.owner)::text) as owner,
             case when g.in_schema then ' in schema tollgate' end as place, g.noun, g.names,
             pg_catalog.string_agg(g.right, ', ' order by g.right) as rights
        from given g
       group by g.grantee, g.owner, g.in_schema, g.noun, g.names
  ) g
 order by g.grantee collate "C", g.noun, g.names collate "C"
