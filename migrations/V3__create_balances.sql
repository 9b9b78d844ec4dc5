-- For people: what the rows hold, in tokens. Only the services know the definitions, so the view does not refill.

create view tollgate.balances as
with rows as (
    select 'ephemeral'::text as storage, name, key, shard, value, ts, full_at, part, holds
      from tollgate.ephemeral
     union all
    select 'durable'::text, name, key, shard, value, ts, full_at, part, holds
      from tollgate.durable
)
select name,
       key,
       shard,
       storage,
       -- A product is exact; a quotient has sixteen digits.
       value::numeric * 0.000001                                      as balance,
       greatest(-value::numeric, 0::numeric) * 0.000001               as debt,
       ts                                                             as as_of,
       full_at,
       greatest(full_at - pg_catalog.clock_timestamp(), interval '0') as full_in,
       full_at <= pg_catalog.clock_timestamp()                        as is_full,
       greatest(ts - pg_catalog.clock_timestamp(), interval '0')      as ahead,
       -- Amounts follow instants; a negative one is of a named hold, whose id follows, the least of a used one. An
       -- instant has as many numbers before it, not counting the negative ones, as make pairs.
       coalesce((select pg_catalog.sum(case when number = '-9223372036854775808'::int8 then 0
                                            when number < 0 then -1 - number else number end)
                   from (select number,
                                pg_catalog.lag(number) over (order by place) as before,
                                place - 1 - pg_catalog.count(*) filter (where number < 0)
                                            over (order by place rows between unbounded preceding and 1 preceding) as pairs
                           from pg_catalog.unnest(holds) with ordinality held (number, place)) held
                  where pairs % 2::int8 = 1::int8 and before >= 0), 0::numeric) * 0.000001 as held,
       -- PostgreSQL has no earlier instant, and a list that a hand has written must not hide other rows.
       case when holds[1] >= -210866803200000000
            then timestamptz 'epoch' + (holds[1] / 3600000000)::float8 * interval '1 hour'
                                     + (holds[1] % 3600000000)::float8 * interval '1 microsecond' end as lapses_at,
       part,
       holds
  from rows;

comment on view   tollgate.balances         is 'all balances, for people';
comment on column tollgate.balances.balance is 'tokens at as_of; what has come back since depends on the definition';
comment on column tollgate.balances.debt    is 'tokens owed at as_of';
comment on column tollgate.balances.full_in is 'how long until the row is full again; zero when it is';
comment on column tollgate.balances.held    is 'tokens that may still come back: they lapse, or a receipt is settled for less';
comment on column tollgate.balances.lapses_at is 'when the first of them come back; where none do by themselves, when the last receipt ends';
comment on column tollgate.balances.ahead   is 'how far the row lies in the future because the clock went back; reset mends it';
