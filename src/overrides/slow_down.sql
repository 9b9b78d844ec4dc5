-- Slows a limit down, as a reporter. Returns the slow-down that counts.
--
-- $1 name, $2 key, empty for every key, $3 percent that the report leaves, $4 percent that all reports leave, $5, $6 and
-- $7 microseconds in which the rate grows back, of the cool-down, and in which a report is forgotten. row.sql goes on.
with said as (
    select o.*
      from tollgate.slow_down($1::text, nullif($2::text, ''::text), $2::text = ''::text, $3::int4, $4::int4,
                              $5::int8::float8 * interval '1 microsecond',
                              $6::int8::float8 * interval '1 microsecond',
                              $7::int8::float8 * interval '1 microsecond') o)
select
