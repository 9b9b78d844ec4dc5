-- The roles whose objects count as tollgate's own: the one that migrates, those that it is a member of, an owner that
-- was named, and administrators, who may do everything anyway. To `pg_has_role` an administrator is a member of every
-- role, so the memberships are read. A membership that only lets its holder manage a role (PostgreSQL 16) counts for
-- nothing: whoever creates roles has it of each of them.
member as (
    select r.oid from pg_catalog.pg_roles r where r.rolname = current_user
     union
    select e.roleid
      from member m
      join (select a.roleid, a.member
              from pg_catalog.pg_auth_members a
             cross join lateral (select pg_catalog.to_jsonb(a.*) as options) o
             where coalesce((o.options ->> 'inherit_option')::bool or (o.options ->> 'set_option')::bool, true)
             union all
            select pg_catalog.to_regrole('pg_database_owner')::oid, d.datdba
              from pg_catalog.pg_database d
             where d.datname = pg_catalog.current_database()) e on e.member = m.oid
),
trusted as (
    select m.oid from member m
     union
    select r.oid from pg_catalog.pg_roles r where r.rolsuper or r.rolname::text = {owner}
)
