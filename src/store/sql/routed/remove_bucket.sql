-- Deletes one row of tollgate.buckets that still is what it was found or inserted as.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens, $5 last refill
delete from tollgate.buckets
 where name = $1 and key = $2 and shard = $3 and tokens = $4 and last_refill = $5
