-- Pauses a limit, as a reporter. Returns the pause that counts, or nulls.
--
-- $1 name, $2 key, empty for every key, $3 until when, or $4 for how many microseconds, $5 as an answer told. row.sql
-- goes on.
with said as (
    select o.*
      from tollgate.pause($1::text, nullif($2::text, ''::text), $2::text = ''::text, $3::timestamptz,
                          $4::int8::float8 * interval '1 microsecond', $5::bool) o)
select
