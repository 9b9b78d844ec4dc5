-- Writes one row of tollgate.buckets that still is what it was read as. Waits for nobody: a row that is locked is lost.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens as read, $5 last refill as read
-- $6 micro-tokens, $7 last refill, $8 when it will be full
with held as materialized (
    select b.shard
      from tollgate.buckets b
     where b.name = $1 and b.key = $2 and b.shard = $3 and b.tokens = $4 and b.last_refill = $5
       for update skip locked
)
update tollgate.buckets r
   set tokens = $6, last_refill = $7, expires_at = $8
  from held h
 where r.name = $1 and r.key = $2 and r.shard = h.shard
