-- Writes one row of tollgate.rate_limits, which the transaction holds.
--
-- $1 name, $2 key, $3 shard, $4 micro-tokens, $5 instant, $6 when it will be full
update tollgate.rate_limits
   set value = $4, ts = $5, full_at = $6
 where name = $1 and key = $2 and shard = $3
