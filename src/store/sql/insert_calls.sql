-- Inserts calls, for a transaction that has locked the rows of their charges. An id that is there already is an error.
--
-- $1 part, $2 names, $3 keys, $4 ids, $5 fingerprints, $6 charges as JSON, $7 the instants of the decisions
-- $8 when each lapses, null for never, $9 until when each is kept, $10 whether it is used already,
-- $11 what a repeat is answered, as JSON
insert into tollgate.calls (part, name, key, id, asked, charges, charged_at, lapses_at, kept_until, used,
                            answer)
select $1, w.name, w.key, w.id, w.asked, w.charges::json, w.charged_at, w.lapses_at, w.kept_until, w.used,
       w.answer::json
  from (select pg_catalog.unnest(p.names) as name, pg_catalog.unnest(p.keys) as key, pg_catalog.unnest(p.ids) as id,
               pg_catalog.unnest(p.asked) as asked, pg_catalog.unnest(p.charges) as charges,
               pg_catalog.unnest(p.charged_at) as charged_at, pg_catalog.unnest(p.lapses_at) as lapses_at,
               pg_catalog.unnest(p.kept_until) as kept_until, pg_catalog.unnest(p.used) as used,
               pg_catalog.unnest(p.answers) as answer
          from (select $2::text[] as names, $3::text[] as keys, $4::text[] as ids, $5::int8[] as asked,
                       $6::text[] as charges, $7::timestamptz[] as charged_at, $8::timestamptz[] as lapses_at,
                       $9::timestamptz[] as kept_until, $10::bool[] as used,
                       $11::text[] as answers offset 0) p) w
returning 1 as "written!"
