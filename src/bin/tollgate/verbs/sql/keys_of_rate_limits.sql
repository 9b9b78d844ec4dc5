-- The keys of a limit in tollgate.rate_limits, in the order of the primary key, from after $2 on; from the first where that is null.
--
-- $1 name, $2 the key before, $3 how many
select distinct r.key
  from tollgate.rate_limits r
 where r.name = $1
   and r.key >= coalesce($2, '')
   and r.key is distinct from $2
 order by r.key
 limit $3
