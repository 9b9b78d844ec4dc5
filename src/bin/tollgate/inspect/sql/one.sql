-- The rows of one limit and key, in both tables, and the clock; one row of nulls where there are none.
--
-- $1 name, $2 key
select (extract(epoch from clock_timestamp()) * 1000000)::int8                              as now,
       b.key,
       b.shard,
       b.storage,
       b.value,
       (extract(epoch from b.as_of) * 1000000)::int8                                        as as_of,
       case when isfinite(b.full_at) then (extract(epoch from b.full_at) * 1000000)::int8 end as full_at
  from (select) clock
  left join (
      select 'ephemeral' as storage, name, key, shard, tokens as value, last_refill as as_of, expires_at as full_at
        from tollgate.buckets
       union all
      select 'durable', name, key, shard, value, ts, full_at
        from tollgate.rate_limits
  ) b on b.name = $1 and b.key = $2
 order by b.storage, b.shard
