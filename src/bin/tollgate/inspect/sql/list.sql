-- The keys of a limit, most exhausted first: reads all rows of the limit. What is missing is only estimated here, in floats, for
-- the order; what is printed is computed from the row. Without a definition, what is not yet full comes first, the lowest
-- balance before the others.
--
-- $1 name, $2 storage; null for both
-- $3 capacity, $4 tokens per period, $5 the period in seconds, $6 whether tokens come back in steps; null without a definition
-- $7 how many rows, $8 how many rows come before
with clock as materialized (
    select clock_timestamp() as now
),
rows as (
    select b.key,
           b.shard,
           b.storage,
           b.value,
           b.as_of,
           b.full_at,
           clock.now,
           greatest(extract(epoch from clock.now - b.as_of), 0)::float8 / $5::float8 as periods
      from (
          select 'ephemeral' as storage, name, key, shard, tokens as value, last_refill as as_of, expires_at as full_at
            from tollgate.buckets
           union all
          select 'durable', name, key, shard, value, ts, full_at
            from tollgate.rate_limits
      ) b
     cross join clock
     where b.name = $1
       and b.storage = coalesce($2, b.storage)
),
ranked as (
    select r.*,
           case
               when $3::float8 is not null
               then $3 - least($3, r.value / 1e6::float8 + $4::float8 * case when $6 then floor(r.periods) else r.periods end)
               when r.full_at > r.now then -r.value::float8
               else '-infinity'::float8
           end as missing
      from rows r
)
select (extract(epoch from r.now) * 1000000)::int8                                          as now,
       r.key,
       r.shard,
       r.storage,
       r.value,
       (extract(epoch from r.as_of) * 1000000)::int8                                        as as_of,
       case when isfinite(r.full_at) then (extract(epoch from r.full_at) * 1000000)::int8 end as full_at
  from ranked r
 order by r.missing desc, r.key, r.storage, r.shard
 limit $7
offset $8
