-- The rows of the keys of a limit in one part, the most used key first. To find those it reads all rows of the limit.
-- This statement only estimates the used tokens, in floats, for the order; the command computes those that it prints
-- from the rows. Without a definition the estimate is as of when each row was written.
--
-- $1 name; $2 key, or null for all keys
-- The definition, or nulls: $3 storage, $4 tokens that one row gets each period, $5 the period in seconds, $6 whether
-- tokens come back in steps
-- $7 how many keys; $8 the part
with keys as (
    select b.key,
           sum(case
                   when b.is_full or b.storage <> $3::text then 0
                   when b.balance is not null then -b.balance::float8
                   else greatest(0, b.used::float8 - coalesce($4::float8, 0)
                                    * case when $6 then floor(elapsed.periods) else elapsed.periods end)
               end) as used
      from tollgate.balances b
     cross join lateral (
         select greatest(extract(epoch from clock_timestamp() - b.as_of), 0)::float8
                / coalesce($5::float8, 1) as periods
     ) elapsed
     where b.part = $8
       and b.name = $1
       and ($2::text is null or b.key = $2)
     group by b.key
     order by used desc nulls last, b.key
     limit $7
)
select b.name,
       b.key,
       b.shard,
       b.storage,
       (coalesce(b.balance, -b.used) * 1000000)::int8                                         as value,
       (extract(epoch from b.as_of) * 1000000)::int8                                          as as_of,
       case when isfinite(b.full_at) then (extract(epoch from b.full_at) * 1000000)::int8 end as full_at,
       b.list::text                                                                           as list,
       keys.used
  from keys
  -- Key by key, by the primary keys: a join would read all rows again.
 cross join lateral (
     select r.name, r.key, r.shard, r.storage, r.balance, r.used, r.as_of, r.full_at, r.list
       from tollgate.balances r
      where r.part = $8 and r.name = $1 and r.key = keys.key
     offset 0
 ) b
 order by keys.used desc nulls last, b.key, b.storage, b.shard
