-- What strangers may leave in a schema of somebody's search path: a function or an operator that fits the types of a
-- call better than the one in pg_catalog, which then needs a cast. Nobody may execute them, so that a statement that
-- names one fails even where it finds no row.
--
-- {called} stands for the names of functions to lay out, those in our sources. Those that pg_catalog has with the very
-- same types are only called by whoever names pg_catalog late in the search path.

create schema strangers;
grant usage on schema strangers to public;

do $$
declare
    types constant oid[] := array[
        'int2', 'int4', 'int8', 'numeric', 'float4', 'float8', 'oid', 'regclass', 'regnamespace', 'text', 'name', 'varchar', 'timestamptz', 'timestamp',
        'date', 'interval', 'bool', 'xid', 'tid', 'int2[]', 'int4[]', 'int8[]', 'text[]', 'name[]', 'timestamptz[]', 'tid[]',
        'xid[]'
    ]::regtype[];
    script text;
begin
    -- The functions under their own types, and with each of them exchanged for one that is cast to it.
    with known as (
        select p.proname as name, array(select a.type from unnest(p.proargtypes) with ordinality a (type, place)
                                         order by a.place) as args
          from pg_proc p
         where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any ({called})
    ),
    laid as (
        select name, args from known
         union
        select k.name, k.args[:place - 1] || t.type || k.args[place + 1:]
          from known k
         cross join generate_subscripts(k.args, 1) place
         cross join unnest(types) t (type)
         where exists (select from pg_cast c
                        where c.castsource = t.type and c.casttarget = k.args[place] and c.castcontext = 'i')
            or k.args[place] in ('"any"'::regtype, 'anyelement'::regtype, 'anynonarray'::regtype)
            or k.args[place] = 'anyarray'::regtype and exists (select from pg_type where oid = t.type and typcategory = 'A')
    )
    select string_agg(format('create function strangers.%I(%s) returns bool language plpgsql as ''begin end'';',
                             name, (select string_agg(a::regtype::text, ', ') from unnest(args) a)), '')
      into script
      from laid
     where not exists (select from unnest(args) a
                       where a in ('"any"'::regtype, 'internal'::regtype) or a::regtype::text = 'cstring');
    execute script;

    -- The operators for each two types between which one is cast, where pg_catalog has none for just these.
    with pairs as (
        select l.oid as l, r.oid as r
          from pg_type l, pg_type r
         where l.oid = any (types) and r.oid = any (types)
           and (l.typcategory = r.typcategory or concat(l.typcategory, r.typcategory) in ('DT', 'TD', 'UN', 'NU', 'NT', 'TN'))
         union all
        select 0, unnest(types)
    )
    select string_agg(distinct format('create function strangers.operate(%s) returns bool language plpgsql as ''begin end'';',
                                      concat_ws(', ', nullif(l, 0)::regtype, r::regtype)), '')
           || string_agg(format('create operator strangers.%s (%srightarg = %s, function = strangers.operate);',
                                o, 'leftarg = ' || nullif(l, 0)::regtype || ', ', r::regtype), '')
      into script
      from pairs, unnest(array['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '%', '||', '~~', '!~~']) o
     where not exists (select from pg_operator where oprname = o and oprleft = l and oprright = r)
       and (l <> 0 or o in ('+', '-'));
    execute script;
end
$$;

revoke execute on all functions in schema strangers from public;
