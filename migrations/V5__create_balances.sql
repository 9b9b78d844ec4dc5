-- For people: the contents of the rows, in tokens. A service may have other definitions than tollgate.limits, so the
-- view does not refill, and cannot say what remains: tollgate.balance() does, for one key.
--
-- A query pays only for the columns that it names, and uses the primary key. For that the view has no `with`, no
-- volatile function and no join: the planner merges no such view into a query. A caller needs rights on functions of a
-- view, though not on its tables, so the condition of `_is_live` stands here.

create view tollgate.balances as
select r.name,
       r.key,
       r.shard,
       r.storage,
       (select l.kind from tollgate.limits l where l.name = r.name) as kind,
       -- A product is exact; a quotient has sixteen digits.
       greatest(-r.value::numeric, 0::numeric) * 0.000001                 as used,
       case when r.list[1] = 3::int8 then r.value::numeric * 0.000001 end as balance,
       r.ts                                                               as as_of,
       r.full_at,
       greatest(r.full_at - pg_catalog.statement_timestamp(), interval '0')   as full_in,
       r.full_at >= r.ts and r.full_at <= pg_catalog.statement_timestamp()    as is_full,
       greatest(r.ts - pg_catalog.statement_timestamp(), interval '0')        as ahead,
       -- After the mark, a grant has two numbers and a lease four; the second one is the amount.
       coalesce((select pg_catalog.sum(number)
                   from pg_catalog.unnest(r.list) with ordinality entry (number, place)
                  where r.list[1] = 1::int8 and place > 1::int8 and place % 2::int8 = 1::int8
                     or r.list[1] = 2::int8 and place % 4::int8 = 3::int8), 0::numeric) * 0.000001 as listed,
       case when r.list[1] in (1::int8, 2::int8) then r.first_at end      as leaves_at,
       case when r.list[1] in (4::int8, 5::int8) then r.first_at end      as ends_at,
       (select pg_catalog.string_agg(distinct o.effect, ', '::text)
          from tollgate.overrides o
         where o.name = r.name and (o.key = r.key or o.key = ''::text)
           and case o.effect when 'slowed'::text then o.rate < 1000000::int8
                             else o.starts_at <= o.set_at or o.starts_at <= pg_catalog.statement_timestamp() end
           and o.ends_at > pg_catalog.statement_timestamp())                  as overrides,
       r.part,
       r.list
  from (
      select rows.*,
             -- PostgreSQL has no earlier instant. Without this check, a list that somebody wrote by hand would fail the
             -- whole view.
             case when list[2] >= -210866803200000000
                  then timestamptz 'epoch' + (list[2] / 3600000000)::float8 * interval '1 hour'
                                           + (list[2] % 3600000000)::float8 * interval '1 microsecond' end as first_at
        from (select 'ephemeral'::text as storage, name, key, shard, value, ts, full_at, part, list
                from tollgate.ephemeral
               union all
              select 'durable'::text, name, key, shard, value, ts, full_at, part, list
                from tollgate.durable) rows
  ) r;

comment on view   tollgate.balances         is 'all rows, for people';
comment on column tollgate.balances.kind    is 'of the limit, as tollgate.limits defines it; null where it does not';
comment on column tollgate.balances.used    is
    'tokens used at as_of; what has come back since depends on the definition, and from full_at on none is used';
comment on column tollgate.balances.balance is
    'the money of a wallet; of any other limit its capacity less what is used, which only a definition tells';
comment on column tollgate.balances.full_in is 'how long until the row is full again; zero when it is';
comment on column tollgate.balances.listed  is 'tokens that a sliding window counts, or leases hold';
comment on column tollgate.balances.leaves_at is 'when the first of them come back';
comment on column tollgate.balances.ends_at is 'when the month or the period that was named ends';
comment on column tollgate.balances.overrides is
    'the sorts of those that are live for the key or for every key, such as ''deny, numbers''; null where none is';
comment on column tollgate.balances.ahead   is
    'how far the row lies in the future because the clock went back; reset mends it';
