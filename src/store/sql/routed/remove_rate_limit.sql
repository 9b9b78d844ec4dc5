-- Deletes one row of tollgate.rate_limits that still is what it was found or inserted as.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens, $5 instant
delete from tollgate.rate_limits
 where name = $1 and key = $2 and shard = $3 and value = $4 and ts = $5
