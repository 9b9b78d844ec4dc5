-- Reads the calls of a part that had lapsed when the transaction began, those that lapsed first at the front. That
-- instant is one for the whole statement, so the index ends there. Locks none: the rows of their limits come first.
--
-- $1 part, $2 after which instant to look, so that what was deleted since the last look is not passed over again
-- $3 how many at most, $5 behind how many of them
-- $4 the instant to take for now; null for the clock
with found as materialized (
    select *
      from tollgate.calls c
     where c.part = $1 and c.lapses_at > $2 and c.lapses_at <= coalesce($4, pg_catalog.now())
     order by c.lapses_at
     limit $3 offset $5
)
select c.name as "name!", c.key as "key!", c.id as "id!", c.asked as "asked!", c.charges::text as "charges!",
       c.answer::text as "answer?",
       c.charged_at as "charged_at!: Timestamp", c.reported as "reported!", c.lapses_at as "lapses_at?: Timestamp",
       c.kept_until as "kept_until!: Timestamp", c.used as "used!"
  from found c
 where case when pg_catalog.row_security_active('tollgate.calls'::regclass)
            then 'row security hides rows of tollgate.calls' else 'on' end::bool
 order by c.lapses_at
