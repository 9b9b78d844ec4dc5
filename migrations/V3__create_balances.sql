-- For people: the contents of the rows, in tokens. Only the services know the definitions, so the view does not refill,
-- and cannot say what remains.

create view tollgate.balances as
with rows as (
    select 'ephemeral'::text as storage, name, key, shard, value, ts, full_at, part, list
      from tollgate.ephemeral
     union all
    select 'durable'::text, name, key, shard, value, ts, full_at, part, list
      from tollgate.durable
)
select name,
       key,
       shard,
       storage,
       -- A product is exact; a quotient has sixteen digits.
       greatest(-value::numeric, 0::numeric) * 0.000001               as used,
       case when list[1] = 3::int8 then value::numeric * 0.000001 end as balance,
       ts                                                             as as_of,
       full_at,
       greatest(full_at - pg_catalog.clock_timestamp(), interval '0') as full_in,
       full_at >= ts and full_at <= pg_catalog.clock_timestamp()      as is_full,
       greatest(ts - pg_catalog.clock_timestamp(), interval '0')      as ahead,
       -- After the mark, a grant has two numbers and a lease four; the second one is the amount.
       coalesce((select pg_catalog.sum(number)
                   from pg_catalog.unnest(list) with ordinality entry (number, place)
                  where list[1] = 1::int8 and place > 1::int8 and place % 2::int8 = 1::int8
                     or list[1] = 2::int8 and place % 4::int8 = 3::int8), 0::numeric) * 0.000001 as listed,
       -- PostgreSQL has no earlier instant. Without this check, a list that somebody wrote by hand would fail the whole
       -- view.
       case when list[2] >= -210866803200000000
            then timestamptz 'epoch' + (list[2] / 3600000000)::float8 * interval '1 hour'
                                     + (list[2] % 3600000000)::float8 * interval '1 microsecond' end as leaves_at,
       part,
       list
  from rows;

comment on view   tollgate.balances         is 'all rows, for people';
comment on column tollgate.balances.used    is
    'tokens used at as_of; what has come back since depends on the definition, and from full_at on none is used';
comment on column tollgate.balances.balance is
    'the money of a wallet; of any other limit its capacity less what is used, which only a definition tells';
comment on column tollgate.balances.full_in is 'how long until the row is full again; zero when it is';
comment on column tollgate.balances.listed  is 'tokens that a sliding window counts, or leases hold';
comment on column tollgate.balances.leaves_at is
    'when the first of them come back; of a month and of a named period, when it ends';
comment on column tollgate.balances.ahead   is
    'how far the row lies in the future because the clock went back; reset mends it';
