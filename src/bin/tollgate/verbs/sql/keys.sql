-- The keys of a limit in one table, by its primary key, from after $3 on; from the first where that is null.
--
-- $1 name, $2 storage, $3 the key before, $4 how many
select b.key
  from (
      select 'ephemeral' as storage, name, key from tollgate.buckets
       union all
      select 'durable', name, key from tollgate.rate_limits
  ) b
 where b.name = $1
   and b.storage = $2
   and b.key >= coalesce($3, '')
   and b.key is distinct from $3
 group by b.key
 order by b.key
 limit $4
