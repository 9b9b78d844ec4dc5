-- The rights of roles on the schema: to ask, to give, to report, to write rows, to read keys. The owner of an object
-- has all rights on it, and each member of a role has the rights of the role. Administrators, who may do everything
-- everywhere, are left out. Functions of others are none of ours, unless they have a name of ours. A role that
-- holds a shard asks and gives nothing.
with granted as (
    select case when p.proname::text = any ('{{asking}}'::text[]) then 'ask'
                when p.proname::text = any ('{{reporting}}'::text[]) then 'report' else 'give' end as may,
           p.proowner as owner, a.grantee, a.privilege_type as right
      from pg_catalog.pg_proc p
     cross join lateral pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
     where p.pronamespace = pg_catalog.to_regnamespace('tollgate')::oid and p.proname <> 'hold_shard'::name
       and (p.proname::text = any ('{{names}}'::text[])
            or p.proowner in (select c.relowner from pg_catalog.pg_class c
                               where c.relnamespace = p.pronamespace and c.relname = 'durable'::name))
     union all
    select 'give', n.nspowner, a.grantee, a.privilege_type
      from pg_catalog.pg_namespace n
     cross join lateral pg_catalog.aclexplode(coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner))) a
     where n.nspname = 'tollgate'::name and a.privilege_type = 'CREATE'::text
     union all
    -- A right on one column of a table counts, too, but a column with a name other than these shows no key. A trigger
    -- runs as whoever writes, and the check of a foreign key as the table's owner: both run code of who has made them.
    select case when a.privilege_type = 'SELECT'::text then 'read'
                when c.relname::text = any ('{limits, overrides}'::text[])
                     or a.privilege_type = any ('{TRIGGER, REFERENCES}'::text[]) then 'give' else 'write' end,
           c.relowner, a.grantee, a.privilege_type
      from pg_catalog.pg_class c
     cross join lateral (
         select coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner)) as acl, 'key' as column
          union all
         select t.attacl, t.attname::text
           from pg_catalog.pg_attribute t
          where t.attrelid = c.oid and t.attacl is not null
     ) t
     cross join lateral pg_catalog.aclexplode(t.acl) a
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid
       and (a.privilege_type = any ('{TRIGGER, REFERENCES}'::text[])
            or c.relname::text = any ('{ephemeral, durable, calls, limits, overrides, balances}'::text[]))
       and case a.privilege_type
               when 'SELECT'::text then c.relname::text <> 'limits'::text and t.column = any ('{key, id}'::text[])
               else c.relname::text <> 'balances'::text
                    and a.privilege_type = any ('{INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER, REFERENCES}'::text[]) end
),
holders as (
    select g.may, g.grantee from granted g
     union
    select g.may, g.owner from granted g
     union
    -- The owner of a trigger's function may have had the right to make the trigger.
    select 'give', p.proowner
      from pg_catalog.pg_trigger t
      join pg_catalog.pg_class c on c.oid = t.tgrelid
      join pg_catalog.pg_proc p on p.oid = t.tgfoid
     where c.relnamespace = pg_catalog.to_regnamespace('tollgate')::oid and not t.tgisinternal
     union
    select d.may, pg_catalog.to_regrole(d.role)::oid
      from (values ('give', 'pg_write_all_data'), ('write', 'pg_write_all_data'), ('read', 'pg_read_all_data'))
           d (may, role)
)
select h.may, 'PUBLIC' as role
  from holders h
 where h.grantee = 0::oid
 union
select h.may, pg_catalog.quote_ident(r.rolname::text)
  from holders h
  join pg_catalog.pg_roles r on pg_catalog.pg_has_role(r.oid, h.grantee, 'member')
 where h.grantee <> 0::oid and not r.rolsuper and not pg_catalog.starts_with(r.rolname::text, 'pg_')
 order by 1, 2
