-- The rows of the keys of a limit in one part, the most exhausted key first. To find those it reads all rows of the
-- limit. What is missing is only estimated here, in floats, for the order; what is printed is computed from the rows.
-- Without a definition, keys that are not full yet come first, those with the lowest balance before the others.
--
-- $1 name; $2 key, or null for all keys
-- The definition, or nulls: $3 storage, $4 capacity of one row, $5 tokens that one row gets each period, $6 the period
-- in seconds, $7 whether tokens come back in steps
-- $8 how many keys; $9 the part
with keys as (
    select b.key,
           sum(case
                   when $3::text is null and b.full_at > clock_timestamp() then -b.balance::float8
                   when b.storage = $3
                   then $4::float8
                        - least($4, b.balance::float8
                                    + $5::float8 * case when $7 then floor(elapsed.periods) else elapsed.periods end)
               end) as missing
      from tollgate.balances b
     cross join lateral (
         select greatest(extract(epoch from clock_timestamp() - b.as_of), 0)::float8 / $6::float8 as periods
     ) elapsed
     where b.part = $9
       and b.name = $1
       and ($2::text is null or b.key = $2)
     group by b.key
     order by missing desc nulls last, b.key
     limit $8
)
select b.name,
       b.key,
       b.shard,
       b.storage,
       (b.balance * 1000000)::int8                                                            as value,
       (extract(epoch from b.as_of) * 1000000)::int8                                          as as_of,
       case when isfinite(b.full_at) then (extract(epoch from b.full_at) * 1000000)::int8 end as full_at,
       b.list::text                                                                           as list,
       keys.missing
  from keys
  -- Key by key, by the primary keys: a join would read all rows again.
 cross join lateral (
     select r.name, r.key, r.shard, r.storage, r.balance, r.as_of, r.full_at, r.list
       from tollgate.balances r
      where r.part = $9 and r.name = $1 and r.key = keys.key
     offset 0
 ) b
 order by keys.missing desc nulls last, b.key, b.storage, b.shard
