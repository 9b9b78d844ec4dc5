-- Writes one row of tollgate.rate_limits that still is what it was read as. Waits for nobody: a row that is locked is lost.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens as read, $5 instant as read
-- $6 micro-tokens, $7 instant, $8 when it will be full
with held as materialized (
    select b.shard
      from tollgate.rate_limits b
     where b.name = $1 and b.key = $2 and b.shard = $3 and b.value = $4 and b.ts = $5
       for update skip locked
)
update tollgate.rate_limits r
   set value = $6, ts = $7, full_at = $8
  from held h
 where r.name = $1 and r.key = $2 and r.shard = h.shard
