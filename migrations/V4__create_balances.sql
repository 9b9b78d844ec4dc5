-- For people: what the rows say, in tokens, without the definitions that only the services know.

create view tollgate.balances as
with rows as (
    select 'ephemeral' as storage, name, key, shard, tokens as micros, last_refill as as_of, expires_at as full_at
      from tollgate.buckets
     union all
    select 'durable', name, key, shard, value, ts, full_at
      from tollgate.rate_limits
)
select name,
       key,
       shard,
       storage,
       (micros / 1000000.0)::numeric(19, 6)                  as balance,
       (greatest(-micros, 0) / 1000000.0)::numeric(19, 6)    as debt,
       as_of,
       full_at,
       greatest(full_at - clock_timestamp(), interval '0')   as full_in,
       full_at <= clock_timestamp()                          as is_full,
       greatest(as_of - clock_timestamp(), interval '0')     as ahead
  from rows;

comment on view   tollgate.balances         is 'all balances, for people';
comment on column tollgate.balances.balance is 'tokens at as_of; what has come back since depends on the definition';
comment on column tollgate.balances.debt    is 'tokens owed at as_of';
comment on column tollgate.balances.full_in is 'how long until it is full again; zero when it is';
comment on column tollgate.balances.ahead   is 'how far the row lies in the future: the clock has gone back; `reset` mends it';
