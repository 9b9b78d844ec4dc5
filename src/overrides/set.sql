-- Sets an override of a limit, as an operator. Returns the one that it replaces, and then the others that are live.
--
-- $1 name, $2 key, or null for every key, $3 effect, $4 kind, $5 micro-tokens in each period, $6 the period in
-- microseconds, $7 capacity, $8 how far below zero, $9 and $10 from when until when, $11 for how many microseconds, $12
-- why, $13 who, $14 label. row.sql goes on.
with told as materialized (
    select tollgate.set_override(
               $1::text, $2::text, $3::text, $5::numeric * 0.000001::numeric,
               ($6::int8 / 3600000000)::float8 * interval '1 hour'
               + ($6::int8 % 3600000000)::float8 * interval '1 microsecond',
               $7::numeric * 0.000001::numeric, $8::numeric * 0.000001::numeric, $4::text, $2::text is null,
               $9::timestamptz, $10::timestamptz,
               ($11::int8 / 3600000000)::float8 * interval '1 hour'
               + ($11::int8 % 3600000000)::float8 * interval '1 microsecond',
               $12::text, $13::text, $14::text) as told),
said as (
    select true as is_replaced, ((t.told).replaced).* from told t
     union all
    select false, o.* from told t cross join lateral pg_catalog.unnest((t.told).others) o)
select said.is_replaced,
