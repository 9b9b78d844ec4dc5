-- Locks calls by their ids, in the order given, and reads them as peek_calls.sql does. A session that locks a call
-- has locked the rows of its limits before. So no session that waits for a call is waited for.
--
-- $1 part, $2 names, $3 keys, $4 ids
with held as materialized (
    select w.number, c.*
      from (select u.*, pg_catalog.row_number() over ()::int4 as number
              from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key,
                           pg_catalog.unnest(p.ids) as id
                      from (select $2::text[] as names, $3::text[] as keys, $4::text[] as ids offset 0) p) u) w
     cross join lateral (
         select c.asked, c.charges, c.answer, c.charged_at, c.reported, c.lapses_at, c.kept_until, c.used
           from tollgate.calls c
          where c.part = $1 and c.name = w.name and c.key = w.key and c.id = w.id
         offset 0
            for update of c
     ) c
)
select c.number as "number!", c.asked as "asked!", c.charges::text as "charges!", c.answer::text as "answer?",
       c.charged_at as "charged_at!: Timestamp", c.reported as "reported!", c.lapses_at as "lapses_at?: Timestamp",
       c.kept_until as "kept_until!: Timestamp", c.used as "used!"
  from held c
 where case when pg_catalog.row_security_active('tollgate.calls'::regclass)
            then 'row security hides rows of tollgate.calls' else 'on' end::bool
