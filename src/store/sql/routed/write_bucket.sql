-- Writes one row of tollgate.buckets, which the transaction holds.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens, $5 last refill, $6 when it will be full
update tollgate.buckets
   set tokens = $4, last_refill = $5, expires_at = $6
 where name = $1 and key = $2 and shard = $3
