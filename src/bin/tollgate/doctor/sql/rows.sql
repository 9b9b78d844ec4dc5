-- All rows, by limit and table: how many lie in the future, and what they owe now. Reads both tables whole.
--
-- One of several rows for a key has its share of the limit; of how many it is one, its number says.
--
-- The definitions that are known: $1 names, $2 tokens per period, $3 periods in seconds, $4 how deep reservations may go
with known as materialized (
    select *
      from unnest($1::text[], $2::float8[], $3::float8[], $4::float8[]) as k (name, rate, period, max_reserved)
),
seen as (
    select b.name,
           b.storage,
           extract(epoch from b.as_of - clock_timestamp())::float8             as ahead,
           k.max_reserved / b.shards                                          as max_reserved,
           b.shards * k.period / k.rate                                       as seconds_per_token,
           b.value < 0                                                        as is_debt,
           b.value / -1e6::float8 - coalesce(
               k.rate * greatest(extract(epoch from clock_timestamp() - b.as_of), 0) / k.period / b.shards, 0) as owed,
           case when isfinite(b.full_at) then extract(epoch from b.full_at - clock_timestamp()) end::float8 as full_in
      from (
          select *, floor((1 + sqrt(1 + 8 * shard)) / 2) as shards
            from (
                select 'ephemeral' as storage, name, shard, tokens as value, last_refill as as_of, expires_at as full_at
                  from tollgate.buckets
                 union all
                select 'durable', name, shard, value, ts, full_at
                  from tollgate.rate_limits
            ) r
      ) b
      left join known k on k.name = b.name
)
select s.name,
       s.storage,
       count(*)                                                               as rows,
       count(*) filter (where s.ahead > 1)                                    as ahead,
       greatest(max(s.ahead), 0)                                              as furthest,
       count(*) filter (where s.is_debt and s.owed > s.max_reserved)          as unreserved,
       -- Without a definition by what the row itself says.
       max(coalesce(s.owed * s.seconds_per_token, s.full_in)) filter (where s.is_debt and s.owed > 0) as clears_in
  from seen s
 group by s.name, s.storage
 order by s.name, s.storage
