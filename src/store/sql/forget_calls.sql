-- Deletes the calls between two places of the table that need not be known any more, and that nobody holds. Those that
-- lapse are somebody else's: they go when what they have charged is given back.
--
-- $1 the first place, $2 the place to stop before
-- $3 the instant to take for now; null for the clock
-- $4 the margin in microseconds
with gone as materialized (
    select c.tableoid as of, c.ctid as tid
      from tollgate.calls c
     where c.ctid >= $1::text::tid
       and c.ctid < $2::text::tid
       and c.lapses_at is null
       and case when pg_catalog.row_security_active('tollgate.calls'::regclass)
                then 'row security hides rows of tollgate.calls' else 'on' end::bool
       and c.kept_until <= coalesce($3, pg_catalog.clock_timestamp())
                           - pg_catalog.make_interval(secs => $4::int8::float8 / 1000000::float8)
       for update of c skip locked
)
delete from tollgate.calls c
 using gone g
 where c.ctid = g.tid and c.tableoid = g.of
returning 1 as "deleted!"
