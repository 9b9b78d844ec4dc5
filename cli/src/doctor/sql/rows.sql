-- All rows of a part, by limit and storage: how many lie in the future, what they owe now by the definitions that are
-- known, how many have more than 200 leases, and in how many a lease has ended that nobody released. Reads them all.
--
-- The list of leases begins with their mark (2); each has four numbers. No time repays the debt of a wallet.
--
-- The definitions that are known: $1 names, $2 tokens that one row gets each second, $3 capacities of one row, $4 how
-- deep reservations may take one row; $5 the part
with known as materialized (
    select *
      from unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) as k (name, rate, capacity, max_reserved)
),
seen as (
    select b.name,
           b.storage,
           extract(epoch from b.as_of - clock_timestamp())::float8 as ahead,
           k.rate,
           k.max_reserved,
           b.list[1] = 2::int8 and pg_catalog.array_length(b.list, 1) > 801 as is_laden,
           b.list[1] = 2::int8 and b.leaves_at < clock_timestamp() as has_lapsed,
           b.balance is not null as is_wallet,
           case when b.balance is not null then -b.balance::float8
                when not b.is_full
                then b.used::float8 - k.capacity
                     - k.rate * greatest(extract(epoch from clock_timestamp() - b.as_of), 0)::float8 end as owed,
           case when isfinite(b.full_at) then extract(epoch from b.full_at - clock_timestamp()) end::float8 as full_in
      from tollgate.balances b
      left join known k on k.name = b.name
     where b.part = $5
)
select s.name,
       s.storage,
       count(*)                                                               as rows,
       count(*) filter (where s.ahead > 1)                                    as ahead,
       greatest(max(s.ahead), 0)                                              as furthest,
       count(*) filter (where s.owed > s.max_reserved)                        as unreserved,
       count(*) filter (where s.is_laden)                                     as laden,
       count(*) filter (where s.has_lapsed)                                   as lapsed,
       max(least(s.owed / s.rate, s.full_in)) filter (where s.owed > 0 and not s.is_wallet) as clears_in
  from seen s
 group by s.name, s.storage
 order by s.name, s.storage
