-- Generated from ../swap_calls.sql by `./dev sqlx`.
with h as materialized (
    select r.tableoid as of, r.ctid as tid, w.value, w.ts, w.full_at, w.in_group,
           ($8::int8[])[w.first : w.last] as list
      from (select pg_catalog.unnest(p.tids) as tid, pg_catalog.unnest(p.versions) as version,
                   pg_catalog.unnest(p.amounts) as value, pg_catalog.unnest(p.instants) as ts,
                   pg_catalog.unnest(p.full_at) as full_at,
                   pg_catalog.unnest(p.groups) as in_group, pg_catalog.unnest(p.firsts) as first,
                   pg_catalog.unnest(p.lasts) as last
              from (select $2::text[]::tid[] as tids, $3::text[] as versions, $4::int8[] as amounts,
                           $5::timestamptz[] as instants, $6::timestamptz[] as full_at,
                           $7::int4[] as groups, $9::int4[] as firsts, $10::int4[] as lasts
                     where pg_catalog.now() is distinct from $30::timestamptz offset 0) p) w
      join tollgate.ephemeral r on r.part = $1 and r.ctid = w.tid
       and r.xmin::text || '/' || pg_catalog.pg_relation_filenode(r.tableoid)::text = w.version
     where w.in_group between 0 and 2147483647
       for no key update of r skip locked
),
held as materialized (
    select w.in_group, w.rows, w.calls
      from (select pg_catalog.unnest(p.groups) as in_group, pg_catalog.unnest(p.rows) as rows,
                   pg_catalog.unnest(p.calls) as calls
              from (select $11::int4[] as groups, $12::int8[] as rows, $13::int8[] as calls
                     where pg_catalog.now() is distinct from $30::timestamptz offset 0) p) w
      left join (select h.in_group, pg_catalog.count(*) as locked from h group by h.in_group) r
        on r.in_group = w.in_group
     where coalesce(r.locked, 0) = w.rows
),
c as materialized (
    select c.tableoid as of, c.ctid as tid, u.in_group, u.is_kept
      from (select w.in_group, f.tid, f.version, f.is_kept
              from (select pg_catalog.unnest(p.groups) as in_group, pg_catalog.unnest(p.names) as name,
                           pg_catalog.unnest(p.keys) as key, pg_catalog.unnest(p.ids) as id,
                           pg_catalog.unnest(p.charges) as charges
                      from (select $14::int4[] as groups, $15::text[] as names, $16::text[] as keys,
                                   $17::text[] as ids, $18::text[] as charges offset 0) p) w
             cross join lateral (
                 select c.ctid as tid, c.xmin as version, c.answer is not null as is_kept
                   from tollgate.calls c
                  where c.part = $1 and c.name = w.name and c.key = w.key and c.id = w.id
                    and not c.used and c.charges::text = w.charges
                 offset 0
             ) f
             where w.in_group between 0 and 2147483647
               and w.in_group = any (array(select held.in_group from held))) u
      join tollgate.calls c on c.part = $1 and c.ctid = u.tid and c.xmin = u.version
       for update of c skip locked
),
whole as materialized (
    select w.in_group, w.rows
      from held w
      left join (select c.in_group, pg_catalog.count(*) as locked from c group by c.in_group) k
        on k.in_group = w.in_group
     where coalesce(k.locked, 0) = w.calls
),
written as (
    update tollgate.ephemeral r
       set value = h.value, ts = h.ts, full_at = h.full_at, list = h.list
      from h
     where r.part = $1 and r.ctid = h.tid and r.tableoid = h.of and h.in_group in (select in_group from whole)
    returning h.in_group
),
used as (
    update tollgate.calls k
       set used = true, lapses_at = null
      from c
     where k.part = $1 and k.ctid = c.tid and k.tableoid = c.of and c.is_kept
       and c.in_group in (select in_group from whole)
),
gone as (
    delete from tollgate.calls k
     using c
     where k.part = $1 and k.ctid = c.tid and k.tableoid = c.of and not c.is_kept
       and c.in_group in (select in_group from whole)
),
named as (
    insert into tollgate.calls (part, name, key, id, asked, charges, charged_at, lapses_at, kept_until, used,
                                answer)
    select $1, w.name, w.key, w.id, w.asked, w.charges::json, w.charged_at, w.lapses_at, w.kept_until, w.used,
           w.answer::json
      from (select pg_catalog.unnest(p.groups) as in_group, pg_catalog.unnest(p.names) as name,
                   pg_catalog.unnest(p.keys) as key, pg_catalog.unnest(p.ids) as id,
                   pg_catalog.unnest(p.asked) as asked, pg_catalog.unnest(p.charges) as charges,
                   pg_catalog.unnest(p.charged_at) as charged_at, pg_catalog.unnest(p.lapses_at) as lapses_at,
                   pg_catalog.unnest(p.kept_until) as kept_until, pg_catalog.unnest(p.used) as used,
                   pg_catalog.unnest(p.answers) as answer
              from (select $19::int4[] as groups, $20::text[] as names, $21::text[] as keys, $22::text[] as ids,
                           $23::int8[] as asked, $24::text[] as charges, $25::timestamptz[] as charged_at,
                           $26::timestamptz[] as lapses_at, $27::timestamptz[] as kept_until, $28::bool[] as used,
                           $29::text[] as answers offset 0) p) w
     where w.in_group in (select in_group from whole)
       and (select pg_catalog.set_config('lock_timeout', '10ms', true)) is not null
)
select in_group as "in_group!" from written
 union all
select in_group from whole where rows = 0
