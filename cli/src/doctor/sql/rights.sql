-- The rights that a role lacks, or the caller's own for null: each object, its missing rights, and the option of
-- `tollgate migrate up` that grants them, if one does. A caller of the functions alone needs no right on the tables; a
-- role that has none on either is taken for a service. It goes by oid, because naming a table takes the right to the
-- schema.
--
-- $1 role, $2 names of the functions that ask, $3 of those that give, $4 of those that report
with tables as (
    select c.oid, n.nspname || '.' || c.relname as name, p.name as verb, p.place,
           has_table_privilege(coalesce($1, current_user), c.oid, p.name) as is_granted
      from pg_namespace n
      join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p')
       and c.relname in ('ephemeral', 'durable', 'calls', 'overrides')
     cross join unnest(array['select', 'insert', 'update', 'delete']) with ordinality as p (name, place)
     where n.nspname = 'tollgate'
       and (p.name = 'select' or c.relname <> 'overrides')
),
functions as (
    select s.option, n.nspname || '.' || p.proname as name,
           exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                    where a.grantee = 0 or pg_has_role(coalesce($1, current_user), a.grantee, 'usage')) as is_granted
      from pg_namespace n
      join pg_proc p on p.pronamespace = n.oid
      join (values ('--grant', $2), ('--grant-operator', $3), ('--grant-reporter', $4)) s (option, names)
        on p.proname = any (s.names)
     where n.nspname = 'tollgate'
),
caller as (
    select f.option
      from functions f
     where f.is_granted and not exists (select from tables t where t.is_granted)
     group by f.option
)
select 'schema ' || n.nspname as object, 'usage' as rights, '' as option
  from pg_namespace n
 where n.nspname = 'tollgate'
   and not has_schema_privilege(coalesce($1, current_user), n.oid, 'usage')
 union all
select t.name, string_agg(t.verb, ', ' order by t.place), ''
  from tables t
 where not t.is_granted and not exists (select from caller)
 group by t.name
 union all
select distinct 'function ' || f.name, 'execute', f.option
  from functions f
  join caller c on c.option = f.option
 where not f.is_granted
 order by object
